"""Patterns of paths for adapters. The matches of one pattern's wildcards are inserted into another pattern."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from phlox.errors import RecordError
from phlox.record.patterns import expression

_WILD = re.compile(r"\*\*|\*")


@dataclass(frozen=True, slots=True)
class Pattern:
    """A path with wildcards: `*` matches one segment or a part of one, `**` any number of whole segments.

    >>> Pattern("h.*.ln_1.weight").captures("h.11.ln_1.weight")
    ('11',)
    >>> Pattern("blocks.*.norm.gamma").filled(("11",))
    'blocks.11.norm.gamma'
    """

    text: str
    wildcards: tuple[str, ...] = field(init=False, compare=False)
    _regex: re.Pattern[str] | None = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        segments = self.text.split(".")
        if not all(segments):
            raise RecordError(f"{self.text!r} is not a pattern: give names joined by dots, none of them empty")
        wildcards = tuple(_WILD.findall(self.text))
        if wildcards.count("**") > 1 or ("**" in wildcards and "**" not in segments):
            raise RecordError(f"{self.text!r}: `**` may occur once in a pattern, as a whole segment")
        text = expression(self.text, "([^.]+)", r"(?:(.+)\.)?")
        object.__setattr__(self, "wildcards", wildcards)
        object.__setattr__(self, "_regex", re.compile(text, re.DOTALL) if wildcards else None)

    def captures(self, path: str) -> tuple[str, ...] | None:
        """What the wildcards match in `path`, in order; None if it does not match."""
        if self._regex is None:
            return () if path == self.text else None
        match = self._regex.fullmatch(f"{path}.")
        return None if match is None else tuple(text or "" for text in match.groups())

    def filled(self, captures: tuple[str, ...]) -> str:
        """The path with these in place of the wildcards."""
        if not captures:
            return self.text
        left = iter(captures)
        path = _WILD.sub(lambda _: next(left), self.text)
        return ".".join(segment for segment in path.split(".") if segment)

    def under(self, prefix: str) -> Pattern:
        """This pattern below a prefix; "" for none."""
        return Pattern(f"{prefix}.{self.text}") if prefix else self
