"""The table of distances from float64, and the page that has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from phlox.backend import NumPy, backend_names
from phlox.testing import accuracy
from phlox.testing.conformance.row import Row
from phlox.testing.conformance.rows import ROWS

PAGE = Path(__file__).parents[2] / "docs/sameness.md"


def test_an_error_is_counted_in_units_of_the_largest_element() -> None:
    sample = (np.array([1.0, 4.0]),)
    wrong = Row("wrong", lambda x: x + 2.0**-21, lambda x: x, (sample,))
    assert accuracy.error(wrong, NumPy()) == 2.0**-21 / (4.0 * 2.0**-23)
    assert accuracy.error(Row("of no floats", lambda x: x > 0, lambda x: x > 0, (sample,)), NumPy()) is None


def test_what_is_exact_everywhere_is_below_the_table() -> None:
    text = accuracy.table({"a": {"x": 0.0, "y": 0.5}, "b": {"x": 0.0}})
    assert text.splitlines() == [
        "| operation | a | b |",
        "|---|---:|---:|",
        "| y | 0.5 | - |",
        "",
        "Exact on all of them: x.",
    ]


def test_the_page_has_a_column_for_each_engine_and_a_line_for_each_operation() -> None:
    """Structure alone: the values are of one machine. If it fails: `python -m phlox.testing.accuracy --into PAGE`."""
    _, mark, text = PAGE.read_text(encoding="utf-8").partition(accuracy.MARK)
    assert mark
    columns = [f"{name} {element}" for name in backend_names() for element in accuracy.ELEMENTS]
    assert text.strip().splitlines()[0] == f"| operation | {' | '.join(columns)} |"
    table, _, exact = text.partition("Exact on all of them: ")
    listed = {line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")}
    listed |= set(exact.strip().removesuffix(".").split(", "))
    measured = accuracy.errors(NumPy(), [row for row in ROWS if row.name.startswith(("sum", "matmul", "softmax"))])
    assert measured
    assert set(measured) <= {name.replace("\\|", "|") for name in listed}
