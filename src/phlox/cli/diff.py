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
from phlox.cli.text import count_text, printable, size_text, table, terminal_width
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
        print("\n".join(_Page(first, second, found, options.limit).lines(agree)))
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


class _Page:
    """The printed report of a difference."""

    def __init__(self, first: RecordFile, second: RecordFile, found: RecordDifference, limit: int | None) -> None:
        self.first, self.second, self.found, self.limit = first, second, found, limit

    def lines(self, agree: bool) -> list[str]:
        found = self.found
        lines = [f"A: {_about(self.first)}", f"B: {_about(self.second)}"]
        if found.by_position:
            lines.append("One of them has no names: the entries are compared in order")
        if found.other_names:
            lines.append("They were not written with the same names: entries at the same position may be unrelated")
        lines += self._missing("Only in A", found.only_first, self.first.record)
        lines += self._missing("Only in B", found.only_second, self.second.record)
        lines += self._changes("Cannot be read", found.unreadable)
        lines += self._changes("Other kinds", found.kinds)
        lines += self._changes("Other shapes", found.shapes)
        lines += self._changes("Other values", [Change(p, _value(a), _value(b)) for p, a, b in found.values])
        lines += self._tensors("Tensors that differ", found.tensors)
        lines += self._tensors("Tensors that differ within the tolerance", found.within)
        lines += self._changes("Other aliases", found.aliases)
        lines += self._changes("Other metadata", found.metadata)
        # Only one line each, because they often differ in every tensor.
        notes = [*_precisions(found.precisions), *_ids(found.ids)]
        return [*lines, *([""] if notes else []), *notes, "", self._verdict(agree)]

    def _verdict(self, agree: bool) -> str:
        found, text = self.found, self.found.summary("A", "B")
        if found.identical:
            return f"Identical: {text}"
        if not found.ok:
            return f"Different: {text}"
        if found.within:
            text += " within the tolerance"
        return f"The same: {text}" if agree else f"Different in {' and '.join(_notes(found))}: {text}"

    def _missing(self, title: str, paths: Sequence[str], record: Record) -> list[str]:
        lines = self._section(title, [[path, *_described(record, path)] for path in paths])
        for place, path in enumerate(paths[: self.limit]):
            if near := self.found.suggestions.get(path):
                lines[2 + place] += f"\n    did you mean {printable(near)}?"
        return lines

    def _changes(self, title: str, changes: Sequence[Change]) -> list[str]:
        rows = [[path, *("nothing" if x is None else str(x) for x in pair)] for path, *pair in changes]
        return self._section(title, rows, ["path", "A", "B"])

    def _tensors(self, title: str, some: Sequence[TensorDifference]) -> list[str]:
        heads = ["path", "unequal", "beyond", "not finite", "largest", "at", "A", "B", "relative"]
        if not (self.found.within or any(one.different < one.unequal for one in some)):
            heads[2] = ""
        return self._section(
            title, [_row(one, bool(heads[2])) for one in some], heads, right=range(1, 9), spare=(6, 7, 8)
        )

    def _section(
        self,
        title: str,
        rows: list[list[str]],
        heads: list[str] | None = None,
        right: Sequence[int] = (),
        spare: Sequence[int] = (),
    ) -> list[str]:
        if not rows:
            return []
        lines = ["", title]
        if shown := rows[: self.limit]:
            lines += table(shown, heads, right=right, spare=spare, width=terminal_width(), indent=2).split("\n")
        if len(rows) > len(shown):
            lines.append(f"  ... and {len(rows) - len(shown):,} more")
        return lines


def _about(file: RecordFile) -> str:
    parts = [file.format, file.compression, "+".join(totals(file.record.tensors.values())), size_text(file.size)]
    return f"{printable(str(file.path))} ({', '.join(filter(None, parts))})"


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
    return [f"Precision: {a} in A, {b} in B: {count_text(n, 'tensor')}" for (a, b), n in counts.items()]


def _ids(changes: Sequence[Change]) -> list[str]:
    missing = [name for name, at in (("A", 1), ("B", 2)) if changes and all(change[at] is None for change in changes)]
    if missing:
        return [f"Ids: none in {missing[0]}: {count_text(len(changes), 'tensor')}"]
    return [f"Ids: not the same: {count_text(len(changes), 'tensor')}"] if changes else []


COMMAND = Command(
    description="Compare two records of any formats and precisions, entry by entry. The exit status is 1 if they "
    "differ: if one has an entry that the other lacks, or an entry differs in kind, shape or value. "
    "Differences in precisions, ids, aliases and metadata are shown, but count only with --strict.",
    arguments=arguments,
    run=run,
)
