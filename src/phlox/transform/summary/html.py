"""A summary as HTML, for notebooks and pages."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from phlox.transform.summary.text import LEFT, TITLES, cells, remarks, totals

if TYPE_CHECKING:
    from phlox.transform.summary.table import Summary

# Colours are those of the page around, and lines are half transparent: so it fits light and dark pages alike.
_TABLE = "border-collapse:collapse;color:inherit;background:transparent;font-size:0.9em"
_LINE = "1px solid rgba(128,128,128,0.45)"
_CELL = "padding:2px 10px;color:inherit;background:transparent;border:none"


def html(summary: Summary) -> str:
    """A table with its totals; styles are within the elements."""
    names = ("path", "class", *summary.columns)
    head = {"path": "layer", "class": "class", **TITLES}
    lines = [f'<tr style="border-bottom:{_LINE}">' + "".join(_cell("th", n, head[n], 0) for n in names) + "</tr>"]
    for row in summary.shown():
        shown = cells(summary, row)
        lines.append("<tr>" + "".join(_cell("td", n, shown[n], row.depth) for n in names) + "</tr>")
    below = "<br>".join(f"<b>{escape(name)}</b>: {escape(what)}" for name, what in totals(summary))
    notes = "".join(f'<br><span style="opacity:0.75">{escape(line)}</span>' for line in remarks(summary))
    return (
        f'<div class="phlox-summary" style="color:inherit"><table style="{_TABLE}">{"".join(lines)}</table>'
        f'<div style="padding:6px 10px;font-size:0.9em">{below}{notes}</div></div>'
    )


def _cell(tag: str, name: str, text: str, depth: int) -> str:
    align = "left" if name in LEFT else "right"
    inset = f";padding-left:{10 + 14 * depth}px" if name == "path" else ""
    shown = f"<code>{escape(text)}</code>" if tag == "td" and name == "path" else escape(text)
    return f'<{tag} style="{_CELL};text-align:{align};white-space:nowrap{inset}">{shown}</{tag}>'
