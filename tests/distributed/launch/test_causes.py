from __future__ import annotations

import itertools
import signal

import pytest

from phlox.distributed.launch.causes import Failed, first_cause
from phlox.distributed.processes.failures import Report

FIRST, LATER = Report(1.0, False, 1), Report(2.0, False, 1)
FOLLOWS, ASKS = Report(0.5, True, 1), Report(1.5, None, 1)
KILLED, ABORTED = -signal.SIGKILL, -signal.SIGABRT
CASES: dict[str, tuple[list[tuple[int | None, Report | None]], int, bool]] = {
    # the codes and the reports of processes, in the order in which they ended; which was the first; is it settled?
    "one error": ([(1, FIRST)], 0, True),
    "it is still running, and its engine aborts the others": ([(ABORTED, None), (None, FIRST)], 1, False),
    "two errors": ([(1, LATER), (1, FIRST)], 1, True),
    "killed": ([(1, FOLLOWS), (KILLED, None)], 1, True),
    "aborted as others were killed": ([(ABORTED, None), (KILLED, None)], 1, True),
    "ended without a word": ([(1, FOLLOWS), (3, None)], 1, True),
    "an error, and then a kill": ([(KILLED, None), (1, FIRST)], 1, True),
    "it does not know yet": ([(KILLED, None), (None, ASKS)], 1, False),
    "all follow": ([(1, FOLLOWS), (1, Report(0.4, True, 1))], 1, False),
    "an abort alone": ([(ABORTED, None)], 0, False),
}


@pytest.mark.parametrize("case", CASES)
def test_the_first_cause(case: str) -> None:
    given, first, settled = CASES[case]
    failed = [
        Failed(rank, place, *one) for (rank, one), place in zip(enumerate(given), itertools.count(), strict=False)
    ]
    for order in itertools.permutations(failed):
        found = first_cause(order)
        assert (found.rank, found.is_settled) == (first, settled)
