"""What a summary says: the table of the layers, the totals, and what the marks in it mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phlox.backend import Float
from phlox.host.page import Cell, Page, Table, facts
from phlox.host.text import amount, size
from phlox.transform.eval_shape import TensorSpec
from phlox.transform.tree import parts_of

if TYPE_CHECKING:
    from phlox.transform.summary.table import Row, Summary

_LONGEST = 44
"""The most letters of an output."""

_TITLES = {"path": "layer", "flops": "FLOPs"}
_LEFT = frozenset({"path", "class", "output", "trained"})
"""Columns of words, which are set flush left."""


def output(value: Any) -> str:
    """The shapes of a result: `(1, 10)`, with the kind if it is not Float."""
    found: list[str] = []

    def visit(part: Any) -> None:
        if isinstance(part, TensorSpec):
            found.append(str(part.shape) if part.kind is Float else f"{part.shape} {part.kind.__name__}")
        else:
            for _, one in parts_of(part) or ():
                visit(one)

    visit(value)
    text = ", ".join(found) if found else "" if value is None else type(value).__name__
    if len(text) <= _LONGEST:
        return text
    return f"{found[0][: _LONGEST - 12]}, and {len(found) - 1} more" if len(found) > 1 else f"{text[: _LONGEST - 3]}..."


def trained(row: Row) -> str:
    """Are its parameters trained?"""
    if not row.parameters:
        return ""
    return "yes" if row.trained == row.parameters else "in part" if row.trained else "no"


def _cells(summary: Summary, row: Row) -> dict[str, str | Cell]:
    """The cells of a row, by column."""
    where = row.span or row.path or "(the model)"
    where = f"{where}  x{row.repeats}" if row.repeats > 1 else where
    memory = row.bytes + row.activations
    return {
        "path": Cell(where, code=True, indent=row.depth),
        "class": f"{row.name} x{row.calls}" if row.calls > 1 else row.name,
        "output": output(row.outputs) if row.calls else "" if summary.flops is None else "not called",
        "parameters": f"{row.parameters:,}" if row.parameters else "tied" if row.tied else "",
        "trained": trained(row),
        "flops": amount(row.flops) if row.flops else "",
        "memory": size(memory) if memory else "",
    }


def totals(summary: Summary) -> list[tuple[str, str]]:
    """The lines below the table."""
    memory = summary.memory
    fixed = summary.parameters - summary.trained
    parts = f"{summary.parameters:,}, {f'of which {fixed:,} are not trained' if fixed else 'all trained'}"
    found = [("parameters", parts if summary.parameters else "none")]
    if summary.flops is not None and summary.products is not None:
        passes = "forward and backward" if summary.training else "forward"
        share = f", {amount(summary.products)} of them in products" if summary.products else ""
        found.append(("FLOPs", f"{amount(summary.flops)} {passes}{share}"))
    named = (
        ("parameters", memory.parameters),
        ("activations", memory.activations),
        ("gradients", memory.gradients),
        ("optimizer", memory.optimizer),
    )
    listed = [f"{name} {size(number)}" for name, number in named if number is not None]
    whole = f" = {size(memory.total)}" if len(listed) > 1 else ""
    found.append(("memory", " + ".join(listed) + whole))
    return found


def remarks(summary: Summary) -> list[str]:
    """The explanations of the marks that are used in the table."""
    rows = summary.shown()
    found: list[str] = []
    tied = {pair for row in summary.rows for pair in row.tied}
    found += [f"tied, and counted once: {path} = {first}" for path, first in sorted(tied)]
    if any(row.repeats > 1 for row in rows):
        found.append("a path with x2 stands for two equal modules; the numbers are of one of them")
    if any(row.calls > 1 for row in rows):
        found.append("a class with x2 is called twice; the FLOPs are of all calls")
    return found


def page_of_summary(summary: Summary) -> Page:
    """The table with its totals."""
    names = ("path", "class", *summary.columns)
    rows = [[cells[name] for name in names] for cells in (_cells(summary, row) for row in summary.shown())]
    left = {place for place, name in enumerate(names) if name in _LEFT}
    table = Table([_TITLES.get(name, name) for name in names], rows, left)
    return Page("", parts=[table, facts(totals(summary)), *remarks(summary)])
