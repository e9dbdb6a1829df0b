"""Hints for names in a record that are not as expected: misspellings, prefixes, shifted layer numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from phlox.record.names import nearest

if TYPE_CHECKING:
    from phlox.record.record import Record

Specs: TypeAlias = Mapping[str, Any]
"""Path -> its shape, kind or the like; equal specs fit."""

_MAX_SUGGESTIONS = 20
_MAX_LISTS = 50
_MAX_PAIRS = 4


def suggestions(missing: list[str], unexpected: list[str]) -> dict[str, str]:
    """Missing or unexpected name -> a similar name on the other side."""
    similar: dict[str, str] = {}
    for names, others in ((missing, unexpected), (unexpected, missing)):
        for name in names[:_MAX_SUGGESTIONS]:
            if (match := nearest(name, others)) is not None:
                similar[name] = match
    return similar


def positional_hint(expected: int, record: Record) -> str:
    """The hint for a positional record with another number of tensors."""
    return (
        f"The record is positional: {len(record.tensors)} tensors without names, matched in order; the module expects "
        f"{expected}. It was written by a module of another structure."
    )


def prefix_hint(missing: list[str], unexpected: list[str]) -> str | None:
    """The hint if one side has all names of the other below a prefix."""
    if not missing or not unexpected:
        return None
    first, missing_names, unexpected_names = missing[0], set(missing), set(unexpected)
    for path in unexpected:
        prefix = path.removesuffix("." + first)
        if prefix != path and all(f"{prefix}.{name}" in unexpected_names for name in missing):
            return f"The record has all missing entries below {prefix!r}: load record.select({prefix!r})."
    for path in missing:
        prefix = path.removesuffix("." + unexpected[0])
        if prefix != path and all(f"{prefix}.{name}" in missing_names for name in unexpected):
            return f"The record lacks the prefix {prefix!r}: load Record.merge({{{prefix!r}: record}})."
    return None


def shift_hint(expected: Specs, recorded: Specs) -> tuple[str, dict[str, str]] | None:
    """The hint if only the indices of a list's layers differ; and path found -> path expected.

    >>> text, moved = shift_hint({"layers.0.w": 1, "layers.2.w": 2}, {"layers.0.w": 1, "layers.1.w": 2})
    >>> moved
    {'layers.1.w': 'layers.2.w'}
    """
    remaps: list[str] = []
    moved: dict[str, str] = {}
    first = ""
    for prefix in _lists(expected):
        saved, own = _numbered(recorded, prefix), _numbered(expected, prefix)
        if len(saved) != len(own) or set(saved) == set(own):
            continue
        numbers = dict(zip(sorted(saved), sorted(own), strict=True))
        if any(saved[old] != own[new] for old, new in numbers.items()):
            continue
        first = first or prefix
        numbers = {old: new for old, new in numbers.items() if old != new}
        remaps.append(_remap(prefix, numbers))
        for old, new in numbers.items():
            moved |= {f"{prefix}.{old}.{name}": f"{prefix}.{new}.{name}" for name in saved[old]}
    if not remaps:
        return None
    text = (
        f"The layers in `{first}` have other indices in the record, as if a layer without parameters was inserted or "
        f"removed (named layers would keep their names): load it with remap={{{', '.join(remaps)}}}."
    )
    return text, moved


def _lists(expected: Specs) -> Iterable[str]:
    """The paths of lists, outer ones first; only those that need no escaping in a replacement."""
    prefixes: dict[str, None] = {}
    for path in expected:
        parts = path.split(".")
        for index, part in enumerate(parts[:-1]):
            if index and _is_number(part) and re.fullmatch(r"[\w.]+", prefix := ".".join(parts[:index])):
                prefixes[prefix] = None
                if len(prefixes) == _MAX_LISTS:
                    return prefixes
    return prefixes


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdecimal() and len(part) < 10


def _numbered(specs: Specs, prefix: str) -> dict[int, dict[str, Any]]:
    """The content of a list: index -> rest of the path -> spec."""
    by_index: dict[int, dict[str, Any]] = {}
    start = prefix + "."
    for path, spec in specs.items():
        if path.startswith(start):
            number, _, name = path.removeprefix(start).partition(".")
            if _is_number(number) and name:
                by_index.setdefault(int(number), {})[name] = spec
    return by_index


def _remap(prefix: str, numbers: dict[int, int]) -> str:
    """The Python code of the items of a `remap` that changes indices."""
    pattern = rf"^{re.escape(prefix)}\."
    if len(numbers) > _MAX_PAIRS:
        return rf'r"{pattern}(\d+)\.": lambda m: "{prefix}.%d." % {numbers}.get(int(m[1]), int(m[1]))'
    # Replacements are applied in order. To avoid matching earlier results, increasing indices go from last to first.
    up = sorted((old for old, new in numbers.items() if new > old), reverse=True)
    down = sorted(old for old, new in numbers.items() if new < old)
    return ", ".join(f'r"{pattern}{old}\\.": "{prefix}.{numbers[old]}."' for old in (*up, *down))
