"""Records and reports about them in notebooks; lazy tensors stay unread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phlox.host.html import Cell, bounded, counted, facts, fold, header, paragraph, representation, short
from phlox.host.units import size as bytes_text
from phlox.record.entry import LazyTensor, TensorEntry
from phlox.record.inspection.comparison import RecordDifference
from phlox.record.loading.report import LoadReport
from phlox.record.record import Record

_LONGEST = 200
"""The most letters of a path, which may come from an untrusted file."""


def html_of_record(record: Record) -> str:
    """The representation of a record."""
    return representation(record, _record)


def html_of_entry(entry: TensorEntry | LazyTensor) -> str:
    """The representation of a tensor of a record."""
    return representation(entry, _entry)


def html_of_report(report: LoadReport) -> str:
    """The HTML of a load report: the loaded entries, and those that do not fit."""
    return representation(report, _report)


def html_of_difference(found: RecordDifference) -> str:
    """The representation of the differences of two records."""
    return representation(found, _difference)


def _record(record: Record) -> str:
    count = counted(len(record), "entry", "entries")
    badges = [(f"{len(record.unreadable):,} cannot be read", "bad")] if record.unreadable else []
    if record.positional:
        badges.append(("without names", ""))
    head = header("Record", count, f"{bytes_text(record.nbytes)} of tensors", badges=badges)
    rows: list[list[str | Cell]] = []
    for path in record:
        entry = record[path]
        if isinstance(entry, TensorEntry):
            tensor = entry.tensor
            rows.append([_path(path), str(tensor.dtype), str(tensor.shape), bytes_text(tensor.nbytes)])
        else:
            rows.append([_path(path), "value", Cell(short(entry), code=True), ""])
    entries = bounded(["path", "type", "shape or value", "bytes"], rows, left=3)
    return (
        f"<div>{head}</div>{entries}"
        + _pairs("other names of tensors", record.aliases)
        + _pairs("metadata", record.metadata)
        + _pairs("cannot be read", record.unreadable)
    )


def _path(path: str) -> Cell:
    return Cell(path if len(path) <= _LONGEST else f"{path[:_LONGEST]}...", code=True)


def _pairs(what: str, pairs: Mapping[str, str]) -> str:
    rows = [[_path(name), Cell(text[:_LONGEST])] for name, text in pairs.items()]
    return fold(f"{what}: {len(rows):,}", bounded(["", ""], rows, left=2)) if rows else ""


def _entry(entry: TensorEntry | LazyTensor) -> str:
    tensor = entry.tensor if isinstance(entry, TensorEntry) else entry
    cast = f"stored as {tensor.source_dtype}" if tensor.is_cast else ""
    pairs = [("stored at", tensor.path), ("id", (entry.id or "") if isinstance(entry, TensorEntry) else "")]
    head = header(
        type(entry).__name__, str(tensor.dtype), str(tensor.shape), bytes_text(tensor.nbytes), cast,
        badges=[("not read", "")],
    )  # fmt: skip
    return f"<div>{head}</div>{facts([(name, text[:_LONGEST]) for name, text in pairs])}"


def _report(report: LoadReport) -> str:
    badges = [("loaded" if report.done and report.ok else "fits", "good") if report.ok else ("does not fit", "bad")]
    head = header("LoadReport", f"entries that fit: {len(report.matches):,}", badges=badges)
    wrong = [
        ("missing from the record", [[path] for path in report.missing], [""]),
        ("in the record, but not in the module", [[path] for path in report.unexpected], [""]),
        ("of another shape", _differences(report.misshapen), ["", "record", "module"]),
        ("of another kind", _differences(report.wrong_kind), ["", "record", "module"]),
        ("tied in the module alone", _differences(report.untied), ["", "record", "module"]),
        ("cannot be read", _items(report.unreadable), ["", ""]),
        ("refused", _items(report.refused), ["", ""]),
    ]
    more = [
        ("cast", _differences(report.cast), ["", "record", "module"]),
        ("kept as they are", _items(report.kept), ["", ""]),
        ("ignored in the record", _items(report.ignored), ["", ""]),
        ("under other names", _items(report.remapped), ["record", "module"]),
        ("tied", _items(report.tied), ["", ""]),
        ("load by themselves", [[path] for path in report.by_themselves], [""]),
        ("loaded from" if report.done else "would be loaded from", _items(report.matches), ["module", "record"]),
    ]
    meant = [("probably meant", _items(report.suggestions), ["", ""])]
    hint = "".join(map(paragraph, (report.hint or "").split("\n")))
    structure = paragraph("the record was written by a module of another structure") if report.other_structure else ""
    shown = [_section(*one, is_open=True) for one in (*wrong, *meant)] + [_section(*one) for one in more]
    return f"<div>{head}</div>{hint}{structure}{''.join(shown)}"


def _differences(found: Sequence[Any]) -> list[list[str]]:
    return [[one.path, str(one.found), str(one.expected)] for one in found]


def _items(pairs: Mapping[str, str]) -> list[list[str]]:
    return [[name, text] for name, text in pairs.items()]


def _section(what: str, rows: Sequence[Sequence[str]], heads: Sequence[str], *, is_open: bool = False) -> str:
    if not rows:
        return ""
    cells = [[_path(text) for text in row] for row in rows]
    return fold(f"{what}: {len(rows):,}", bounded(heads, cells, left=len(heads)), is_open=is_open)


def _difference(found: RecordDifference) -> str:
    badges = [("identical", "good") if found.identical else ("equal", "good") if found.ok else ("different", "bad")]
    head = header("RecordDifference", found.summary(), badges=badges)
    names = ["", "first", "second"]
    tensors = [
        [one.path, "" if one.largest is None else f"{one.largest.amount:.4g}", f"{one.different:,} of {one.size:,}"]
        for one in found.tensors
    ]
    parts = [
        _section("tensors of other values", tensors, ["", "largest difference", "elements that differ"], is_open=True),
        *(
            _section(what, [[one.path, short(one.first), short(one.second)] for one in changes], names)
            for what, changes in (
                ("other values", found.values), ("other shapes", found.shapes), ("other kinds", found.kinds),
                ("other precisions", found.precisions), ("other metadata", found.metadata),
                ("cannot be read", found.unreadable),
            )
        ),
        _section("only in the first", [[path] for path in found.only_first], [""]),
        _section("only in the second", [[path] for path in found.only_second], [""]),
    ]  # fmt: skip
    return f"<div>{head}</div>{''.join(parts)}"
