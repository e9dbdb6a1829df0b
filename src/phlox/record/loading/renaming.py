"""Other names for the entries of a record: `remap`, as `Module.load_record` takes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias, cast

from phlox.errors import RecordError
from phlox.record.record import Entry, Record

Remap: TypeAlias = Mapping[str, str | Callable[[re.Match[str]], str]] | Callable[[str], str | None]
"""Regular expression -> replacement (as `re.sub` takes it), in order; or a function: path -> path, None to drop it."""


class Renamed(NamedTuple):
    """A record under other names, and what became of the old ones."""

    record: Record
    origin: dict[str, str]
    """New path (of entries and of aliases) -> the path in the record as it was."""
    dropped: list[str]
    unused: list[str]
    """Regular expressions that no path matched."""


def renamed(record: Record, remap: Remap) -> Record:
    """`record` with every path, aliases included, replaced by what `remap` makes of it; tensors are not read.

    Args:
        record: not a positional one, which has no names.
        remap: regular expression -> replacement, each in turn applied to the whole path by `re.sub`; or a function
            path -> path, in which None drops the entry. An alias of an entry that is dropped takes its place.

    Raises RecordError where two entries get one path, naming both, and for a remap that gives no path.

    >>> import numpy as np
    >>> record = Record({"module.weight": np.zeros(2), "module.step": 3})
    >>> renamed(record, {r"^module\\.": ""}).paths()
    ['weight', 'step']
    >>> renamed(record, lambda path: None if path.endswith("step") else path).paths()
    ['module.weight']
    """
    return rename(record, remap).record


def rename(record: Record, remap: Remap) -> Renamed:
    """See `renamed`; told in full."""
    if record.positional:
        raise RecordError("remap: a positional record has no names to replace")
    unused: set[str] = set()
    new = _function(remap, unused)
    entries: dict[str, Entry] = {}
    aliases: dict[str, str] = {}
    origin: dict[str, str] = {}
    dropped: list[str] = []
    home: dict[str, str] = {}  # path of an entry in `record` -> its new path
    for path in (*record, *record.aliases):
        target = _checked(new(path), path)
        source = record.aliases.get(path, path)
        if target is None:
            dropped.append(path)
        elif target not in origin:
            origin[target] = path
            if home.setdefault(source, target) == target:
                entries[target] = record[source]
            else:
                aliases[target] = home[source]
        elif record.aliases.get(origin[target], origin[target]) != source:
            raise RecordError(
                f"remap: {origin[target]!r} and {path!r} are two entries of the record, and both become {target!r}; "
                "drop one of them (a function that gives None for it), or make their names differ"
            )
    unreadable: dict[str, str] = {}
    for path, why in record.unreadable.items():
        # What cannot be read need not have a path of names joined by dots, and gives way to what can be.
        target = _checked(new(path), path, same=path)
        if target is None:
            dropped.append(path)
        elif target not in origin:
            unreadable.setdefault(target, why)
    result = Record(entries, record.metadata, aliases=aliases, header=record.header, unreadable=unreadable)
    return Renamed(result, origin, dropped, sorted(unused))


def _function(remap: Remap, unused: set[str]) -> Callable[[str], Any]:
    if not isinstance(remap, Mapping):
        if not callable(remap):
            raise RecordError(
                f"remap: expected a dict of regular expression -> replacement, or a function path -> path, "
                f"got {remap!r}"
            )
        return remap
    given = cast("Mapping[str, str | Callable[[re.Match[str]], str]]", remap)
    rules = [(_compiled(pattern), replacement) for pattern, replacement in given.items()]
    unused.update(given)

    def new(path: str) -> str:
        for pattern, replacement in rules:
            try:
                path, count = pattern.subn(replacement, path)
            except Exception as error:
                raise RecordError(
                    f"remap: the replacement {replacement!r} of {pattern.pattern!r} fails at {path!r}: {error}"
                ) from error
            if count:
                unused.discard(pattern.pattern)
        return path

    return new


def _compiled(pattern: object) -> re.Pattern[str]:
    try:
        return re.compile(pattern)  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnknownVariableType]
    except (re.error, TypeError) as error:
        raise RecordError(f"remap: {pattern!r} is no regular expression: {error}") from None


def _checked(target: Any, path: str, same: str | None = None) -> str | None:
    if target is None or target == same or (isinstance(target, str) and target and all(target.split("."))):
        return target
    raise RecordError(
        f"remap: {path!r} becomes {target!r}, which is no path (names joined by dots, none of them empty); "
        "a function drops an entry by giving None"
    )
