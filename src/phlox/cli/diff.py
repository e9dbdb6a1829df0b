"""`phlox diff`: how two records differ."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

from phlox.cli.command import DIFFERENT, DONE, Command, whole
from phlox.cli.records import opened, plain, reading_arguments
from phlox.host.page import Page, Table
from phlox.host.text import count, size, terminal_width
from phlox.record.dtypes import SHORT_NAMES
from phlox.record.entry import TensorEntry
from phlox.record.inspection.comparison import Change, RecordDifference, difference
from phlox.record.inspection.summary import RecordFile, totals
from phlox.record.inspection.tensor_difference import TensorDifference
from phlox.record.record import Record


def tolerance(text: str) -> float:
    """A tolerance, as the type of an argument."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number of 0 or more")
    return number


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("first", metavar="A", help="a file of any format and compression, with or without its suffix")
    parser.add_argument("second", metavar="B", help="another one")
    parser.add_argument(
        "--rtol",
        type=tolerance,
        default=0.0,
        metavar="X",
        help="elements a, b agree if |a - b| <= atol + rtol * max(|a|, |b|); default 0",
    )
    parser.add_argument("--atol", type=tolerance, default=0.0, metavar="X", help="see --rtol; default 0")
    parser.add_argument(
        "--strict", action="store_true", help="count differences in precisions, ids, aliases and metadata too"
    )
    parser.add_argument("--limit", type=whole, metavar="N", help="show only the first N of each list")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    reading_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    first, second = opened(options.first, options), opened(options.second, options)
    found = difference(first.record, second.record, rtol=options.rtol, atol=options.atol)
    agree = found.ok and not (options.strict and _notes(found))
    if options.json:
        lists: dict[str, Any] = {name: _limited(one, options.limit) for name, one in plain(found).items()}
        print(json.dumps({"agree": agree, "identical": found.identical, **lists}, indent=2, allow_nan=False))
    else:
        print(_page(first, second, found, options.limit, agree).text(terminal_width()))
    return DONE if agree else DIFFERENT


def _limited(one: Any, limit: int | None) -> Any:
    return cast("list[Any]", one)[:limit] if isinstance(one, list) else one


def _notes(found: RecordDifference) -> list[str]:
    """What differs apart from the entries."""
    changes = {
        "precisions": found.precisions, "ids": found.ids or found.renamed, "aliases": found.aliases,
        "metadata": found.metadata, "names": found.other_names,
    }  # fmt: skip
    return [name for name, some in changes.items() if some]


def _page(first: RecordFile, second: RecordFile, found: RecordDifference, most: int | None, agree: bool) -> Page:
    """The printed report of a difference."""

    def missing(title: str, paths: Sequence[str], record: Record) -> Page:
        near = {path: f"did you mean {found.suggestions[path]}?" for path in paths if path in found.suggestions}
        rows = [[path, *_described(record, path), near.get(path, "")] for path in paths[:most]]
        return Page(title, parts=[Table([""] * 5, rows, 5, more=len(paths) - len(rows))])

    def changes(title: str, some: Sequence[Change]) -> Page:
        rows = [[path, *("nothing" if x is None else str(x) for x in pair)] for path, *pair in some]
        return Page(title, parts=[Table(["path", "A", "B"], rows, 3, most)])

    def tensors(title: str, some: Sequence[TensorDifference]) -> Page:
        heads = ["path", "unequal", "beyond", "not finite", "largest", "at", "A", "B", "relative"]
        with_beyond = bool(found.within) or any(one.different < one.unequal for one in some)
        return Page(title, parts=[Table(heads, [_row(one, with_beyond) for one in some], 1, most, spare=(6, 7, 8))])

    strange = "They were not written with the same names: entries at the same position may be unrelated"
    parts = [
        f"A: {_about(first)}",
        f"B: {_about(second)}",
        "One of them has no names: the entries are compared in order" if found.by_position else "",
        strange if found.other_names else "",
        missing("Only in A", found.only_first, first.record),
        missing("Only in B", found.only_second, second.record),
        changes("Cannot be read", found.unreadable),
        changes("Other kinds", found.kinds),
        changes("Other shapes", found.shapes),
        changes("Other values", [Change(p, _value(a), _value(b)) for p, a, b in found.values]),
        tensors("Tensors that differ", found.tensors),
        tensors("Tensors that differ within the tolerance", found.within),
        changes("Other aliases", found.aliases),
        changes("Other metadata", found.metadata),
        # Only one line each, because they often differ in every tensor.
        Page("", parts=[*_precisions(found.precisions), *_ids(found.ids)]),
        Page("", parts=[_verdict(found, agree)]),
    ]
    return Page("", parts=parts)


def _verdict(found: RecordDifference, agree: bool) -> str:
    text = found.summary("A", "B")
    if found.identical:
        return f"Identical: {text}"
    if not found.ok:
        return f"Different: {text}"
    if found.within:
        text += " within the tolerance"
    return f"The same: {text}" if agree else f"Different in {' and '.join(_notes(found))}: {text}"


def _about(file: RecordFile) -> str:
    parts = [file.format, file.compression, "+".join(totals(file.record.tensors.values())), size(file.size)]
    return f"{file.path} ({', '.join(filter(None, parts))})"


def _described(record: Record, path: str) -> list[str]:
    if path not in record:  # a record without names may have more entries than the other one
        return ["", "", ""]
    entry = record[path]
    if not isinstance(entry, TensorEntry):
        return ["value", _value(entry), ""]
    return [entry.tensor.kind, str(entry.tensor.shape), SHORT_NAMES[entry.tensor.dtype]]


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _row(one: TensorDifference, with_beyond: bool) -> list[str]:
    row = [
        one.path,
        f"{one.unequal:,} ({_share(one.unequal, one.size)})",
        f"{one.different:,}" if with_beyond else "",
        f"{one.non_finite:,}" if one.non_finite else "",
    ]
    most = one.non_finite_at or one.largest
    if most is None:
        return row
    relative = "" if one.relative is None else f"{one.relative.amount:.2g}"
    largest = "" if one.largest is None else f"{one.largest.amount:.3g}"
    return [*row, largest, str(most.at), *(_number(x) for x in (most.first, most.second)), relative]


def _share(part: int, whole: int) -> str:
    percent = round(100 * part / whole)
    return "<1%" if percent < 1 else ">99%" if percent > 99 and part < whole else f"{percent}%"


def _number(number: float | int | bool) -> str:
    return f"{number:.6g}" if isinstance(number, float) else str(number)


def _precisions(changes: Sequence[Change]) -> list[str]:
    counts = Counter((first, second) for _, first, second in changes)
    return [f"Precision: {a} in A, {b} in B: {count(n, 'tensor')}" for (a, b), n in counts.items()]


def _ids(changes: Sequence[Change]) -> list[str]:
    missing = [name for name, at in (("A", 1), ("B", 2)) if changes and all(change[at] is None for change in changes)]
    if missing:
        return [f"Ids: none in {missing[0]}: {count(len(changes), 'tensor')}"]
    return [f"Ids: not the same: {count(len(changes), 'tensor')}"] if changes else []


COMMAND = Command(
    description="Compare two records of any formats and precisions, entry by entry. The exit status is 1 if they "
    "differ: if one has an entry that the other lacks, or an entry differs in kind, shape or value. "
    "Differences in precisions, ids, aliases and metadata are shown, but count only with --strict.",
    arguments=arguments,
    run=run,
)
