"""HTML files and pieces for notebooks, for light and dark screens, that need nothing else; and tables as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

# Colours of pieces for notebooks are those of the page around, and lines are half transparent.
_STYLE = """
.phlox-debug { color: inherit; font: 14px/1.5 system-ui, sans-serif; }
.phlox-debug h2 { font-size: 16px; margin: 26px 0 6px; overflow-wrap: anywhere; }
.phlox-debug p { margin: 4px 0; overflow-wrap: anywhere; }
.phlox-debug .soft { opacity: .72; }
.phlox-debug .within::before, .phlox-debug .beyond::before { content: ""; display: inline-block; width: 9px;
  height: 9px; border-radius: 50%; margin-right: 7px; background: #0d9488; }
.phlox-debug .beyond::before { background: #e8590c; }
.phlox-debug .scroll { overflow-x: auto; margin: 8px 0; }
.phlox-debug table { border-collapse: collapse; color: inherit; background: transparent; font-size: 13px;
  font-variant-numeric: tabular-nums; }
.phlox-debug th, .phlox-debug td { padding: 3px 10px; text-align: right; white-space: nowrap; color: inherit;
  background: transparent; border: 0; border-bottom: 1px solid rgb(128 128 128 / .28); }
.phlox-debug th { font-weight: 500; opacity: .72; } .phlox-debug .l { text-align: left; }
.phlox-debug td.m { background: rgb(232 89 12 / calc(var(--a) * .55)); }
.phlox-debug td.b { background: linear-gradient(to right, rgb(59 130 246 / .32) var(--w), transparent var(--w)); }
.phlox-debug summary { cursor: pointer; margin-top: 8px; }
"""
_PAGE = """
:root { color-scheme: light dark; --back: #f7f7f5; --ink: #1f2328; }
@media (prefers-color-scheme: dark) { :root { --back: #121417; --ink: #e4e7eb; } }
body { margin: 0; background: var(--back); color: var(--ink); }
main { max-width: 1180px; margin: 0 auto; padding: 20px 16px 60px; }
h1 { font: 600 22px/1.3 system-ui, sans-serif; margin: 0; overflow-wrap: anywhere; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True, slots=True)
class Cell:
    """What stands in one cell of a table."""

    text: str
    shade: float = 0.0
    """How strongly it is marked, from 0 to 1."""
    bar: float | None = None
    """A bar behind the text, of this share of the width."""
    code: bool = False
    title: str = ""
    """What is shown where the mouse is over it."""
    indent: int = 0


def fragment(body: str) -> str:
    """A piece of HTML for a notebook."""
    return f'<div class="phlox-debug"><style>{_STYLE}</style>{body}</div>'


def page(title: str, body: str, *, style: str = "", script: str = "") -> str:
    """A whole file."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>{_PAGE}{_STYLE}{style}</style>\n</head>\n"
        f'<body><main class="phlox-debug"><h1>{escape(title)}</h1>{body}</main>'
        f"{f'<script>{script}</script>' if script else ''}</body>\n</html>\n"
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], *, left: int) -> str:
    """A table, the first `left` columns of which are set flush left."""
    head = "".join(f"<th{_class(left > n)}>{escape(text)}</th>" for n, text in enumerate(heads))
    body = "".join(f"<tr>{''.join(_cell(one, left > n) for n, one in enumerate(row))}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _class(left: bool, *others: str) -> str:
    names = [*(["l"] if left else []), *filter(None, others)]
    return f' class="{" ".join(names)}"' if names else ""


def _cell(cell: Cell, left: bool) -> str:
    style = f"--a: {cell.shade:.2f};" if cell.shade else ""
    if cell.bar is not None:
        style += f"--w: {100 * cell.bar:.1f}%;"
    if cell.indent:
        style += f"padding-left: {10 + 14 * cell.indent}px;"
    names = _class(left, "m" if cell.shade else "", "b" if cell.bar is not None else "")
    text = f"<code>{escape(cell.text)}</code>" if cell.code else escape(cell.text)
    title = f' title="{escape(cell.title)}"' if cell.title else ""
    return f"<td{names}{f' style={chr(34)}{style}{chr(34)}' if style else ''}{title}>{text}</td>"


def text_table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], *, left: int) -> str:
    """The same as text."""
    lines = [list(heads), *[["  " * cell.indent + cell.text for cell in row] for row in rows]]
    widths = [max(len(line[n]) for line in lines) for n in range(len(heads))]

    def joined(line: list[str]) -> str:
        cells = [text.ljust(widths[n]) if n < left else text.rjust(widths[n]) for n, text in enumerate(line)]
        return "  ".join(cells).rstrip()

    return "\n".join(map(joined, lines))
