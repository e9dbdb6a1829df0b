"""Tables that fit the terminal, sizes of files, and names that cannot disturb it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phlox.cli.text import count_text, printable, size_text, table, terminal_width


@given(st.text(max_size=30))
def test_what_is_shown_is_printable_and_can_be_read_back(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    if text.isprintable():
        assert shown == text
    elif text.isascii() and "\\" not in text:
        assert shown.encode().decode("unicode_escape") == text


def test_what_is_kept() -> None:
    assert printable("a\n\tb\x1b", keep="\n") == "a\n\\tb\\x1b"


@given(st.integers(0, 10**21))
def test_sizes_have_three_digits_and_are_right_to_half_of_the_last(count: int) -> None:
    number, unit = size_text(count).split()
    scale = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15, "EB": 1e18}[unit]
    decimals = len(number.partition(".")[2])
    assert abs(float(number) * scale - count) <= 0.5001 * scale * 10.0**-decimals + 1e-9 * count
    assert len(number.replace(".", "")) <= (3 if count < 999.5e18 else 4)
    assert unit == "B" or len(number.replace(".", "")) >= 3


def test_counts() -> None:
    assert [count_text(n, "tensor") for n in (0, 1, 2)] == ["0 tensors", "1 tensor", "2 tensors"]
    assert count_text(12345, "entry", "entries") == "12,345 entries"


ROWS = [["layers.0.weight", "f32", "12", ""], ["b", "bf16", "1234567", ""]]


def test_columns_are_aligned_and_empty_ones_left_out() -> None:
    assert table(ROWS, ["path", "type", "size", "note"], right=[2]).splitlines() == [
        "path             type     size",
        "layers.0.weight  f32        12",
        "b                bf16  1234567",
    ]
    assert table([["a", "b"]], indent=2) == "  a  b"
    assert table([]) == ""


@given(st.lists(st.lists(st.text("ab", max_size=60), min_size=3, max_size=3), min_size=1, max_size=4))
def test_cells_are_cut_to_a_width(rows: list[list[str]]) -> None:
    whole = table(rows).split("\n")
    cut = table(rows, width=70).split("\n")
    assert len(cut) == len(whole)
    assert max(map(len, cut)) <= 70
    if max(map(len, whole)) <= 70:
        assert cut == whole


def test_paths_keep_their_end_and_others_their_beginning() -> None:
    path, note = "encoder." * 10 + "weight", "because " * 10
    (line,) = table([[path, note]], width=60).splitlines()
    first, second = line.split("  ")[:2]
    assert first.startswith("...") and first.endswith("weight")
    assert second.startswith("because") and line.endswith("...")


def test_columns_that_can_be_spared() -> None:
    rows = [["x" * 60, "y" * 30, "3"]]
    assert "y" not in table(rows, width=50, spare=[1], right=[2])
    assert "y" in table(rows, width=200, spare=[1], right=[2])


def test_output_that_goes_elsewhere_has_no_width(capsys: pytest.CaptureFixture[str]) -> None:
    assert terminal_width() is None
