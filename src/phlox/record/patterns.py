"""The one small language that says which paths are meant: for freezing, for optimizers' groups, for partial loads.

A pattern is a path with wildcards: `*` stands for any part of one segment, `**` for any number of segments. The path of
something that has parts (a module, a list or dict in it) means everything below. A pattern that starts with `!` takes
away from what the patterns before it have chosen, or from everything if it is the first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, cast

from phlox.errors import RecordError
from phlox.record.names import nearest

Patterns: TypeAlias = str | Sequence[str]
"""A pattern, or several."""


def matches(pattern: str, path: str) -> bool:
    """Is `path`, or something that it lies below, what this pattern (without a `!`) means?

    >>> matches("encoder.*.norm", "encoder.0.norm.weight"), matches("*.bias", "encoder.0.bias")
    (True, False)
    """
    return _expression(pattern).fullmatch(f"{path}.") is not None


def in_turn(which: Iterable[Any], everything: Iterable[str], found: Callable[[Any], set[str]]) -> set[str]:
    """What several patterns choose, one after the other; `found` gives what each means, its `!` taken off."""
    chosen: set[str] = set()
    for place, one in enumerate(which):
        if isinstance(one, str) and one.startswith("!"):
            chosen = (chosen if place else set(everything)) - found(one[1:])
        else:
            chosen |= found(one)
    return chosen


def chosen(patterns: Patterns, paths: Mapping[str, Sequence[str]] | Iterable[str]) -> set[str]:
    """Those of `paths` that are meant; where they are a mapping, a key is meant if any of its names is.

    Raises RecordError for a pattern that none matches, with what was probably meant, and for what is no pattern.

    >>> sorted(chosen(["encoder", "!**.bias"], ["encoder.weight", "encoder.bias", "head.weight"]))
    ['encoder.weight']
    """
    named = cast("Mapping[str, Sequence[str]]", paths) if isinstance(paths, Mapping) else None
    names = {path: [path] for path in paths} if named is None else named

    def found(pattern: Any) -> set[str]:
        if not isinstance(pattern, str):
            raise RecordError(
                f"{pattern!r} does not say which paths are meant; give a pattern ('encoder', '**.bias'), or several"
            )
        result = {key for key, known in names.items() if any(matches(pattern, path) for path in known)}
        if not result:
            raise RecordError(no_match(pattern, [path for known in names.values() for path in known], "path"))
        return result

    return in_turn([patterns] if isinstance(patterns, str) else patterns, names, found)


def no_match(pattern: str, paths: Sequence[str], what: str) -> str:
    """What to say where no path, which stands for a `what`, matches a pattern."""
    for other in _meant(pattern, paths):
        if other != pattern and any(matches(other, path) for path in paths):
            return f"no {what} matches `{pattern}`; did you mean `{other}`?"
    shown = ", ".join(paths[:6]) + (", ..." if len(paths) > 6 else "")
    return f"no {what} matches `{pattern}`; the {what}s are {shown or 'none'}"


@lru_cache(maxsize=512)
def _expression(pattern: str) -> re.Pattern[str]:
    """For paths with a dot at the end: those that match, and those below."""
    text = ""
    for segment in pattern.split("."):
        text += r"(?:[^.]+\.)*" if segment == "**" else "[^.]*".join(map(re.escape, segment.split("*"))) + r"\."
    return re.compile(f"{text}.*", re.DOTALL)


def _meant(pattern: str, paths: Sequence[str]) -> Iterator[str]:
    """What may have been meant: the same further down, or other names."""
    yield f"*{pattern}" if pattern.startswith("*.") else f"**.{pattern}"
    if "*" not in pattern:
        modules = dict.fromkeys(path[:end] for path in paths for end in range(len(path)) if path[end] == ".")
        yield nearest(pattern, [*paths, *modules]) or pattern
    names = dict.fromkeys(name for path in paths for name in path.split("."))
    segments = [one if "*" in one or one in names else nearest(one, names) or one for one in pattern.split(".")]
    yield ".".join(segments)
    yield ".".join(["**", *segments])
