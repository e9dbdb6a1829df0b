"""HTML for notebooks and whole pages, on light and dark screens, that needs nothing else; and tables as text.

What `_repr_html_` returns is a `fragment`: one element with its own style, without scripts. All text is escaped here,
where it is put in, for names and values may come from files of strangers.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

# Text and lines take the color of what is around them, so they fit every theme. Accents are darker on a light ground.
_LIGHT = "color-scheme:light;--c0:#2563eb;--c1:#c2410c;--c2:#0f766e;--c3:#7c3aed;--good:#0f766e;--bad:#c2410c"
_DARK = "color-scheme:dark;--c0:#7cb0ff;--c1:#ff9a5c;--c2:#4fd1c0;--c3:#c4a5ff;--good:#4fd1c0;--bad:#ff9a5c"
_THEMES = (  # of Colab, JupyterLab, furo and VS Code: the page's word counts for more than the system's
    ("html[theme={0}] .phlox, body[data-theme={0}] .phlox, html[data-theme={0}] .phlox, body.vscode-{0} .phlox"),
    "body[data-jp-theme-light={1}] .phlox",
)


def _themed() -> str:
    found = [f".phlox {{ {_LIGHT} }}", f"@media (prefers-color-scheme: dark) {{ .phlox {{ {_DARK} }} }}"]
    for name, is_light, colors in (("light", "true", _LIGHT), ("dark", "false", _DARK)):
        found.append(f"{', '.join(_THEMES).format(name, is_light)} {{ {colors} }}")
    return "\n".join(found)


_STYLE = f"""
{_themed()}
.phlox {{ color: inherit; font: 14px/1.5 system-ui, sans-serif; text-align: left; }}
.phlox h2 {{ font-size: 16px; margin: 26px 0 6px; overflow-wrap: anywhere; }}
.phlox p {{ margin: 4px 0; overflow-wrap: anywhere; }}
.phlox pre {{ margin: 4px 0; overflow-x: auto; color: inherit; background: transparent; }}
.phlox.phlox code {{ font: 12.5px/1.5 ui-monospace, monospace; color: inherit; background: transparent; border: 0;
  padding: 0; }}
.phlox .soft {{ opacity: .72; }} .phlox .good {{ color: var(--good); }} .phlox .bad {{ color: var(--bad); }}
.phlox .within::before, .phlox .beyond::before {{ content: ""; display: inline-block; width: 9px; height: 9px;
  border-radius: 50%; margin-right: 7px; background: var(--good); }}
.phlox .beyond::before {{ background: var(--bad); }}
.phlox .badge {{ display: inline-block; border: 1px solid; border-radius: 9px; padding: 0 6px; font-size: 11px;
  line-height: 16px; white-space: nowrap; vertical-align: 1px; }}
.phlox .scroll {{ overflow: auto; max-height: 420px; margin: 6px 0; }}
.phlox table {{ border-collapse: collapse; color: inherit; background: transparent; font-size: 13px; margin: 0;
  table-layout: auto; font-variant-numeric: tabular-nums; }}
.phlox tbody tr:nth-child(n) {{ background: transparent; }}
.phlox th, .phlox td {{ padding: 2px 10px; text-align: left; white-space: nowrap; color: inherit; max-width: none;
  background: transparent; border: 0; border-bottom: 1px solid rgb(128 128 128 / .28); vertical-align: top; }}
.phlox th {{ font-weight: 500; opacity: .72; }} .phlox .n {{ text-align: right; }}
.phlox td.best {{ font-weight: 700; }}
.phlox .wrap td {{ white-space: normal; overflow-wrap: anywhere; min-width: 5em; }}
.phlox td.m {{ background: rgb(232 89 12 / calc(var(--a) * .55)); }}
.phlox td.b {{ background: linear-gradient(to right, rgb(59 130 246 / .32) var(--w), transparent var(--w)); }}
.phlox summary {{ cursor: pointer; overflow-wrap: anywhere; }} .phlox details {{ margin: 1px 0; }}
.phlox details > div {{ margin-left: 7px; padding-left: 11px; border-left: 1px solid rgb(128 128 128 / .28); }}
.phlox .row {{ display: flex; flex-wrap: wrap; gap: 6px 18px; align-items: flex-start; }}
.phlox .row > * {{ min-width: 0; max-width: 100%; }} .phlox figure {{ margin: 4px 0; }}
.phlox figcaption {{ font-size: 12px; opacity: .72; }}
.phlox img {{ display: block; max-width: 100%; image-rendering: pixelated; margin: 0; }}
.phlox svg {{ display: block; max-width: 100%; height: auto; }}
.phlox svg text {{ fill: currentColor; font-size: 11px; opacity: .72; }}
.phlox svg .c0 {{ stroke: var(--c0); }} .phlox svg .c1 {{ stroke: var(--c1); }}
.phlox svg .c2 {{ stroke: var(--c2); }} .phlox svg .c3 {{ stroke: var(--c3); }}
.phlox i.key {{ display: inline-block; width: 14px; border-top: 3px solid; margin: 0 5px 0 0; vertical-align: 4px; }}
.phlox .c0 {{ color: var(--c0); }} .phlox .c1 {{ color: var(--c1); }} .phlox .c2 {{ color: var(--c2); }}
.phlox .c3 {{ color: var(--c3); }}
"""
_PAGE = """
:root { color-scheme: light dark; --back: #f7f7f5; --ink: #1f2328; }
@media (prefers-color-scheme: dark) { :root { --back: #121417; --ink: #e4e7eb; } }
:root[data-theme=light] { color-scheme: light; --back: #f7f7f5; --ink: #1f2328; }
:root[data-theme=dark] { color-scheme: dark; --back: #121417; --ink: #e4e7eb; }
body { margin: 0; background: var(--back); color: var(--ink); }
main { max-width: 1180px; margin: 0 auto; padding: 20px 16px 60px; }
h1 { font: 600 22px/1.3 system-ui, sans-serif; margin: 0; overflow-wrap: anywhere; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

MOST_ROWS = 200
"""A table in a notebook has at most so many rows."""
_LONGEST = 60


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


def escape(text: str) -> str:
    """Text as HTML; control characters, which could hide or reverse what stands around them, as their codes.

    >>> escape("a < b"), escape("a\\x00b")
    ('a &lt; b', 'a\\\\x00b')
    """
    if not text.isprintable():
        text = "".join([c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text])
    return html.escape(text)


def fragment(body: str) -> str:
    """A piece of HTML for a notebook."""
    return f'<div class="phlox"><style>{_STYLE}</style>{body}</div>'


def page(title: str, body: str, *, style: str = "", script: str = "") -> str:
    """A whole file."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>{_PAGE}{_STYLE}{style}</style>\n</head>\n"
        f'<body><main class="phlox"><h1>{escape(title)}</h1>{body}</main>'
        f"{f'<script>{script}</script>' if script else ''}</body>\n</html>\n"
    )


def representation(value: T, body: Callable[[T], str]) -> str:
    """The fragment that `_repr_html_` returns: `body` of a value or, where that fails, its `repr`.

    A notebook shows values in any state (donated, in the middle of a trace, half built), and must show them all.
    """
    try:
        return fragment(body(value))
    except Exception:
        return fragment(f"<pre>{escape(repr(value))}</pre>")


# --- lines


def header(name: str, *parts: str, badges: Sequence[tuple[str, str]] = ()) -> str:
    """The first line: what it is, and what is said of it; badges are texts with their classes (`good`, `bad`)."""
    rest = "".join(f' <span class="soft">· {escape(part)}</span>' for part in parts if part)
    return f"<b>{escape(name)}</b>{rest}{''.join(f' {badge(*one)}' for one in badges)}"


def badge(text: str, kind: str = "") -> str:
    """A short remark in a frame."""
    return f'<span class="badge {kind or "soft"}">{escape(text)}</span>'


def paragraph(text: str, kind: str = "soft") -> str:
    """A line of text."""
    return f'<p class="{kind}">{escape(text)}</p>' if text else ""


def fold(summary: str, body: str, *, is_open: bool = False) -> str:
    """Content under a line that opens and closes it; the line, which is HTML, alone where there is no content."""
    if not body:
        return f"<div>{summary}</div>"
    return f"<details{' open' * is_open}><summary>{summary}</summary><div>{body}</div></details>"


def counted(number: int, what: str, several: str = "") -> str:
    """A number of things.

    >>> counted(1, "entry", "entries"), counted(1200, "state")
    ('1 entry', '1,200 states')
    """
    return f"{number:,} {what if number == 1 else several or f'{what}s'}"


def short(value: object, longest: int = _LONGEST) -> str:
    """The `repr` of a value in one line, cut where it is long; functions and classes by their names."""
    if callable(value) and (name := getattr(value, "__name__", None)) is not None:
        return str(name)[:longest]
    try:
        text = " ".join(repr(value).split())
    except Exception as error:
        text = f"<{type(value).__name__}: repr failed with {type(error).__name__}>"
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


# --- tables


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str | Cell]],
    *,
    left: int | Container[int] | None = None,
    wrap: bool = False,
) -> str:
    """A table in a box of its own, in which it scrolls; nothing without rows.

    The first `left` columns are aligned to the left, or those whose numbers it holds; if it is None, those that hold
    something else than numbers. `wrap` breaks long texts.
    """
    if not rows:
        return ""
    columns = [[_cell_of(row[place]) for row in rows if place < len(row)] for place in range(len(heads))]
    lefts = range(left) if isinstance(left, int) else left
    right = [
        all(map(_is_number, column)) if lefts is None else place not in lefts for place, column in enumerate(columns)
    ]
    head = "".join(f"<th{_class('n' * one)}>{escape(text)}</th>" for text, one in zip(heads, right, strict=True))
    body = "\n".join(
        f"<tr>{''.join(_cell(_cell_of(one), is_right) for one, is_right in zip(row, right, strict=False))}</tr>"
        for row in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if any(heads) else ""
    return f'<div class="scroll{" wrap" * wrap}"><table>{top}<tbody>\n{body}\n</tbody></table></div>'


def bounded(heads: Sequence[str], rows: Sequence[Sequence[str | Cell]], *, left: int | None = None) -> str:
    """A table of the first rows, and how many more there are."""
    more = len(rows) - MOST_ROWS
    note = paragraph(f"and {more:,} more") if more > 0 else ""
    return table(heads, rows[:MOST_ROWS], left=left) + note


def facts(pairs: Sequence[tuple[str, str | Cell]]) -> str:
    """A table of names and values; those without a value are left out."""
    rows = [[Cell(name, kind="soft"), value] for name, value in pairs if value != ""]
    return table(["", ""], rows, left=2, wrap=True)


def _cell_of(one: str | Cell) -> Cell:
    return Cell(one) if isinstance(one, str) else one


_NUMBER = re.compile(r"([-+]?\d[\d,]*\.?\d*(e[-+]?\d+)?( ?(%|[kMGTPE]|B|[KMGTP]iB|s|ms|us))?)?|nan|-?inf|–|unknown")


def _is_number(cell: Cell) -> bool:
    return _NUMBER.fullmatch(cell.text) is not None


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
    text = f"<code>{escape(cell.text)}</code>" if cell.code else escape(cell.text)
    title = f' title="{escape(cell.title)}"' if cell.title else ""
    return f"<td{names}{f' style={chr(34)}{style}{chr(34)}' if style else ''}{title}>{text}</td>"


def number(value: float) -> str:
    """A number with six digits.

    >>> number(0.123456789), number(12), number(float("nan")), number(1234567)
    ('0.123457', '12', 'nan', '1,234,567')
    """
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def text_table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], *, left: int) -> str:
    """A table as text."""
    lines = [list(heads), *[["  " * cell.indent + cell.text for cell in row] for row in rows]]
    widths = [max(len(line[n]) for line in lines) for n in range(len(heads))]

    def joined(line: list[str]) -> str:
        cells = [text.ljust(widths[n]) if n < left else text.rjust(widths[n]) for n, text in enumerate(line)]
        return "  ".join(cells).rstrip()

    return "\n".join(map(joined, lines))
