"""Path patterns: select parameters for freezing, optimizer groups and partial loads.

A pattern is a path with wildcards: `*` matches any part of one segment, `**` any number of segments. The path of a
container (a module, list or dict) matches everything below it. A pattern that starts with `!` removes its matches from
the selection of the patterns before it, or from everything if it is the first.
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
    """Does this pattern (without a `!`) match `path`, or a container of it?

    >>> matches("encoder.*.norm", "encoder.0.norm.weight"), matches("*.bias", "encoder.0.bias")
    (True, False)
    """
    if "*" not in pattern:
        return path == pattern or path.startswith(f"{pattern}.")
    return _compiled(pattern).fullmatch(f"{path}.") is not None


class Finder:
    """Finds the keys of a mapping key -> paths, in its order, with a path that a pattern (without a `!`) matches.

    A pattern without wildcards is looked up: a pattern for each of a thousand parameters costs a thousand lookups.

    >>> find = Finder({"embed": ["embed.weight", "head.weight"], "norm": ["norm.gamma"]})
    >>> find("head"), find("*.gamma"), find("bias")
    (['embed'], ['norm'], [])
    """

    def __init__(self, names: Mapping[str, Iterable[str]]) -> None:
        self._names = names
        self._below: dict[str, dict[str, None]] = {}
        """The keys of each path and of each container of it; filled by the first lookup."""

    def __call__(self, pattern: str) -> list[str]:
        if "*" in pattern:
            return [key for key, paths in self._names.items() if any(matches(pattern, path) for path in paths)]
        if not self._below:
            for key, paths in self._names.items():
                for path in paths:
                    ends = [index for index, letter in enumerate(path) if letter == "."]
                    for end in (*ends, len(path)):
                        self._below.setdefault(path[:end], {})[key] = None
        return [*self._below.get(pattern, ())]


def matches_exactly(pattern: str, path: str) -> bool:
    """Does this pattern (without a `!`) match `path` itself? The empty path, of a root, has no segments.

    >>> matches_exactly("blocks.*", "blocks.0"), matches_exactly("blocks.*", "blocks.0.mlp"), matches_exactly("**", "")
    (True, False, True)
    """
    return pattern == path or _compiled(pattern, below=False).fullmatch(path and f"{path}.") is not None


def select_in_order(which: Iterable[Any], everything: Iterable[str], matches_of: Callable[[Any], set[str]]) -> set[str]:
    """The selection of several patterns, applied in order; `matches_of` returns those of one, without its `!`."""
    selection: set[str] = set()
    for index, pattern in enumerate(which):
        if isinstance(pattern, str) and pattern.startswith("!"):
            selection = (selection if index else set(everything)) - matches_of(pattern[1:])
        else:
            selection |= matches_of(pattern)
    return selection


def selected(patterns: Patterns, paths: Mapping[str, Sequence[str]] | Iterable[str]) -> set[str]:
    """The selected `paths`. In a mapping path -> names, a key is selected if any of its names is.

    Raises RecordError for a pattern without a match (with a suggestion), and for an invalid pattern.

    >>> sorted(selected(["encoder", "!**.bias"], ["encoder.weight", "encoder.bias", "head.weight"]))
    ['encoder.weight']
    """
    named = cast("Mapping[str, Sequence[str]]", paths) if isinstance(paths, Mapping) else None
    names = {path: [path] for path in paths} if named is None else named
    find = Finder(names)

    def matches_of(pattern: Any) -> set[str]:
        if not isinstance(pattern, str):
            raise RecordError(f"{pattern!r} is not a pattern; give a pattern ('encoder', '**.bias'), or several")
        result = set(find(pattern))
        if not result:
            raise RecordError(no_match(pattern, [path for own_names in names.values() for path in own_names], "path"))
        return result

    return select_in_order([patterns] if isinstance(patterns, str) else patterns, names, matches_of)


def no_match(pattern: str, paths: Sequence[str], kind: str) -> str:
    """The message for a pattern that matches no path of this kind."""
    for other in _suggestions(pattern, paths):
        if other != pattern and any(matches(other, path) for path in paths):
            return f"no {kind} matches `{pattern}`; did you mean `{other}`?"
    shown = ", ".join(paths[:6]) + (", ..." if len(paths) > 6 else "")
    return f"no {kind} matches `{pattern}`; the {kind}s are {shown or 'none'}"


@lru_cache(maxsize=512)
def _compiled(pattern: str, *, below: bool = True) -> re.Pattern[str]:
    """The regular expression of a pattern, and of everything below it, for paths with a trailing dot."""
    return re.compile(expression(pattern, "[^.]*", r"(?:[^.]+\.)*") + ".*" * below, re.DOTALL)


def expression(pattern: str, part: str, segments: str) -> str:
    r"""The regular expression of a pattern for paths with a trailing dot.

    Args:
        pattern: a pattern without a `!`.
        part: the expression for `*`.
        segments: the expression for `**`, with the dots after its segments.

    >>> expression("h.*.ln.**", "([^.]+)", r"(?:(.+)\.)?")
    'h\\.([^.]+)\\.ln\\.(?:(.+)\\.)?'
    """
    text = ""
    for segment in pattern.split("."):
        text += segments if segment == "**" else part.join(map(re.escape, segment.split("*"))) + r"\."
    return text


def _suggestions(pattern: str, paths: Sequence[str]) -> Iterator[str]:
    """Suggestions: the same pattern at a deeper level, or similar names."""
    yield f"*{pattern}" if pattern.startswith("*.") else f"**.{pattern}"
    if "*" not in pattern:
        modules = dict.fromkeys(path[:end] for path in paths for end in range(len(path)) if path[end] == ".")
        yield nearest(pattern, [*paths, *modules]) or pattern
    names = dict.fromkeys(name for path in paths for name in path.split("."))
    segments = [s if "*" in s or s in names else nearest(s, names) or s for s in pattern.split(".")]
    yield ".".join(segments)
    yield ".".join(["**", *segments])
