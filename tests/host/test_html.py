"""The parts of fragments and pages: escaped, aligned, bounded; and their colors in every theme.

Serves: phlox/host/{html,units}.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from phlox.host.html import (
    MOST_ROWS,
    Cell,
    bounded,
    escape,
    facts,
    fold,
    fragment,
    header,
    page,
    representation,
    short,
    table,
    text_table,
)
from phlox.host.units import amount, duration, size
from tests.markup import Markup
from tests.train.browser import PROGRAM, Browser

HOSTILE = "</td></table><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e\x1b[2J\udc80\x00"


def test_text_is_escaped_wherever_it_stands() -> None:
    body = (
        header(HOSTILE, HOSTILE, badges=[(HOSTILE, "bad")])
        + table([HOSTILE], [[Cell(HOSTILE, code=True, title=HOSTILE)], [HOSTILE]])
        + facts([(HOSTILE, HOSTILE)])
        + fold(header(HOSTILE), table(["a"], [["1"]]))
    )
    found = Markup(fragment(body))  # which knows what tags and attributes there may be
    assert found.text.count("<script>alert(1)</script>") == 9
    assert "\\u202e\\x1b[2J\\udc80\\x00" in found.text
    whole = page(HOSTILE, body)
    assert "<script" not in whole and "<img" not in whole and whole.count("<title>") == 1
    assert escape("é\n漢字 ☃") == "é\n漢字 ☃"


@pytest.mark.parametrize(("cells", "right"), [
    (["1", "-2.5", "1e-05", "nan", "-inf", "1,234", ""], True), (["12.6 M", "9.4 KiB", "64 B", "3.5%", "1.2 ms"], True),
    (["1", "two"], False), (["(3, 4)"], False), (["f32"], False), (["e5"], False), (["1 000"], False), (["B"], False),
])  # fmt: skip
def test_columns_of_numbers_are_aligned_to_the_right(cells: list[str], right: bool) -> None:
    text = table(["head"], [[cell] for cell in cells])
    assert ('<th class="n">' in text) is right and text.count('<td class="n">') == len(cells) * right


def test_columns_are_aligned_as_is_said() -> None:
    rows = [["1", "a", "2"]]
    assert table(["x", "", ""], rows, left=1).count('class="n"') == 4
    assert table(["x", "", ""], rows, left={1}).count('class="n"') == 4
    assert table(["x", "", ""], rows, left=3).count('class="n"') == 0
    assert table(["a"], []) == "" and facts([]) == "" and facts([("name", "")]) == ""


def test_cells() -> None:
    text = table(["a"], [[Cell("x", shade=0.5, bar=0.25, indent=2, kind="best")]], left=1)
    assert '<td class="m b best" style="--a: 0.500;--w: 25.0%;padding-left: 38px;">x</td>' in text
    assert Markup(fragment(text)).rows == [["a"], ["x"]]


def test_long_tables_are_bounded() -> None:
    found = Markup(fragment(bounded(["number"], [[str(n)] for n in range(5000)])))
    assert len(found.rows) == 1 + MOST_ROWS and "and 4,800 more" in found.text


def test_a_fold_without_content_is_a_line() -> None:
    assert "details" not in fold("line", "") and "<details open>" in fold("line", "x", is_open=True)


def test_what_fails_is_shown_by_its_repr() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "<odd>"

    def fails(value: object) -> str:
        raise RuntimeError("not foreseen")

    found = Markup(representation(Odd(), fails))
    assert found.is_fallback and found.text == "<odd>"


def test_values_in_one_line() -> None:
    class Bad:
        def __repr__(self) -> str:
            raise ValueError("no")

    assert short([1, 2]) == "[1, 2]" and short(len) == "len" and short(Bad) == "Bad"
    assert short(Bad()) == "<Bad: repr failed with ValueError>"
    assert len(short("x" * 10_000)) == 60 and "\n" not in short(type("A", (), {"__repr__": lambda self: "a\nb"})())


def test_text_tables() -> None:
    assert text_table(["a", "b"], [[Cell("x", indent=1), Cell("10")]], left=1) == "a     b\n  x  10"


@pytest.mark.parametrize(("found", "expected"), [
    (size(0), "0 B"), (size(1023), "1023 B"), (size(1024), "1.0 KiB"), (size(5 << 30), "5.0 GiB"),
    (amount(999), "999"), (amount(1000), "1.0 k"), (amount(999_949), "999.9 k"), (amount(999_950), "1.0 M"),
    (duration(0.0), "0"), (duration(5e-7), "0.50 us"), (duration(12.34), "12.3 s"), (duration(0.4567), "457 ms"),
])  # fmt: skip
def test_units(found: str, expected: str) -> None:
    assert found == expected


# --- themes

BODY = header("Tensor", "soft", badges=[("good", "good")]) + table(["a" * 200], [["b" * 200]])
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
