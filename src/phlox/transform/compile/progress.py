"""Saying which function is being compiled, if that takes long."""

from __future__ import annotations

import logging
import sys
from threading import Timer
from time import perf_counter

_SECONDS = 5.0
"""The time from which on a compilation is reported."""

_log = logging.getLogger("phlox.compile")


class Progress:
    """A compilation that has begun: it is reported while it lasts, and when it has ended.

    The lines go to the logger `phlox.compile` if that takes messages of level INFO, or else to a terminal.
    """

    def __init__(self, function: str) -> None:
        self._function, self._start = function, perf_counter()
        self._timer = Timer(_SECONDS, self._report_begin)
        self._timer.daemon = True
        try:
            self._timer.start()
        except RuntimeError:  # a system without threads, or an interpreter that is about to end
            pass

    def _report_begin(self) -> None:
        _report(f"phlox.compile: {self._function} is being compiled, for {_SECONDS:.0f} s so far")

    def end(self) -> None:
        """The first call has ended, or failed."""
        self._timer.cancel()
        seconds = perf_counter() - self._start
        if seconds >= _SECONDS:
            _report(f"phlox.compile: the first call of {self._function} took {seconds:.1f} s, compiling included")


def _report(line: str) -> None:
    if _log.isEnabledFor(logging.INFO):
        _log.info("%s", line)
    elif sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"{line}\n")
