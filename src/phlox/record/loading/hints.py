"""What was probably meant, where names in a record are not those expected: near misses, prefixes, shifted numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from phlox.record.names import nearest

if TYPE_CHECKING:
    from phlox.record.record import Record

Specs: TypeAlias = Mapping[str, Any]
"""Path -> what is there: equal for what fits."""

_MAX_SUGGESTIONS = 20
_MAX_LISTS = 50
_MAX_PAIRS = 4


def suggestions(missing: list[str], unexpected: list[str]) -> dict[str, str]:
    """Missing or unexpected name -> the one on the other side that it resembles."""
    found: dict[str, str] = {}
    for names, others in ((missing, unexpected), (unexpected, missing)):
        for name in names[:_MAX_SUGGESTIONS]:
            if (meant := nearest(name, others)) is not None:
                found[name] = meant
    return found


def positional_hint(expected: int, record: Record) -> str:
    """What to say of a positional record that has another number of tensors."""
    return (
        f"The record is positional: {len(record.tensors)} tensors without names, matched in order; the module expects "
        f"{expected}. It was written by a module of another structure."
    )


def prefix_hint(missing: list[str], unexpected: list[str]) -> str | None:
    """What to say where one side has all names of the other below a prefix."""
    if not missing or not unexpected:
        return None
    first, lacking, surplus = missing[0], set(missing), set(unexpected)
    for path in unexpected:
        prefix = path.removesuffix("." + first)
        if prefix != path and all(f"{prefix}.{name}" in surplus for name in missing):
            return f"The record has all that is missing below {prefix!r}: load record.select({prefix!r})."
    for path in missing:
        prefix = path.removesuffix("." + unexpected[0])
        if prefix != path and all(f"{prefix}.{name}" in lacking for name in unexpected):
            return f"The record lacks the prefix {prefix!r}: load Record.merge({{{prefix!r}: record}})."
    return None


def shift_hint(expected: Specs, found: Specs) -> tuple[str, dict[str, str]] | None:
    """What to say where the numbers of a list's layers differ, but not the layers; and path found -> path expected.

    >>> text, moved = shift_hint({"layers.0.w": 1, "layers.2.w": 2}, {"layers.0.w": 1, "layers.1.w": 2})
    >>> moved
    {'layers.1.w': 'layers.2.w'}
    """
    remaps: list[str] = []
    moved: dict[str, str] = {}
    first = ""
    for prefix in _lists(expected):
        theirs, ours = _numbered(found, prefix), _numbered(expected, prefix)
        if len(theirs) != len(ours) or set(theirs) == set(ours):
            continue
        numbers = dict(zip(sorted(theirs), sorted(ours), strict=True))
        if any(theirs[old] != ours[new] for old, new in numbers.items()):
            continue
        first = first or prefix
        numbers = {old: new for old, new in numbers.items() if old != new}
        remaps.append(_remap(prefix, numbers))
        for old, new in numbers.items():
            moved |= {f"{prefix}.{old}.{rest}": f"{prefix}.{new}.{rest}" for rest in theirs[old]}
    if not remaps:
        return None
    text = (
        f"The layers in `{first}` have other numbers in the record, as when one without parameters was put in or taken "
        f"out (layers with names would keep theirs): load it with remap={{{', '.join(remaps)}}}."
    )
    return text, moved


def _lists(expected: Specs) -> Iterable[str]:
    """The paths of lists, outer ones first; only those whose names need no escaping in a replacement."""
    found: dict[str, None] = {}
    for path in expected:
        parts = path.split(".")
        for place, part in enumerate(parts[:-1]):
            if place and _is_number(part) and re.fullmatch(r"[\w.]+", prefix := ".".join(parts[:place])):
                found[prefix] = None
                if len(found) == _MAX_LISTS:
                    return found
    return found


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdecimal() and len(part) < 10


def _numbered(specs: Specs, prefix: str) -> dict[int, dict[str, Any]]:
    """What lies in a list: number -> rest of the path -> what is there."""
    found: dict[int, dict[str, Any]] = {}
    start = prefix + "."
    for path, spec in specs.items():
        if path.startswith(start):
            number, _, rest = path.removeprefix(start).partition(".")
            if _is_number(number) and rest:
                found.setdefault(int(number), {})[rest] = spec
    return found


def _remap(prefix: str, numbers: dict[int, int]) -> str:
    """The items of a `remap` that gives other numbers, as Python."""
    pattern = rf"^{re.escape(prefix)}\."
    if len(numbers) > _MAX_PAIRS:
        return rf'r"{pattern}(\d+)\.": lambda m: "{prefix}.%d." % {numbers}.get(int(m[1]), int(m[1]))'
    # One replacement comes after the other: so that none takes up what another has made, the last goes up first.
    up = sorted((old for old, new in numbers.items() if new > old), reverse=True)
    down = sorted(old for old, new in numbers.items() if new < old)
    return ", ".join(f'r"{pattern}{old}\\.": "{prefix}.{numbers[old]}."' for old in (*up, *down))
