"""Text for the terminal: tables that fit its width, sizes, and escaped names."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

_LEAST = 20
"""The columns of the terminal that a truncated cell keeps at least."""


def printable(text: str, keep: str = "") -> str:
    """`text` with unprintable characters escaped: a name from an untrusted file may contain terminal escape codes.

    >>> printable("a\\x1b[2J\\n")
    'a\\\\x1b[2J\\\\n'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def size_text(count: int) -> str:
    """A number of bytes, with three significant digits.

    >>> [size_text(count) for count in (0, 999, 1000, 27_796, 999_950, 5 * 10**9)]
    ['0 B', '999 B', '1.00 kB', '27.8 kB', '1.00 MB', '5.00 GB']
    """
    if count < 1000:
        return f"{count} B"
    amount, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB", "PB", "EB"):
        if amount < 999.5:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.{2 if amount < 9.995 else 1 if amount < 99.95 else 0}f} {unit}"


def count_text(count: int, one: str, several: str | None = None) -> str:
    """A count and its noun.

    >>> count_text(1, "entry", "entries"), count_text(1200, "tensor")
    ('1 entry', '1,200 tensors')
    """
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def terminal_width() -> int | None:
    """The width of the terminal; None if the output goes elsewhere and has no limit."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(
    rows: Sequence[Sequence[str]],
    heads: Sequence[str] | None = None,
    *,
    right: Sequence[int] = (),
    spare: Sequence[int] = (),
    width: int | None = None,
    indent: int = 0,
) -> str:
    """Rows of cells in columns. The columns in `right` are aligned to the right; empty columns are omitted.

    If `width` is too small, the columns in `spare` are omitted in their order. Then the widest cells are truncated at
    their end, and finally those of the first column, which are paths, at their beginning.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    kept = [i for i in range(max(map(len, cells), default=0)) if any(row[i : i + 1] not in ([], [""]) for row in cells)]
    columns = {i: [*([heads[i]] if heads else []), *(row[i] if i < len(row) else "" for row in cells)] for i in kept}
    widths = {i: max(map(len, column)) for i, column in columns.items()}
    for place in spare:
        least = {i: w if i in right else min(w, _LEAST * (1 if i else 2)) for i, w in widths.items()}
        if width is not None and _total(least, indent) > width:
            widths.pop(place, None)
    excess = 0 if width is None else _total(widths, indent) - width
    for place in [*sorted(kept[1:], key=lambda i: -widths.get(i, 0)), *kept[:1]]:
        if excess > 0 and place not in right and widths.get(place, 0) > _LEAST:
            taken = min(excess, widths[place] - _LEAST)
            widths[place] -= taken
            excess -= taken
    lines = (
        "  ".join(_fit(columns[i][line], widths[i], i in right, i == kept[0]) for i in widths)
        for line in range(len(rows) + bool(heads))
    )
    return "\n".join((" " * indent + line).rstrip() for line in lines)


def _total(widths: dict[int, int], indent: int) -> int:
    return indent + sum(widths.values()) + 2 * (len(widths) - 1)


def _fit(cell: str, width: int, right: bool, keep_end: bool) -> str:
    if len(cell) > width:
        cell = "..." + cell[len(cell) - width + 3 :] if keep_end else cell[: width - 3] + "..."
    return cell.rjust(width) if right else cell.ljust(width)
