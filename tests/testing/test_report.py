"""`Report`: the lines of a summary, which is cut, and the error."""

from __future__ import annotations

import pytest

from phlox.testing.report import Failure, Report


def report(failures: int) -> Report:
    found = Report("Mine()", {"native": 3, "derived": 2, "unsupported": 1})
    found.passed.update({"values": 4, "gradients": 2})
    found.left_out["values", "no f64"] += 3
    found.failures += [Failure("values", f"op{n % 3}", f"got {n}") for n in range(failures)]
    return found


def test_all_is_well() -> None:
    good = report(0)
    assert good.ok
    good.check()
    assert str(good).splitlines() == [
        "Mine(): 6 comparisons passed (4 values, 2 gradients), none failed.",
        "Operations: 3 native, 2 derived, 1 unsupported.",
        "Left out: no f64: 3 values not compared.",
    ]


def test_failures_are_told_up_to_a_number_and_counted_by_operation_beyond() -> None:
    bad = report(7)
    assert not bad.ok
    lines = bad.summary(most=2).splitlines()
    assert lines[0] == "Mine(): 6 comparisons passed (4 values, 2 gradients), 7 failed."
    assert lines[3:] == [
        "FAILED values, op0: got 0",
        "FAILED values, op1: got 1",
        "... and 5 more: op2 (2), op0 (2)",
    ]
    with pytest.raises(AssertionError, match="FAILED values, op0: got 6"):
        bad.check()


def test_nothing_was_compared() -> None:
    assert "0 comparisons passed (there were none), none failed." in str(Report("Mine()", {}))
