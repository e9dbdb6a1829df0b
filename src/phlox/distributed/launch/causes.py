"""Which of the failed processes was the first, and which only followed?"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from dataclasses import dataclass

from phlox.distributed.processes.failures import Report


@dataclass(frozen=True, slots=True)
class Failed:
    """A process that has failed, or has reported that it will."""

    rank: int
    position: float
    """Its position in the order in which processes have ended."""
    code: int | None
    """Its exit code, negative for a signal; None while it runs."""
    report: Report | None
    """Its own report."""

    @property
    def order(self) -> tuple[int, float]:
        """The sort key, by which the first cause comes first.

        A process whose report says that no other had failed comes first. Processes without a report follow: only the
        system sends a signal like SIGKILL, but libraries abort when other processes are gone. Last come those whose
        report says that others had failed before.
        """
        if self.report is not None and not self.report.follows:
            return 0, self.report.when
        if self.report is not None:
            return 3, self.report.when
        is_abort = self.code == -signal.SIGABRT
        return (2 if is_abort or (self.code or 0) > 0 else 1), self.position

    @property
    def follows(self) -> bool:
        """Is it likely that another process failed before?"""
        return self.order[0] == 3 or (self.report is None and self.code == -signal.SIGABRT)

    @property
    def is_settled(self) -> bool:
        """Is it certain that no later information puts another process in front?"""
        is_known = self.report is None or self.report.follows is not None
        return is_known and self.code is not None and not self.follows


def first_cause(failed: Iterable[Failed]) -> Failed:
    """The process that failed first.

    >>> aborted, killed = Failed(0, 0, -signal.SIGABRT, None), Failed(1, 1, -signal.SIGKILL, None)
    >>> first_cause([aborted, killed]).rank
    1
    """
    return min(failed, key=lambda process: process.order)
