"""`phlox diff`: how two records differ."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any, cast

from phlox.cli.command import DIFFERENT, DONE, Command, whole
from phlox.cli.records import opened, plain, reading_arguments
from phlox.host.page import Page
from phlox.host.text import size, terminal_width
from phlox.record.inspection.comparison import RecordDifference, difference
from phlox.record.inspection.summary import RecordFile, totals
from phlox.record.pages import sections_of


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
    result = difference(first.record, second.record, rtol=options.rtol, atol=options.atol)
    agree = result.ok and not (options.strict and _notes(result))
    if options.json:
        lists: dict[str, Any] = {name: _limited(value, options.limit) for name, value in plain(result).items()}
        print(json.dumps({"agree": agree, "identical": result.identical, **lists}, indent=2, allow_nan=False))
    else:
        print(_page(first, second, result, options.limit, agree).text(terminal_width()))
    return DONE if agree else DIFFERENT


def _limited(value: Any, limit: int | None) -> Any:
    return cast("list[Any]", value)[:limit] if isinstance(value, list) else value


def _notes(result: RecordDifference) -> list[str]:
    """The names of the differences apart from the entries."""
    changes = {
        "precisions": result.precisions, "ids": result.ids or result.renamed, "aliases": result.aliases,
        "metadata": result.metadata, "names": result.other_names,
    }  # fmt: skip
    return [name for name, entries in changes.items() if entries]


def _page(first: RecordFile, second: RecordFile, result: RecordDifference, most: int | None, agree: bool) -> Page:
    """The printed report of a difference."""
    strange = "They were not written with the same names: entries at the same position may be unrelated"
    parts = [
        f"A: {_about(first)}",
        f"B: {_about(second)}",
        "One of them has no names: the entries are compared in order" if result.by_position else "",
        strange if result.other_names else "",
        *sections_of(result, ("A", "B"), (first.record, second.record), most),
        Page("", parts=[_verdict(result, agree)]),
    ]
    return Page("", parts=parts)


def _verdict(result: RecordDifference, agree: bool) -> str:
    text = result.summary("A", "B")
    if result.identical:
        return f"Identical: {text}"
    if not result.ok:
        return f"Different: {text}"
    if result.within:
        text += " within the tolerance"
    return f"The same: {text}" if agree else f"Different in {' and '.join(_notes(result))}: {text}"


def _about(file: RecordFile) -> str:
    parts = [file.format, file.compression, "+".join(totals(file.record.tensors.values())), size(file.size)]
    return f"{file.path} ({', '.join(filter(None, parts))})"


COMMAND = Command(
    description="Compare two records of any formats and precisions, entry by entry. The exit status is 1 if they "
    "differ: if one has an entry that the other lacks, or an entry differs in kind, shape or value. "
    "Differences in precisions, ids, aliases and metadata are shown, but count only with --strict.",
    arguments=arguments,
    run=run,
)
