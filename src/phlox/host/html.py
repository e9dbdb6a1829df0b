"""A `Page` as HTML, for notebooks and as a file, on light and dark screens; it needs nothing else.

What `_repr_html_` returns is a `fragment`: one element with its own style, without scripts. All text is escaped here,
where it is put in, for names and values may come from files of strangers.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from phlox.host.page import MOST_ROWS, Cell, Line, Names, Page, Part, Raw, Row, Table, as_line, is_empty
from phlox.host.text import printable

if TYPE_CHECKING:
    import os

T = TypeVar("T")


_LONGEST = 200
"""The most letters of code in a cell, such as a path, which may come from an untrusted file."""


@cache
def _resource(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def style() -> str:
    """The style of what is inside of an element of the class `phlox`."""
    return _resource("phlox.host", "page.css")


def filled(package: str, name: str, parts: Mapping[str, str]) -> str:
    """A template with its places (`{{name}}`) filled, all at once, so that no text can bring in another place."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _resource(package, name))


def escape(text: str) -> str:
    """Text as HTML; control characters, which could hide or reverse what stands around them, as their codes.

    >>> escape("a < b"), escape("a\\x00b")
    ('a &lt; b', 'a\\\\x00b')
    """
    return html.escape(printable(text, keep="\n\t"))


def fragment(page: Page) -> str:
    """A piece of HTML for a notebook."""
    return f'<div class="phlox"><style>{style()}</style>{_top(page)}</div>'


def document(title: str, page: Page, path: str | os.PathLike[str] | None = None) -> str:
    """A whole file, which is written if there is a path; returns its text."""
    parts = {"title": escape(title), "style": style(), "body": _top(page)}
    text = filled("phlox.host", "document.html", parts)
    if path is not None:
        Path(path).write_text(text, encoding="utf-8")
    return text


def representation(value: T, page: Callable[[T], Page]) -> str:
    """The fragment that `_repr_html_` returns: the page of a value or, where that fails, its `repr`.

    A notebook shows values in any state (donated, in the middle of a trace, half built), and must show them all.
    """
    try:
        return fragment(page(value))
    except Exception:
        return fragment(Page("", parts=[preformatted(repr(value))]))


def preformatted(text: str) -> Raw:
    """Text whose lines stay as they are."""
    return Raw(f"<pre>{escape(text)}</pre>")


# --- the parts of a page


def part_html(part: Part) -> str:
    """A part, or nothing where it is empty."""
    if is_empty(part):
        return ""
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, Row):
        inner = "".join(f"<div>{part_html(one)}</div>" for one in part.parts if not is_empty(one))
        return f'<div class="row">{inner}</div>'
    if isinstance(part, Names):
        rows = [[Cell(name, code=True)] for name in part.names]
        part = Page(f"{part.what}: {len(rows):,}", parts=[Table([""], rows, 1, MOST_ROWS)], is_open=part.is_open)
    if isinstance(part, Page):
        inner = parts_html(part.parts)
        if not (inner and _head(part)):
            return _top(part)
        return f"<details{' open' * part.is_open}><summary>{_head(part)}</summary><div>{inner}</div></details>"
    return part.html if isinstance(part, Raw) else _paragraph(as_line(part))


def parts_html(parts: Iterable[Part]) -> str:
    """Parts below each other."""
    return "".join(map(part_html, parts))


def _top(page: Page) -> str:
    head = _head(page)
    return (f"<div>{head}</div>" if head else "") + parts_html(page.parts)


def _head(page: Page) -> str:
    path = f"<code>{escape(page.path)}</code>" if page.path else ""
    said = [f'<span class="soft">· {escape(text)}</span>' for text in page.said if text]
    badges = [f'<span class="badge {kind or "soft"}">{escape(text)}</span>' for text, kind in page.badges]
    code = f'<code class="soft">{escape(page.code)}</code>' if page.code else ""
    return " ".join(filter(None, [path, f"<b>{escape(page.name)}</b>" if page.name else "", *said, *badges, code]))


def _paragraph(line: Line) -> str:
    return f'<p class="{line.kind}">{escape(line.text)}</p>'


def _table(table: Table) -> str:
    """A table in a box of its own, in which it scrolls."""
    columns = table.columns().values()
    head = "".join(f"<th{_class('n' * column.right)}>{escape(column.head)}</th>" for column in columns)
    right = [column.right for column in columns]
    rows = zip(*[column.cells for column in columns], strict=True)
    body = "\n".join(f"<tr>{''.join(map(_cell, row, right))}</tr>" for row in rows)
    top = f"<thead><tr>{head}</tr></thead>" if any(table.heads) else ""
    more = _paragraph(Line(f"and {table.hidden:,} more", "soft")) if table.hidden else ""
    box = f'<div class="scroll{" wrap" * table.wrap}"><table>{top}<tbody>\n{body}\n</tbody></table></div>'
    return box + more


def _class(*names: str) -> str:
    every = " ".join(filter(None, names))
    return f' class="{every}"' if every else ""


def _cell(cell: Cell, right: bool) -> str:
    style = f"--a: {cell.shade:.3f};" if cell.shade else ""
    if cell.bar is not None:
        style += f"--w: {100 * cell.bar:.1f}%;"
    if cell.indent:
        style += f"padding-left: {10 + 14 * cell.indent}px;"
    names = _class("n" * right, "m" if cell.shade else "", "" if cell.bar is None else "b", cell.kind)
    text = escape(cell.text)
    if cell.code:
        text = f"<code>{text if len(cell.text) <= _LONGEST else escape(cell.text[:_LONGEST]) + '...'}</code>"
    title = f' title="{escape(cell.title)}"' if cell.title else ""
    return f"<td{names}{f' style={chr(34)}{style}{chr(34)}' if style else ''}{title}>{text}</td>"
