"""`Page`: the description of a value, written once, for text and for notebooks.

A page has a head, and below it lines, tables and other pages. `Page.text` writes it for a terminal, `phlox.host.html`
as HTML. Any text may come from an untrusted file: both writers escape it.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from phlox.host.text import listed, printable

MOST_ROWS = 200
"""A table in a notebook that may be long has at most so many rows."""
_LEAST = 20
"""The columns that a truncated cell keeps at least."""
_NAMES = 8
"""So many names are in a line."""
_NUMBER = re.compile(r"([-+]?\d[\d,]*\.?\d*(e[-+]?\d+)?( ?(%|[kMGTPE]|[kMGTPE]?B|s|ms|us))?)?|nan|-?inf|[–-]|unknown")


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table."""

    text: str
    shade: float = 0.0
    """How strongly it is marked, from 0 to 1."""
    bar: float | None = None
    """A bar behind the text, of this share of the width."""
    code: bool = False
    title: str = ""
    """What is shown where the mouse is over it."""
    indent: int = 0
    kind: str = ""
    """Its class in the style: `best`, `good`, `bad`, `soft`."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text in another style than `soft`: `good`, `bad`, `within`, `beyond`."""

    text: str
    kind: str


@dataclass(frozen=True, slots=True)
class Raw:
    """HTML, which has no counterpart in text: a plot, an image."""

    html: str


@dataclass(frozen=True, slots=True)
class Names:
    """What some names are: in text the first of them in a line, in HTML a list that folds; nothing without names."""

    what: str
    names: Sequence[str]
    is_open: bool = False


class Column(NamedTuple):
    """A column of a table, as it is shown."""

    head: str
    right: bool
    """Is it aligned to the right?"""
    cells: list[Cell]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under their heads, if it has any; rows may be shorter than others.

    Columns without content are omitted.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    left: int | Container[int] | None = None
    """So many columns are aligned to the left, or those whose numbers it holds; if None, those that hold something else
    than numbers."""
    most: int | None = None
    """So many rows are shown, and then how many more there are."""
    more: int = 0
    """The number of rows that there are besides those that are given."""
    spare: Sequence[int] = ()
    """Columns that text omits, in this order, where it has no room for them."""
    wrap: bool = False
    """Are long texts broken in HTML?"""

    def columns(self) -> dict[int, Column]:
        """What is shown, by the number of the column."""
        rows = [[Cell(cell) if isinstance(cell, str) else cell for cell in row] for row in self.rows[: self.most]]
        lefts = range(self.left) if isinstance(self.left, int) else self.left
        columns: dict[int, Column] = {}
        for place, head in enumerate(self.heads):
            cells = [row[place] if place < len(row) else Cell("") for row in rows]
            if any(cell.text for cell in cells):
                is_number = all(_NUMBER.fullmatch(cell.text) for cell in cells)
                columns[place] = Column(head, is_number if lefts is None else place not in lefts, cells)
        return columns

    @property
    def hidden(self) -> int:
        """The number of rows that are not shown."""
        return self.more + (0 if self.most is None else max(len(self.rows) - self.most, 0))

    def text(self, width: int | None = None) -> list[str]:
        """The lines.

        If `width` is too small, the columns in `spare` are omitted. Then the widest cells are truncated at their end,
        and finally those of the first column, which are paths, at their beginning. Texts that are broken in HTML stay
        whole.
        """
        columns = self.columns()
        width = None if self.wrap else width
        texts = {
            place: [printable(head)] * any(self.heads) + ["  " * cell.indent + printable(cell.text) for cell in cells]
            for place, (head, _, cells) in columns.items()
        }
        widths = {place: max(map(len, column)) for place, column in texts.items()}
        first = next(iter(columns), 0)
        for place in self.spare:
            least = {i: w if columns[i].right else min(w, _LEAST * (1 if i else 2)) for i, w in widths.items()}
            if width is not None and _total(least) > width:
                widths.pop(place, None)
        excess = 0 if width is None else _total(widths) - width
        for place in sorted(widths, key=lambda i: (i == first, -widths[i])):
            if excess > 0 and not columns[place].right and widths[place] > _LEAST:
                taken = min(excess, widths[place] - _LEAST)
                widths[place] -= taken
                excess -= taken
        lines = [
            "  ".join(_fit(texts[i][n], width, columns[i].right, i == first) for i, width in widths.items()).rstrip()
            for n in range(len(texts.get(first, ())))
        ]
        return [*lines, *[f"... and {self.hidden:,} more"] * bool(self.hidden)]


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + 2 * (len(widths) - 1)


def _fit(cell: str, width: int, right: bool, keep_end: bool) -> str:
    if len(cell) > width:
        cell = "..." + cell[len(cell) - width + 3 :] if keep_end else cell[: width - 3] + "..."
    return cell.rjust(width) if right else cell.ljust(width)


def facts(pairs: Iterable[tuple[str, str | Cell]]) -> Table:
    """A table of names and values; those without a value are left out."""
    return Table(("", ""), [(Cell(name, kind="soft"), value) for name, value in pairs if value != ""], 2, wrap=True)


@dataclass(frozen=True, slots=True)
class Row:
    """Parts beside each other in HTML, where there is room, and below each other in text."""

    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Page:
    """A head, unless its name is empty, and parts below it.

    In another page it folds: the head opens and closes the parts. There it is left out if it has but a name.
    """

    name: str
    said: Sequence[str] = ()
    """What is said of it in the same line; empty texts are left out."""
    parts: Sequence[Part] = ()
    badges: Sequence[tuple[str, str]] = ()
    """Short remarks, each with its class in the style: `good`, `bad`, or none."""
    is_open: bool = False
    path: str = ""
    """What stands before its name."""
    code: str = ""
    """What stands at the end of the head."""

    def head(self) -> str:
        """The first line as text."""
        name = f"{self.path} {self.name}" if self.path else self.name
        said = ", ".join(filter(None, [*self.said, *[text for text, _ in self.badges], self.code]))
        return printable(f"{name}: {said}" if said and name else name or said)

    def text(self, width: int | None = None) -> str:
        """The page as text that fits a width; None is none."""
        return "\n".join(_lines([self], width, top=True))


Part: TypeAlias = str | Line | Names | Raw | Table | Row | Page


def is_empty(part: Part) -> bool:
    """Is there nothing to show?"""
    if isinstance(part, Page):
        return not (part.said or part.badges or part.path or part.code) and all(map(is_empty, part.parts))
    if isinstance(part, Row):
        return all(map(is_empty, part.parts))
    if isinstance(part, Names):
        return not part.names
    if isinstance(part, Table):
        return not (part.rows or part.hidden)
    return not (part.html if isinstance(part, Raw) else as_line(part).text)


def as_line(part: str | Line | Names) -> Line:
    """What is no table as a line."""
    if isinstance(part, Names):
        return Line(f"{part.what}: {listed(part.names, _NAMES)}", "soft")
    return Line(part, "soft") if isinstance(part, str) else part


def _lines(parts: Sequence[Part], width: int | None, *, top: bool = False) -> list[str]:
    """The lines of parts; tables with heads, and pages, are set off from what is around them."""
    lines: list[str] = []
    apart = False
    for part in parts:
        if not top and is_empty(part):
            continue
        own = isinstance(part, Page) or (isinstance(part, Table) and any(part.heads))
        found = _lines_of(part, width)
        lines += [""] * bool(lines and found and (own or apart)) + found
        apart = own if found else apart
    return lines


def _lines_of(part: Part, width: int | None) -> list[str]:
    if isinstance(part, Table):
        return part.text(width)
    if isinstance(part, Row):
        return _lines(part.parts, width)
    if isinstance(part, Page):
        head = part.head()
        indent = "  " if head else ""
        inner = _lines(part.parts, None if width is None else width - len(indent))
        return [*[head] * bool(head), *[f"{indent}{line}".rstrip() for line in inner]]
    return [] if isinstance(part, Raw) else [printable(as_line(part).text)]
