"""The table of docs/export.md: every layer and model, exported and run, with the largest difference.

`python -m tools.export_table` writes it into the page.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import phlox as px
from phlox.export import OnnxReport
from phlox.tensor import Tensor
from phlox.transform.tree import leaves_of
from tests.export.cases import ALL, Case

PAGE = Path(__file__).parents[1] / "docs" / "export.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
HEAD = "| model | inputs | operators | largest difference |\n|---|---|---|---|\n"


def exported(case: Case, folder: Path) -> OnnxReport:
    """One row's export."""
    return px.export.onnx(case.model(), case.inputs, folder / "model.onnx", sizes=case.sizes)


def row(case: Case, report: OnnxReport) -> str:
    """A row of the table."""
    shapes = [_shape(leaf) for _, leaf in leaves_of(case.inputs, (px.TensorSpec, Tensor))]
    operators = ", ".join(f"{count} {op}" if count > 1 else op for op, count in list(report.operators.items())[:6])
    more = ", ..." if len(report.operators) > 6 else ""
    return f"| {case.name} | {', '.join(shapes)} | {operators}{more} | {report.largest_difference:.0e} |\n"


def _shape(leaf: Any) -> str:
    return "[" + ", ".join(map(str, leaf.shape)) + "]"


def table() -> str:
    """All rows."""
    with tempfile.TemporaryDirectory() as folder:
        return HEAD + "".join(row(case, exported(case, Path(folder))) for case in ALL)


def with_table(page: str, text: str) -> str:
    """The page with another table."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{text}{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), table()), encoding="utf-8")
