"""A `Page` as HTML, for notebooks and as a file, on light and dark screens; it needs nothing else.

What `_repr_html_` returns is a `fragment`: one element with its own style, without scripts. All text is escaped here,
where it is put in, for names and values may come from files of strangers.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from phlox.host.page import MOST_ROWS, Cell, Line, Names, Page, Part, Raw, Row, Table, as_line, is_empty
from phlox.host.text import printable

if TYPE_CHECKING:
    import os

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


def escape(text: str) -> str:
    """Text as HTML; control characters, which could hide or reverse what stands around them, as their codes.

    >>> escape("a < b"), escape("a\\x00b")
    ('a &lt; b', 'a\\\\x00b')
    """
    return html.escape(printable(text, keep="\n\t"))


def fragment(page: Page) -> str:
    """A piece of HTML for a notebook."""
    return f'<div class="phlox"><style>{_STYLE}</style>{_top(page)}</div>'


def document(
    title: str, page: Page, path: str | os.PathLike[str] | None = None, *, style: str = "", script: str = ""
) -> str:
    """A whole file, which is written if there is a path; returns its text."""
    text = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>{_PAGE}{_STYLE}{style}</style>\n</head>\n"
        f'<body><main class="phlox"><h1>{escape(title)}</h1>{_top(page)}</main>'
        f"{f'<script>{script}</script>' if script else ''}</body>\n</html>\n"
    )
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
    rows = table.cells()
    right = table.right(rows)
    head = "".join(f"<th{_class('n' * one)}>{escape(text)}</th>" for text, one in zip(table.heads, right, strict=True))
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
    text = f"<code>{escape(cell.text)}</code>" if cell.code else escape(cell.text)
    title = f' title="{escape(cell.title)}"' if cell.title else ""
    return f"<td{names}{f' style={chr(34)}{style}{chr(34)}' if style else ''}{title}>{text}</td>"
