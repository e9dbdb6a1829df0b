"""Sizes, times and counts in few digits, and names that cannot disturb a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phlox.host.text import amount, count, duration, listed, printable, short, size, terminal_width


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
def test_sizes_have_three_digits_and_are_right_to_half_of_the_last(whole: int) -> None:
    number, unit = size(whole).split()
    scale = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15, "EB": 1e18}[unit]
    decimals = len(number.partition(".")[2])
    assert abs(float(number) * scale - whole) <= 0.5001 * scale * 10.0**-decimals + 1e-9 * whole
    assert len(number.replace(".", "")) <= (3 if whole < 999.5e18 else 4)
    assert unit == "B" or len(number.replace(".", "")) >= 3


@pytest.mark.parametrize(("found", "expected"), [
    (size(0), "0 B"), (size(999), "999 B"), (size(1024), "1.02 kB"), (size(5 << 30), "5.37 GB"),
    (amount(999), "999"), (amount(1000), "1.00 k"), (amount(999_499), "999 k"), (amount(999_500), "1.00 M"),
    (duration(0.0), "0"), (duration(5e-7), "0.50 us"), (duration(12.34), "12.3 s"), (duration(0.4567), "457 ms"),
])  # fmt: skip
def test_units(found: str, expected: str) -> None:
    assert found == expected


def test_counts() -> None:
    assert [count(n, "tensor") for n in (0, 1, 2)] == ["0 tensors", "1 tensor", "2 tensors"]
    assert count(12345, "entry", "entries") == "12,345 entries"


def test_lists_of_names() -> None:
    assert listed(["a", "b"], 2) == "a, b" and listed(["a"] * 2000, 1) == "a and 1,999 more" and listed([], 3) == ""


def test_values_in_one_line() -> None:
    class Bad:
        def __repr__(self) -> str:
            raise ValueError("no")

    assert short([1, 2]) == "[1, 2]" and short(len) == "len" and short(Bad) == "Bad"
    assert short(Bad()) == "<Bad: repr failed with ValueError>"
    assert len(short("x" * 10_000)) == 60 and "\n" not in short(type("A", (), {"__repr__": lambda self: "a\nb"})())


def test_output_that_goes_elsewhere_has_no_width(capsys: pytest.CaptureFixture[str]) -> None:
    assert terminal_width() is None
