"""The arithmetic of ratios, the table that shows them, and contestants that fail.

Serves: benchmarks/harness.py
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks import harness
from benchmarks.arena import headlines
from benchmarks.harness import Ratio, built, compare, duration, measure, seconds_in_turn, table

TIMES = {"ours": [1.0, 2.0, 3.0, 4.0, 50.0], "theirs": [2.0, 2.0, 4.0, 4.0, 5.0]}


def test_ratios_are_of_turns_and_the_figure_is_their_median() -> None:
    row = compare("work", TIMES, "ours", "theirs", target=1.0)
    assert row.ratio == 1.0  # of 0.5, 1, 0.75, 1, 10
    assert (row.low, row.high) == pytest.approx((0.625, 5.5))
    assert (row.subject_us, row.peer_us) == (3e6, 4e6)
    assert row.met is True
    assert compare("work", TIMES, "theirs", "ours", target=0.9).met is False
    assert compare("work", TIMES, "ours", "theirs").met is None


def test_differences_are_in_nanoseconds() -> None:
    row = compare("work", {"a": [3e-9] * 3, "b": [1e-9] * 3}, "a", "b", extra=True)
    assert row.ratio == pytest.approx(2.0)
    assert row.unit == "ns more"


def test_contestants_take_turns_and_drift_favours_nobody() -> None:
    order: list[str] = []
    found = measure({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3, seconds=0.0)
    assert order == ["a", "a", "b", "b", *"ab", *"ba", *"ab"]
    assert {name: len(times) for name, times in found.items()} == {"a": 3, "b": 3}
    assert all(time >= 0 for times in found.values() for time in times)


def test_the_table_says_what_was_asked_and_whether_it_was_met() -> None:
    rows = [
        Ratio("step", "Phlox", "torch", 10.0, 20.0, 0.5, 0.4, 0.6, target=0.8),
        Ratio("step", "Phlox", "jax", 10.0, 8.0, 1.25, 1.2, 1.3, target=1.0),
        Ratio("add", "Phlox", "numpy", 0.6, 0.3, 290.4, 283.0, 614.0, unit="ns more"),
        Ratio("peak", "Phlox", "torch", 53.2e12, 246.6e12, 0.22, 0.2, 0.3, measure="bytes"),
        Ratio("work", "Phlox", "jax", 929e12, 929e12, 1.0, 1.0, 1.0, measure="flops"),
    ]
    lines = table(rows).splitlines()
    assert len(lines) == 7
    assert lines[2] == "| step | Phlox | torch | 10.0 us | 20.0 us | 0.50 | 0.40 to 0.60 | 0.80 met |"
    assert lines[3].endswith("| 1.00 **missed** |")
    assert "| 290 ns more | 283 to 614 |  |" in lines[4]
    assert "| 53.2 MB | 246.6 MB |" in lines[5]
    assert "| 929.0 MFLOP | 929.0 MFLOP |" in lines[6]


def broken(after: int = 0) -> Callable[[], float]:
    """A contestant whose library breaks after so many calls."""
    calls = iter(range(after))
    return lambda: 0.5 if next(calls, None) is not None else float("made-up")


@pytest.mark.full
@pytest.mark.parametrize("after", [0, 2, 3])
def test_one_that_fails_is_a_line_and_the_others_go_on(after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "FAILED", {})
    times = measure({"ours": lambda: None, "broken": broken(after), "theirs": lambda: None}, rounds=3, seconds=0.0)
    assert {name: len(seconds) for name, seconds in times.items()} == {"ours": 3, "theirs": 3}
    assert not compare("work", times, "ours", "theirs").failed
    row = compare("work", times, "ours", "broken", target=1.0)
    reason = "ValueError: could not convert string to float: 'made-up'"
    assert (row.failed, row.reason, row.met) == ("broken", reason, None)
    assert table([row]).splitlines()[-1] == f"| work | ours | broken | | | failed: broken: {reason} | | |"
    good = compare("work", times, "ours", "theirs")
    assert headlines.of_rows([row, good]) == [good] and headlines.not_counted([row, good]) == []
    assert [*seconds_in_turn({"broken": broken(1), "theirs": lambda: None}, rounds=2)] == ["theirs"]


def test_one_that_cannot_be_built_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "FAILED", {})
    assert built({"theirs": lambda: 1, "broken": lambda: __import__("made_up_library")}) == {"theirs": 1}
    assert harness.FAILED == {"broken": "ModuleNotFoundError: No module named 'made_up_library'"}


def test_a_time_has_its_unit() -> None:
    found = [duration(seconds) for seconds in (5e-6, 6.8e-3, 0.1204, 1.75)]
    assert found == ["5.0 us", "6.80 ms", "120 ms", "1.75 s"]
