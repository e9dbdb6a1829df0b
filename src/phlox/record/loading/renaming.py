"""Renaming the entries of a record: `remap`, as in `Module.load_record`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias, cast

from phlox.errors import RecordError
from phlox.record.record import Entry, Record

Remap: TypeAlias = Mapping[str, str | Callable[[re.Match[str]], str]] | Callable[[str], str | None]
"""Regular expression -> replacement (as in `re.sub`), in order; or a function path -> path, or None to drop it."""


class Renamed(NamedTuple):
    """A renamed record, and the mapping of names."""

    record: Record
    origin: dict[str, str]
    """New path (of entries and aliases) -> the path in the original record."""
    dropped: list[str]
    unused: list[str]
    """Regular expressions that no path matched."""


def renamed(record: Record, remap: Remap) -> Record:
    """Rename the paths of `record`, including aliases, by `remap`; tensors are not read.

    Args:
        record: a record with names, not a positional one.
        remap: regular expression -> replacement, all applied in order to the path by `re.sub`; or a function path ->
            path, where None drops the entry. If an entry is dropped, its alias takes its place.

    Raises RecordError if two entries get one path (naming both), and if remap gives an invalid path.

    >>> import numpy as np
    >>> record = Record({"module.weight": np.zeros(2), "module.step": 3})
    >>> renamed(record, {r"^module\\.": ""}).paths()
    ['weight', 'step']
    >>> renamed(record, lambda path: None if path.endswith("step") else path).paths()
    ['module.weight']
    """
    return rename(record, remap).record


def rename(record: Record, remap: Remap) -> Renamed:
    """Like `renamed`, with the mapping of names."""
    if record.positional:
        raise RecordError("remap: a positional record has no names to replace")
    unused: set[str] = set()
    new = _function(remap, unused)
    entries: dict[str, Entry] = {}
    aliases: dict[str, str] = {}
    origin: dict[str, str] = {}
    dropped: list[str] = []
    new_path_of: dict[str, str] = {}  # path of an entry in `record` -> its new path
    for path in (*record, *record.aliases):
        target = _checked(new(path), path)
        source = record.aliases.get(path, path)
        if target is None:
            dropped.append(path)
        elif target not in origin:
            origin[target] = path
            if new_path_of.setdefault(source, target) == target:
                entries[target] = record[source]
            else:
                aliases[target] = new_path_of[source]
        elif record.aliases.get(origin[target], origin[target]) != source:
            raise RecordError(
                f"remap: {origin[target]!r} and {path!r} are two entries of the record, and both become {target!r}; "
                "drop one of them (a function that gives None for it), or make their names differ"
            )
    unreadable: dict[str, str] = {}
    for path, why in record.unreadable.items():
        # Unreadable entries need not have a valid path, and yield to readable ones.
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
    replacements = cast("Mapping[str, str | Callable[[re.Match[str]], str]]", remap)
    rules = [(_compiled(pattern), replacement) for pattern, replacement in replacements.items()]
    unused.update(replacements)

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
        raise RecordError(f"remap: {pattern!r} is not a regular expression: {error}") from None


def _checked(target: Any, path: str, same: str | None = None) -> str | None:
    if target is None or target == same or (isinstance(target, str) and target and all(target.split("."))):
        return target
    raise RecordError(
        f"remap: {path!r} becomes {target!r}, which is not a path (names joined by dots, none of them empty); "
        "to drop an entry, return None from a function"
    )
