"""Comparison of two records, entry by entry, with two tensors in memory at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from phlox.errors import RecordError
from phlox.host.text import html_by
from phlox.record.dtypes import SHORT_NAMES
from phlox.record.entry import TensorEntry
from phlox.record.inspection.tensor_difference import TensorDifference, Tolerance, tensor_difference
from phlox.record.names import fingerprint_of, nearest
from phlox.record.record import Entry, Record
from phlox.record.values import Value

_MAX_SUGGESTIONS = 20
_HEX_ID = re.compile(r"\.[0-9a-f]{32}\.")


class Change(NamedTuple):
    """The two shapes, kinds, values, ... of a path in the first and the second record; None for none."""

    path: str
    first: Any
    second: Any


@dataclass(slots=True)
class RecordDifference:
    """The result of `difference`; `ok` says whether all entries agree, `identical` whether everything else does too."""

    equal: int = 0
    """The number of entries that are in both records and agree within the tolerance."""
    only_first: list[str] = field(default_factory=list[str])
    """Paths that the second record lacks."""
    only_second: list[str] = field(default_factory=list[str])
    """Paths that the first record lacks."""
    unreadable: list[Change] = field(default_factory=list[Change])
    """Entries that are unreadable in a record: the reason in each record, or None if it is readable there."""
    suggestions: dict[str, str] = field(default_factory=dict[str, str])
    """Path missing in one record -> the path with the same id there, or a similar name."""
    kinds: list[Change] = field(default_factory=list[Change])
    """Entries of different kinds; a plain value has the kind "value"."""
    shapes: list[Change] = field(default_factory=list[Change])
    values: list[Change] = field(default_factory=list[Change])
    """Plain values that differ."""
    tensors: list[TensorDifference] = field(default_factory=list[TensorDifference])
    """Tensors that differ by more than the tolerance, the largest difference first."""
    within: list[TensorDifference] = field(default_factory=list[TensorDifference])
    """Tensors that differ within the tolerance, the largest difference first."""
    precisions: list[Change] = field(default_factory=list[Change])
    """Tensors of different dtypes of one kind."""
    ids: list[Change] = field(default_factory=list[Change])
    renamed: dict[str, str] = field(default_factory=dict[str, str])
    """Id of a parameter in the second record -> its id in the first, if entry names contain ids.

    The names of optimizer states contain ids; the states of one parameter in two runs are compared with each other.
    """
    aliases: list[Change] = field(default_factory=list[Change])
    """Alias -> its target in each record, None if it is not an alias there."""
    metadata: list[Change] = field(default_factory=list[Change])
    by_position: bool = False
    """Whether a record has no names, so that entries were compared in order."""
    other_names: bool = False
    """Whether a record without names is known to have had other names than the other record."""

    @property
    def ok(self) -> bool:
        """Whether the records have the same entries, with the same values within the tolerance, at any precision."""
        unread = self.unreadable
        return not (
            unread or self.only_first or self.only_second or self.kinds or self.shapes or self.values or self.tensors
        )

    @property
    def identical(self) -> bool:
        """Whether precisions, ids, aliases, metadata and all elements are equal too."""
        return self.ok and not (
            self.within
            or self.precisions
            or self.ids
            or self.renamed
            or self.aliases
            or self.metadata
            or self.other_names
        )

    def summary(self, first: str = "the first", second: str = "the second") -> str:
        """One line with the counts of entries that agree and that differ in each way; arguments name the records."""
        counts = [
            (len(self.only_first), f"only in {first}"),
            (len(self.only_second), f"only in {second}"),
            (len(self.unreadable), "that cannot be read"),
            (len(self.kinds), "of another kind"),
            (len(self.shapes), "of another shape"),
            (len(self.values) + len(self.tensors), "of another value"),
        ]
        agreeing = "1 entry agrees" if self.equal == 1 else f"{self.equal:,} entries agree"
        return ", ".join([agreeing, *(f"{count:,} {text}" for count, text in counts if count)])

    def __str__(self) -> str:
        return self.summary()

    _repr_html_ = html_by("phlox.record.pages", "page_of_difference")


def difference(first: Record, second: Record, *, rtol: float = 0.0, atol: float = 0.0) -> RecordDifference:
    """Compare two records; reads two tensors at a time.

    Entries are compared by name, in any order; if a record is positional, by order. Two elements agree if they are
    equal, both NaN, or |a - b| <= atol + rtol * max(|a|, |b|). Floats (also in plain values) are compared in float64,
    so a file at half precision can be compared with one at full precision. Ints are compared exactly.

    Parameter ids differ from run to run, and optimizer states have them in their names. Two states belong to one
    parameter if models in the records have it at the same path; without models, if the states match in order and
    structure.

    Raises RecordError if a tolerance is negative or not finite, or if a tensor cannot be read.

    >>> import numpy as np
    >>> first = Record({"weight": np.array([1.0, 2.0, 4.0]), "step": 7})
    >>> second = Record({"weight": np.array([1.0, 2.5, 4.0]), "step": 7, "bias": np.zeros(2)})
    >>> found = difference(first, second)
    >>> found.ok, found.only_second, found.tensors[0].largest
    (False, ['bias'], Extreme(amount=0.5, at=(1,), first=2.0, second=2.5))
    >>> print(difference(first, second, atol=0.5))
    2 entries agree, 1 only in the second
    """
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        if not 0 <= tolerance < math.inf:
            raise RecordError(f"{name}={tolerance}: a tolerance must be finite and not negative")
    fingerprints = [name for name in map(_fingerprint, (first, second)) if name is not None]
    result = RecordDifference(
        by_position=first.positional != second.positional,
        other_names=(first.positional or second.positional) and len(set(fingerprints)) > 1,
    )
    if result.by_position:
        first, second = _named(first, second), _named(second, first)
    else:
        result.renamed = _same_parameters(first, second)
        second = _with_ids(second, result.renamed)
    pairs: dict[tuple[str, str], str] = {}
    for name in (*first, *first.aliases):
        if name in second:
            pairs.setdefault((first.aliases.get(name, name), second.aliases.get(name, name)), name)
    _note_names(first, second, pairs, result)
    for (d, other), name in pairs.items():
        result.equal += _compare(name, first[d], second[other], result, (rtol, atol))
    for differences in (result.tensors, result.within):
        differences.sort(key=lambda d: (-d.non_finite, -d.largest.amount if d.largest else 0.0))
    return result


def _same_parameters(first: Record, second: Record) -> dict[str, str]:
    """Map the ids in the names of the second record to those of the same parameters in the first."""
    named = [{part for path in record for part in path.split(".")} for record in (first, second)]
    old_ids: dict[str, str] = {}
    for path, entry in first.tensors.items():
        other = second.tensors.get(second.aliases.get(path, path))
        if entry.id is None or other is None or other.id is None or entry.id == other.id:
            continue
        if entry.id in named[0] and other.id in named[1]:
            old_ids.setdefault(other.id, entry.id)
    if len(set(old_ids.values())) < len(old_ids):  # tied in one record only
        return {}
    for prefix in dict.fromkeys([*_id_folders(first), *_id_folders(second)]):
        first_states, second_states = _structures(first, prefix), _structures(second, prefix)
        left = [id for id in first_states if id not in second_states and id not in old_ids.values()]
        right = [id for id in second_states if id not in first_states and id not in old_ids]
        if [first_states[id] for id in left] == [second_states[id] for id in right]:
            old_ids |= dict(zip(right, left, strict=True))
    return old_ids


def _id_folders(record: Record) -> Iterator[str]:
    """The paths whose children are named by ids."""
    for path in record:
        entry = record.tensors.get(path)
        if entry is not None and entry.id is not None and f".{entry.id}." in path:
            yield path.partition(f".{entry.id}.")[0]
        elif match := _HEX_ID.search(path):
            yield path[: match.start()]


def _structures(record: Record, home: str) -> dict[str, list[Any]]:
    """The structure below each id: names, kinds and shapes."""
    structures: dict[str, list[Any]] = {}
    for path in record:
        if path.startswith(f"{home}."):
            id, _, name = path.removeprefix(f"{home}.").partition(".")
            entry = record.tensors.get(path)
            spec = (name,) if entry is None else (name, entry.tensor.kind, entry.tensor.shape)
            structures.setdefault(id, []).append(spec)
    return structures


def _with_ids(record: Record, ids: Mapping[str, str]) -> Record:
    """A record with replaced ids, in names and in entries."""
    if not ids:
        return record

    def new(path: str) -> str:
        return ".".join([ids.get(part, part) for part in path.split(".")])

    entries: dict[str, Entry] = {}
    for path in record:
        entry = record[path]
        if isinstance(entry, TensorEntry) and new(path) != path and entry.id is not None:
            entry = TensorEntry(entry.tensor, ids.get(entry.id, entry.id))
        entries[new(path)] = entry
    if len(entries) < len(record):
        return record
    aliases = {new(alias): new(path) for alias, path in record.aliases.items()}
    return Record(entries, record.metadata, aliases=aliases, header=record.header)


def _fingerprint(record: Record) -> str | None:
    """The fingerprint of the names of a record, or of its omitted names, if stored."""
    return record.fingerprint if record.positional else fingerprint_of(record)


def _named(record: Record, other: Record) -> Record:
    """A positional record with the names of another, in order; surplus entries keep their position as name."""
    if not record.positional:
        return Record({path: record[path] for path in record}, record.metadata)
    names = other.paths()
    names += [f"[{position}]" for position in range(len(names), len(record))]
    return Record(dict(zip(names, (record[path] for path in record), strict=False)), record.metadata)


def _note_names(first: Record, second: Record, pairs: Iterable[tuple[str, str]], result: RecordDifference) -> None:
    # An entry with another name in the other record is not missing there.
    compared = ({name for name, _ in pairs}, {other for _, other in pairs})
    result.unreadable += _changes(first.unreadable, second.unreadable, also_same=True)
    result.only_first += [p for p in first if p not in compared[0] and p not in second.unreadable]
    result.only_second += [p for p in second if p not in compared[1] and p not in first.unreadable]
    result.suggestions |= _suggestions(result.only_first, first, result.only_second, second)
    result.suggestions |= _suggestions(result.only_second, second, result.only_first, first)
    result.aliases += _changes(first.aliases, second.aliases)
    result.metadata += _changes(first.metadata, second.metadata)


def _suggestions(missing: list[str], record: Record, others: list[str], other: Record) -> dict[str, str]:
    """Likely names, in `other`, of the entries of `record` that it lacks."""
    ids = {_id(other, path): path for path in others}
    suggested: dict[str, str] = {}
    for path in missing[:_MAX_SUGGESTIONS]:
        by_id = None if (id := _id(record, path)) is None else ids.get(id)
        # Prefer names that the other side lacks too: one is then a misspelling of the other.
        if (match := by_id or nearest(path, others) or nearest(path, other)) is not None:
            suggested[path] = match
    return suggested


def _id(record: Record, path: str) -> str | None:
    return record.tensors[path].id if path in record.tensors else None


def _changes(first: Mapping[str, str], second: Mapping[str, str], *, also_same: bool = False) -> list[Change]:
    names = dict.fromkeys((*first, *second))
    changes = [Change(name, first.get(name), second.get(name)) for name in names]
    return [change for change in changes if also_same or change.first != change.second]


def _compare(path: str, first: Entry, second: Entry, result: RecordDifference, tolerance: Tolerance) -> bool:
    if not isinstance(first, TensorEntry) or not isinstance(second, TensorEntry):
        kinds = [entry.tensor.kind if isinstance(entry, TensorEntry) else "value" for entry in (first, second)]
        if kinds[0] != kinds[1]:
            result.kinds.append(Change(path, *kinds))
        elif not _same_value(first, second, tolerance):
            result.values.append(Change(path, first, second))
        else:
            return True
        return False
    if first.id != second.id and not result.by_position:
        result.ids.append(Change(path, first.id, second.id))
    a, b = first.tensor, second.tensor
    if a.kind != b.kind:
        result.kinds.append(Change(path, a.kind, b.kind))
        return False
    if a.dtype != b.dtype:
        result.precisions.append(Change(path, SHORT_NAMES[a.dtype], SHORT_NAMES[b.dtype]))
    if a.shape != b.shape:
        result.shapes.append(Change(path, a.shape, b.shape))
        return False
    gap = tensor_difference(path, a, b, tolerance)
    if gap is not None:
        (result.tensors if gap.different else result.within).append(gap)
    return gap is None or not gap.different


def _same_value(first: Any, second: Any, tolerance: Tolerance) -> bool:
    if type(first) is not type(second):
        return False
    if isinstance(first, float):
        if not (math.isfinite(first) and math.isfinite(second)):
            return first == second or (math.isnan(first) and math.isnan(second))
        rtol, atol = tolerance
        return abs(first - second) <= atol + rtol * max(abs(first), abs(second))
    if isinstance(first, list):
        pairs = zip(cast("list[Value]", first), second, strict=False)
        return len(cast("list[Value]", first)) == len(second) and all(_same_value(a, b, tolerance) for a, b in pairs)
    if isinstance(first, dict):
        items = cast("dict[str, Value]", first)
        return items.keys() == second.keys() and all(_same_value(items[k], second[k], tolerance) for k in items)
    return first == second
