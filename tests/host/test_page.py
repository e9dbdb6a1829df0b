"""Pages as text: tables that fit a width, what is set off from what, names that cannot disturb a terminal.

Serves: phlox/host/page.py, phlox/host/text.py
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phlox.host.page import Cell, Line, Names, Page, Raw, Row, Table, facts
from phlox.host.text import Report

HOSTILE = "a\x1b[2J\u202e\nb"
ROWS = [["layers.0.weight", "f32", "12", ""], ["b", "bf16", "1234567", ""]]


def table(rows: Sequence[Sequence[str]], left: int, width: int | None = None, spare: Sequence[int] = ()) -> str:
    return Page("", parts=[Table([""] * len(rows[0]), rows, left, spare=spare)]).text(width)


def test_columns_are_aligned_and_empty_ones_left_out() -> None:
    assert Table(["path", "type", "size", "note"], ROWS).text() == [
        "path             type     size",
        "layers.0.weight  f32        12",
        "b                bf16  1234567",
    ]
    assert Table(["a", "b"], [[Cell("x", indent=1), Cell("10")]]).text() == ["a     b", "  x  10"]
    assert Table(["a"], []).text() == []
    assert Table(["", "b"], [[], ["a"], ["c", "d"]]).text() == ["   b", "", "a", "c  d"]


@pytest.mark.parametrize(("cells", "right"), [
    (["1", "-2.5", "1e-05", "nan", "-inf", "1,234", ""], True), (["12.6 M", "9.4 kB", "64 B", "3.5%", "1.2 ms"], True),
    (["1", "two"], False), (["(3, 4)"], False), (["f32"], False), (["e5"], False), (["1 000"], False), (["B"], False),
])  # fmt: skip
def test_columns_of_numbers_are_aligned_to_the_right(cells: list[str], right: bool) -> None:
    (column,) = Table(["head"], [[cell] for cell in cells]).columns().values()
    assert column.right == right


def test_columns_are_aligned_as_is_said() -> None:
    for left, right in ((1, [False, True, True]), ({1}, [True, False, True]), (3, [False] * 3)):
        columns = Table(["x", "", ""], [["1", "a", "2"]], left).columns().values()
        assert [column.right for column in columns] == right


@given(st.lists(st.lists(st.text("ab", max_size=60), min_size=3, max_size=3), min_size=1, max_size=4))
def test_cells_are_cut_to_a_width(rows: list[list[str]]) -> None:
    whole = table(rows, 3).split("\n")
    cut = table(rows, 3, width=70).split("\n")
    assert len(cut) == len(whole)
    assert max(map(len, cut)) <= 70
    if max(map(len, whole)) <= 70:
        assert cut == whole


def test_paths_keep_their_end_and_others_their_beginning() -> None:
    path, note = "encoder." * 10 + "weight", "because " * 10
    (line,) = table([[path, note]], 2, width=60).splitlines()
    first, second = line.split("  ")[:2]
    assert first.startswith("...") and first.endswith("weight")
    assert second.startswith("because") and line.endswith("...")
    assert facts([("File", "x" * 100)]).text(20) == [f"File  {'x' * 100}"]


def test_columns_that_can_be_spared() -> None:
    rows = [["x" * 60, "y" * 30, "3"]]
    assert "y" not in table(rows, 2, width=50, spare=[1])
    assert "y" in table(rows, 2, width=200, spare=[1])


def test_long_tables_are_cut() -> None:
    rows = [[str(n)] for n in range(5000)]
    assert Table(["n"], rows, most=2).text() == ["n", "0", "1", "... and 4,998 more"]
    assert Page("", parts=[Table(["n"], [], more=3)]).text() == "... and 3 more"


def test_a_page() -> None:
    page = Page("f", ["one call", "", "by hand"], [
        facts([("size", "12 B"), ("nothing", "")]),
        "",
        Page("empty", parts=[Row([Table(["a"], [])]), Names("none", [])]),
        Table(["a"], [["1"]]),
        Line("a line", "good"),
        "another",
        Names("kept", [str(n) for n in range(10)]),
        Page("Only here", parts=[Table(["", ""], [["x", "y"]])]),
        Raw("<svg></svg>"),
        Page("Linear", path="layers.0", code="bias=True"),
        Page("", parts=["last"]),
    ], [("ok", "good")])  # fmt: skip
    assert (
        page.text()
        == """\
f: one call, by hand, ok
  size  12 B

  a
  1

  a line
  another
  kept: 0, 1, 2, 3, 4, 5, 6, 7 and 2 more

  Only here
    x  y

  layers.0 Linear: bias=True

  last"""
    )
    assert Page("", ["said"]).text() == "said" and Page("name").text() == "name" and Page("").text() == ""


def test_no_text_of_strangers_controls_the_terminal() -> None:
    parts = [
        HOSTILE, Line(HOSTILE, "bad"), Names(HOSTILE, [HOSTILE]), Table([HOSTILE], [[HOSTILE]]),
        Page(HOSTILE, [HOSTILE], badges=[(HOSTILE, "")], path=HOSTILE, code=HOSTILE),
    ]  # fmt: skip
    text = Page(HOSTILE, [HOSTILE], parts).text()
    assert text.replace("\n", "").isprintable() and text.count("\\x1b[2J\\u202e") == 13


def test_a_report_prints_what_a_notebook_shows() -> None:
    class Found(Report):
        def _page(self) -> Page:
            return Page("Found", ["<1>"])

    assert str(Found()) == repr(Found()) == "Found: <1>"
    assert "<b>Found</b>" in Found()._repr_html_() and "&lt;1&gt;" in Found()._repr_html_()
