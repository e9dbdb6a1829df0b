"""A summary as HTML, for notebooks and pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.host.html import Cell, facts, fragment, paragraph, table
from phlox.transform.summary.text import LEFT, TITLES, cells, remarks, totals

if TYPE_CHECKING:
    from phlox.transform.summary.table import Row, Summary


def html(summary: Summary) -> str:
    """A table with its totals."""
    names = ("path", "class", *summary.columns)
    head = {"path": "layer", "class": "class", **TITLES}
    rows = [_row(summary, row, names) for row in summary.shown()]
    left = {place for place, name in enumerate(names) if name in LEFT}
    notes = "".join(map(paragraph, remarks(summary)))
    return fragment(table([head[name] for name in names], rows, left=left) + facts(totals(summary)) + notes)


def _row(summary: Summary, row: Row, names: tuple[str, ...]) -> list[Cell]:
    shown = cells(summary, row)
    return [Cell(shown[n], code=n == "path", indent=row.depth if n == "path" else 0) for n in names]
