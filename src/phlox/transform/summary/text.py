"""A summary as plain text, and the text that it shares with the one in HTML."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from phlox.backend import Float
from phlox.host.units import amount, size
from phlox.transform.eval_shape import TensorSpec
from phlox.transform.tree import parts_of

if TYPE_CHECKING:
    from phlox.transform.summary.table import Row, Summary

_LONGEST = 44
"""The most letters of an output."""

TITLES = {
    "output": "output", "parameters": "parameters", "trained": "trained", "flops": "FLOPs", "memory": "memory",
}  # fmt: skip
LEFT = frozenset({"path", "class", "output", "trained"})
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


def _parameters(row: Row) -> str:
    counted = f"{row.parameters:,}" if row.parameters else ""
    return counted or ("tied" if row.tied else "")


def cells(summary: Summary, row: Row) -> dict[str, str]:
    """The cells of a row, by column."""
    called = row.calls > 0
    evaluated = summary.flops is not None
    where = row.span or row.path or "(the model)"
    every: dict[str, Callable[[], str]] = {
        "path": lambda: f"{where}  x{row.repeats}" if row.repeats > 1 else where,
        "class": lambda: f"{row.name} x{row.calls}" if row.calls > 1 else row.name,
        "output": lambda: output(row.outputs) if called else "not called" if evaluated else "",
        "parameters": lambda: _parameters(row),
        "trained": lambda: trained(row),
        "flops": lambda: amount(row.flops) if row.flops else "",
        "memory": lambda: size(row.bytes + row.activations) if row.bytes + row.activations else "",
    }
    return {name: every[name]() for name in ("path", "class", *summary.columns)}


def totals(summary: Summary) -> list[tuple[str, str]]:
    """The lines below the table."""
    memory = summary.memory
    fixed = summary.parameters - summary.trained
    parts = f"{summary.parameters:,}" + (f", of which {fixed:,} are not trained" if fixed else ", all trained")
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


def text(summary: Summary) -> str:
    """The table with its totals."""
    head = {"path": "layer", "class": "class", **TITLES}
    names = ("path", "class", *summary.columns)
    lines = [{name: head[name] for name in names}, *[cells(summary, row) for row in summary.shown()]]
    widths = {name: max(len(line[name]) for line in lines) for name in names}

    def joined(line: dict[str, str]) -> str:
        cut = [line[name].ljust(widths[name]) if name in LEFT else line[name].rjust(widths[name]) for name in names]
        return "  ".join(cut).rstrip()

    rule = "-" * (sum(widths.values()) + 2 * (len(names) - 1))
    below = [f"{name}: {what}" for name, what in totals(summary)]
    return "\n".join([joined(lines[0]), rule, *map(joined, lines[1:]), rule, *below, *remarks(summary)])
