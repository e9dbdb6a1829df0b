"""The parts of fragments and pages: escaped, aligned, bounded; and their colors in every theme."""

from __future__ import annotations

from pathlib import Path

import pytest

from phlox.host.html import document, escape, fragment, part_html, representation
from phlox.host.page import MOST_ROWS, Cell, Line, Names, Page, Part, Row, Table, facts
from tests.markup import Markup
from tests.train.browser import PROGRAM, Browser

HOSTILE = "</td></table><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\x1b[2J\udc80\x00"


def shown(*parts: Part) -> Markup:
    return Markup(fragment(Page("", parts=parts)))


def test_text_is_escaped_wherever_it_stands() -> None:
    page = Page(HOSTILE, [HOSTILE], [
        Table([HOSTILE], [[Cell(HOSTILE, code=True, title=HOSTILE)], [HOSTILE]]),
        facts([(HOSTILE, HOSTILE)]),
        Line(HOSTILE, "good"),
        Names(HOSTILE, [HOSTILE]),
        Page(HOSTILE, parts=[Table(["a"], [["1"]])], path=HOSTILE, code=HOSTILE),
    ], [(HOSTILE, "bad")])  # fmt: skip
    found = Markup(fragment(page))  # which knows what tags and attributes there may be
    assert found.text.count("<script>alert(1)</script>") == 14
    assert "\\u202e\\x1b[2J\\udc80\\x00" in found.text
    whole = document(HOSTILE, page)
    assert "<script" not in whole and "<img" not in whole and whole.count("<title>") == 1
    assert escape("é\n漢字 ☃") == "é\n漢字 ☃"


def test_cells() -> None:
    table = Table(["a"], [[Cell("x", shade=0.5, bar=0.25, indent=2, kind="best")]], 1)
    assert '<td class="m b best" style="--a: 0.500;--w: 25.0%;padding-left: 38px;">x</td>' in part_html(table)
    assert shown(table).rows == [["a"], ["x"]]
    text = part_html(Table(["head"], [["1"], ["2"]]))
    assert '<th class="n">' in text and text.count('<td class="n">') == 2


def test_long_tables_are_bounded() -> None:
    found = shown(Table(["number"], [[str(n)] for n in range(5000)], most=MOST_ROWS))
    assert len(found.rows) == 1 + MOST_ROWS and "and 4,800 more" in found.text


def test_what_folds() -> None:
    assert "<details open>" in part_html(Page("line", parts=["x"], is_open=True))
    assert part_html(Page("line", ["x"])) == '<div><b>line</b> <span class="soft">· x</span></div>'
    for empty in (Page("line"), Page("line", parts=[Table(["a"], [])]), Names("none", []), Row([""]), facts([]), ""):
        assert part_html(empty) == ""
    assert shown(Names("kept", ["a", "b"])).rows == [["a"], ["b"]] and shown(Row(["a", "b"])).texts == ["a", "b"]


def test_a_file_is_written(tmp_path: Path) -> None:
    text = document("title {{body}}", Page("{{style}}"), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == text and ".phlox" in text
    assert "<h1>title {{body}}</h1>" in text and "<b>{{style}}</b>" in text


def test_what_fails_is_shown_by_its_repr() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "<odd>"

    def fails(value: object) -> Page:
        raise RuntimeError("not foreseen")

    found = Markup(representation(Odd(), fails))
    assert found.is_fallback and found.text == "<odd>"


# --- themes

BODY = Page("Tensor", ["soft"], [Table(["a" * 200], [["b" * 200]])], [("good", "good")])
THEMES = [
    ("<html>", "<body>", None), ('<html theme="dark">', "<body>", True), ('<html theme="light">', "<body>", False),
    ("<html>", '<body data-jp-theme-light="false">', True), ("<html>", '<body data-jp-theme-light="true">', False),
    ("<html>", '<body data-theme="dark">', True), ("<html>", '<body data-theme="light">', False),
    ("<html>", '<body data-theme="auto">', None), ("<html>", '<body class="vscode-dark">', True),
]  # fmt: skip


@pytest.mark.full
@pytest.mark.skipif(PROGRAM is None, reason="there is no browser")
def test_colors_follow_the_page_and_else_the_system(tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        for number, (html, body, dark) in enumerate(THEMES):
            path = tmp_path / f"{number}.html"
            path.write_text(
                f"<!doctype html>{html}<head><meta charset=utf-8></head>{body}{fragment(BODY)}</body></html>"
            )
            for system in (False, True):
                browser.open(path, dark=system, width=400)
                expected = "rgb(79, 209, 192)" if (system if dark is None else dark) else "rgb(15, 118, 110)"
                assert browser.value("getComputedStyle(document.querySelector('.badge')).color") == expected, (
                    body,
                    system,
                )
                assert browser.value("document.documentElement.scrollWidth <= innerWidth"), "tables scroll in their box"
        assert browser.errors == []
