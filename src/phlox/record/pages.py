"""Records and reports about them in notebooks; lazy tensors stay unread."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phlox.host.page import MOST_ROWS, Cell, Names, Page, Part, Table, facts
from phlox.host.text import count, short, size
from phlox.record.dtypes import SHORT_NAMES
from phlox.record.entry import LazyTensor, TensorEntry
from phlox.record.inspection.comparison import Change, RecordDifference
from phlox.record.inspection.tensor_difference import TensorDifference
from phlox.record.loading.report import LoadReport
from phlox.record.record import Record

_LONGEST = 200
"""The most letters of a text, which may come from an untrusted file."""


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
            rows.append([Cell(path, code=True), str(tensor.dtype), str(tensor.shape), size(tensor.nbytes)])
        else:
            rows.append([Cell(path, code=True), "value", Cell(short(entry), code=True), ""])
    parts = [
        Table(["path", "type", "shape or value", "bytes"], rows, 3, more=len(record) - len(rows)),
        _section("other names of tensors", _items(record.aliases), ["", ""], most),
        _section("metadata", _items(record.metadata), ["", ""], most),
        _section("cannot be read", _items(record.unreadable), ["", ""], most),
    ]
    facts_ = [count(len(record), "entry", "entries"), f"{size(record.nbytes)} of tensors"]
    return Page("Record", facts_, parts, badges)


def page_of_entry(entry: TensorEntry | LazyTensor) -> Page:
    """A tensor of a record."""
    tensor = entry.tensor if isinstance(entry, TensorEntry) else entry
    cast = f"stored as {tensor.source_dtype}" if tensor.is_cast else ""
    pairs = [("stored at", tensor.path), ("id", (entry.id or "") if isinstance(entry, TensorEntry) else "")]
    facts_ = [str(tensor.dtype), str(tensor.shape), size(tensor.nbytes), cast]
    return Page(type(entry).__name__, facts_, [facts([(name, text[:_LONGEST]) for name, text in pairs])],
                [("not read", "")])  # fmt: skip


def page_of_report(report: LoadReport) -> Page:
    """A load report: the loaded entries, and those that do not fit."""
    badges = [("loaded" if report.done and report.ok else "fits", "good") if report.ok else ("does not fit", "bad")]
    problems: list[tuple[str, Sequence[Sequence[str]], Sequence[str]]] = [
        ("of another shape", _differences(report.misshapen), ["", "record", "module"]),
        ("of another kind", _differences(report.wrong_kind), ["", "record", "module"]),
        ("tied in the module alone", _differences(report.untied), ["", "record", "module"]),
        ("cannot be read", _items(report.unreadable), ["", ""]),
        ("refused", _items(report.refused), ["", ""]),
        ("probably meant", _items(report.suggestions), ["", ""]),
    ]
    notes: list[tuple[str, Sequence[Sequence[str]], Sequence[str]]] = [
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
        *[_section(*section, is_open=True) for section in problems],
        *[_section(*section) for section in notes],
        Names("load by themselves", report.by_themselves),
    ]
    return Page("LoadReport", [f"entries that fit: {len(report.matches):,}"], parts, badges)


def page_of_difference(result: RecordDifference) -> Page:
    """The differences of two records."""
    badges = [("identical", "good") if result.identical else ("equal", "good") if result.ok else ("different", "bad")]
    return Page("RecordDifference", [result.summary()], sections_of(result, ("the first", "the second")), badges)


def sections_of(
    result: RecordDifference,
    names: tuple[str, str],
    records: Sequence[Record] = (Record(), Record()),
    most: int | None = MOST_ROWS,
) -> list[Part]:
    """All differences, by type; entries of only one record are described if the records are given."""

    def missing(name: str, paths: Sequence[str], record: Record) -> Page:
        hints = {path: f"did you mean {result.suggestions[path]}?" for path in paths if path in result.suggestions}
        rows = [[Cell(path, code=True), *_described(record, path), hints.get(path, "")] for path in paths[:most]]
        return Page(f"Only in {name}", parts=[Table([""] * 5, rows, 5, more=len(paths) - len(rows))], is_open=True)

    def changes(title: str, some: Sequence[Change], text: Callable[[Any], str] = str) -> Page:
        rows = [
            [Cell(path, code=True), *("nothing" if x is None else text(x) for x in pair)] for path, *pair in some[:most]
        ]
        return Page(title, parts=[Table(["path", *names], rows, 3, more=len(some) - len(rows))], is_open=True)

    def tensors(title: str, entries: Sequence[TensorDifference]) -> Page:
        heads = ["path", "unequal", "beyond", "not finite", "largest", "at", *names, "relative"]
        with_beyond = bool(result.within) or any(d.different < d.unequal for d in entries)
        rows = [[Cell(d.path, code=True), *_numbers(d, with_beyond)] for d in entries[:most]]
        table = Table(heads, rows, 1, more=len(entries) - len(rows), spare=(6, 7, 8))
        return Page(title, parts=[table], is_open=True)

    return [
        missing(names[0], result.only_first, records[0]),
        missing(names[1], result.only_second, records[1]),
        changes("Cannot be read", result.unreadable),
        changes("Other kinds", result.kinds),
        changes("Other shapes", result.shapes),
        changes("Other values", result.values, as_json),
        tensors("Tensors that differ", result.tensors),
        tensors("Tensors that differ within the tolerance", result.within),
        changes("Other aliases", result.aliases),
        changes("Other metadata", result.metadata),
        # Only one line each, because they often differ in every tensor.
        Page("", parts=[*_precisions(result.precisions, names), *_ids(result.ids, names)]),
    ]


def _described(record: Record, path: str) -> list[str]:
    if path not in record:  # a record without names may have more entries than the other one
        return ["", "", ""]
    entry = record[path]
    if not isinstance(entry, TensorEntry):
        return ["value", as_json(entry), ""]
    return [entry.tensor.kind, str(entry.tensor.shape), SHORT_NAMES[entry.tensor.dtype]]


def as_json(value: Any) -> str:
    """A plain value as text."""
    return json.dumps(value, ensure_ascii=False)


def _numbers(difference: TensorDifference, with_beyond: bool) -> list[str]:
    row = [
        f"{difference.unequal:,} ({_share(difference.unequal, difference.size)})",
        f"{difference.different:,}" if with_beyond else "",
        f"{difference.non_finite:,}" if difference.non_finite else "",
    ]
    extreme = difference.non_finite_at or difference.largest
    if extreme is None:
        return row
    relative = "" if difference.relative is None else f"{difference.relative.amount:.2g}"
    largest = "" if difference.largest is None else f"{difference.largest.amount:.3g}"
    return [*row, largest, str(extreme.at), *(_number(x) for x in (extreme.first, extreme.second)), relative]


def _share(part: int, whole: int) -> str:
    percent = round(100 * part / whole)
    return "<1%" if percent < 1 else ">99%" if percent > 99 and part < whole else f"{percent}%"


def _number(number: float | int | bool) -> str:
    return f"{number:.6g}" if isinstance(number, float) else str(number)


def _precisions(changes: Sequence[Change], names: tuple[str, str]) -> list[str]:
    counts = Counter((first, second) for _, first, second in changes)
    first, second = names
    return [f"Precision: {a} in {first}, {b} in {second}: {count(n, 'tensor')}" for (a, b), n in counts.items()]


def _ids(changes: Sequence[Change], names: tuple[str, str]) -> list[str]:
    missing = [name for at, name in enumerate(names) if changes and all(change[at + 1] is None for change in changes)]
    if missing:
        return [f"Ids: none in {missing[0]}: {count(len(changes), 'tensor')}"]
    return [f"Ids: not the same: {count(len(changes), 'tensor')}"] if changes else []


def _differences(differences: Sequence[Any]) -> list[list[str]]:
    return [[d.path, str(d.found), str(d.expected)] for d in differences]


def _items(pairs: Mapping[str, str]) -> list[list[str]]:
    return [[name, text[:_LONGEST]] for name, text in pairs.items()]


def _section(
    title: str, rows: Sequence[Sequence[str]], heads: Sequence[str], most: int = MOST_ROWS, *, is_open: bool = False
) -> Page:
    cells = [[Cell(text, code=True) for text in row] for row in rows]
    return Page(f"{title}: {len(rows):,}", parts=[Table(heads, cells, len(heads), most)], is_open=is_open)
