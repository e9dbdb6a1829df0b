# pyright: standard
"""How far results lie from float64: a table of every operation, engine and precision, from the rows of the suite.

`python -m phlox.testing.accuracy --into docs/sameness.md` measures, and writes the table into the page.
"""

from __future__ import annotations

import argparse
import re
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from phlox.backend import Backend, backend_names, load_backend
from phlox.errors import DataError, PhloxError
from phlox.testing.conformance import running
from phlox.testing.conformance.row import Row
from phlox.testing.conformance.rows import ROWS

MARK = "<!-- python -m phlox.testing.accuracy -->"
"""The table of a page starts after this line, and ends with the page."""

ELEMENTS = ("f32", "bf16")
_EPSILON = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}


def error(row: Row, backend: Backend) -> float | None:
    """The greatest distance from the reference in float64, in units in the last place of the result's largest element.

    None if the backend lacks the operation, or nothing can be compared: no floats, or no library for the reference.
    """
    worst: float | None = None
    for sample in row.samples:
        rounded = running.rounded_sample(sample, backend.float_element)
        if rounded is None:
            continue
        try:
            expected = running.reference(row, rounded)
            if expected.dtype.kind != "f" or not expected.size:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result = np.asarray(row.call(*running.tensors(rounded, backend)).numpy(), np.float64)
        except (PhloxError, ModuleNotFoundError):
            continue
        finite = np.isfinite(expected)
        scale = np.max(np.abs(expected), where=finite, initial=0.0)
        difference = np.max(
            np.abs(np.where(finite, result, 0.0) - np.where(finite, expected, 0.0)), where=finite, initial=0.0
        )
        if scale > 0.0 and np.isfinite(difference):
            worst = max(worst or 0.0, float(difference / (scale * _EPSILON[backend.float_element])))
    return worst


def operation_of(row: Row) -> str:
    """The operation of a row, whose name goes on with the form of its call: `sum` of `sum (0, 1) True`."""
    return re.split(r"[ (,:\[]", row.name, maxsplit=1)[0] or row.name


def errors(backend: Backend, rows: Iterable[Row] = ROWS) -> dict[str, float]:
    """For each operation that can be compared on this backend, the greatest `error` of its rows."""
    greatest: dict[str, float] = {}
    for row in rows:
        worst = error(row, backend)
        if worst is not None:
            operation = operation_of(row)
            greatest[operation] = max(greatest.get(operation, 0.0), worst)
    return greatest


def table(columns: Mapping[str, Mapping[str, float]]) -> str:
    """A Markdown table with a line for each operation, and a column for each of `columns`, by its title.

    Operations that are exact in all columns are listed below the table.
    """
    every = dict.fromkeys(name for column in columns.values() for name in column)
    names = sorted(name for name in every if any(column.get(name) for column in columns.values()))
    lines = [f"| operation | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    cells = ([_shown(column.get(name)) for column in columns.values()] for name in names)
    lines += [f"| {_escaped(name)} | {' | '.join(line)} |" for name, line in zip(names, cells, strict=True)]
    exact = ", ".join(sorted(_escaped(name) for name in every if name not in names))
    return "\n".join([*lines, "", f"Exact on all of them: {exact}."])


def _escaped(name: str) -> str:
    return name.replace("|", "\\|")


def _shown(worst: float | None) -> str:
    if worst is None:
        return "-"
    return "0" if worst == 0.0 else f"{worst:.1f}" if worst < 100.0 else f"{worst:.0f}"


def write_into(page: Path, text: str) -> None:
    """Replace everything after the marker of a page."""
    head, mark, _ = page.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise DataError(f"{page}: has no line {MARK!r}; add it where the table should start")
    page.write_text(f"{head}{mark}\n\n{text}\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Measure on every engine, and print the table, or write it into a page."""
    parser = argparse.ArgumentParser(prog="python -m phlox.testing.accuracy", description="Distances from float64.")
    parser.add_argument("--into", metavar="FILE", help="write the table into a page, such as docs/sameness.md")
    parser.add_argument("--only", metavar="TEXT", default="", help="only operations with this text in their name")
    options = parser.parse_args(arguments)
    engines: list[Any] = [load_backend(name) for name in backend_names()]
    backends = [engine(float=element) for engine in engines for element in ELEMENTS]
    rows = [row for row in ROWS if options.only in row.name]
    text = table({f"{backend.name} {backend.float_element}": errors(backend, rows) for backend in backends})
    if options.into is None:
        sys.stdout.write(text + "\n")
    else:
        write_into(Path(options.into), text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
