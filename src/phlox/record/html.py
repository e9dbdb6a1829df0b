"""Records and reports about them in notebooks; lazy tensors stay unread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phlox.host.page import MOST_ROWS, Cell, Names, Page, Part, Table, facts
from phlox.host.text import count, short, size
from phlox.record.entry import LazyTensor, TensorEntry
from phlox.record.inspection.comparison import RecordDifference
from phlox.record.loading.report import LoadReport
from phlox.record.record import Record

_LONGEST = 200
"""The most letters of a path, which may come from an untrusted file."""


def page_of_record(record: Record, most: int = MOST_ROWS) -> Page:
    """The entries of a record."""
    badges = [(f"{len(record.unreadable):,} cannot be read", "bad")] if record.unreadable else []
    if record.positional:
        badges.append(("without names", ""))
    rows: list[list[str | Cell]] = []
    for path in record.paths()[:most]:
        entry = record[path]
        if isinstance(entry, TensorEntry):
            tensor = entry.tensor
            rows.append([_path(path), str(tensor.dtype), str(tensor.shape), size(tensor.nbytes)])
        else:
            rows.append([_path(path), "value", Cell(short(entry), code=True), ""])
    parts = [
        Table(["path", "type", "shape or value", "bytes"], rows, 3, more=len(record) - len(rows)),
        _section("other names of tensors", _items(record.aliases), ["", ""], most),
        _section("metadata", _items(record.metadata), ["", ""], most),
        _section("cannot be read", _items(record.unreadable), ["", ""], most),
    ]
    said = [count(len(record), "entry", "entries"), f"{size(record.nbytes)} of tensors"]
    return Page("Record", said, parts, badges)


def page_of_entry(entry: TensorEntry | LazyTensor) -> Page:
    """A tensor of a record."""
    tensor = entry.tensor if isinstance(entry, TensorEntry) else entry
    cast = f"stored as {tensor.source_dtype}" if tensor.is_cast else ""
    pairs = [("stored at", tensor.path), ("id", (entry.id or "") if isinstance(entry, TensorEntry) else "")]
    said = [str(tensor.dtype), str(tensor.shape), size(tensor.nbytes), cast]
    return Page(type(entry).__name__, said, [facts([(name, text[:_LONGEST]) for name, text in pairs])],
                [("not read", "")])  # fmt: skip


def page_of_report(report: LoadReport) -> Page:
    """A load report: the loaded entries, and those that do not fit."""
    badges = [("loaded" if report.done and report.ok else "fits", "good") if report.ok else ("does not fit", "bad")]
    wrong: list[tuple[str, Sequence[Sequence[str]], Sequence[str]]] = [
        ("of another shape", _differences(report.misshapen), ["", "record", "module"]),
        ("of another kind", _differences(report.wrong_kind), ["", "record", "module"]),
        ("tied in the module alone", _differences(report.untied), ["", "record", "module"]),
        ("cannot be read", _items(report.unreadable), ["", ""]),
        ("refused", _items(report.refused), ["", ""]),
        ("probably meant", _items(report.suggestions), ["", ""]),
    ]
    more: list[tuple[str, Sequence[Sequence[str]], Sequence[str]]] = [
        ("cast", _differences(report.cast), ["", "record", "module"]),
        ("kept as they are", _items(report.kept), ["", ""]),
        ("ignored in the record", _items(report.ignored), ["", ""]),
        ("under other names", _items(report.remapped), ["record", "module"]),
        ("tied", _items(report.tied), ["", ""]),
        ("loaded from" if report.done else "would be loaded from", _items(report.matches), ["module", "record"]),
    ]
    parts: list[Part] = [
        *(report.hint or "").split("\n"),
        "the record was written by a module of another structure" if report.other_structure else "",
        Names("missing from the record", report.missing, is_open=True),
        Names("in the record, but not in the module", report.unexpected, is_open=True),
        *[_section(*one, is_open=True) for one in wrong],
        *[_section(*one) for one in more],
        Names("load by themselves", report.by_themselves),
    ]
    return Page("LoadReport", [f"entries that fit: {len(report.matches):,}"], parts, badges)


def page_of_difference(found: RecordDifference) -> Page:
    """The differences of two records."""
    badges = [("identical", "good") if found.identical else ("equal", "good") if found.ok else ("different", "bad")]
    tensors = [
        [one.path, "" if one.largest is None else f"{one.largest.amount:.4g}", f"{one.different:,} of {one.size:,}"]
        for one in found.tensors
    ]
    changes = {
        "other values": found.values, "other shapes": found.shapes, "other kinds": found.kinds,
        "other precisions": found.precisions, "other metadata": found.metadata, "cannot be read": found.unreadable,
    }  # fmt: skip
    parts = [
        _section("tensors of other values", tensors, ["", "largest difference", "elements that differ"], is_open=True),
        *[
            _section(what, [[one.path, short(one.first), short(one.second)] for one in some], ["", "first", "second"])
            for what, some in changes.items()
        ],
        Names("only in the first", found.only_first),
        Names("only in the second", found.only_second),
    ]
    return Page("RecordDifference", [found.summary()], parts, badges)


def _path(path: str) -> Cell:
    return Cell(path if len(path) <= _LONGEST else f"{path[:_LONGEST]}...", code=True)


def _differences(found: Sequence[Any]) -> list[list[str]]:
    return [[one.path, str(one.found), str(one.expected)] for one in found]


def _items(pairs: Mapping[str, str]) -> list[list[str]]:
    return [[name, text] for name, text in pairs.items()]


def _section(
    what: str, rows: Sequence[Sequence[str]], heads: Sequence[str], most: int = MOST_ROWS, *, is_open: bool = False
) -> Page:
    cells = [[_path(text) for text in row] for row in rows]
    return Page(f"{what}: {len(rows):,}", parts=[Table(heads, cells, len(heads), most)], is_open=is_open)
