"""Ctrl-C and SIGTERM while a training runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from time import sleep
from types import FrameType
from typing import Any

_SIGNALS_TAKE = 0.1
"""The seconds after which a signal to a process group has reached all its processes."""


class Interrupts:
    """Handles Ctrl-C and SIGTERM while a training runs: the first signal is noted, a second one acts at once.

    The signal may go to the whole process group (SLURM, `timeout`, Kubernetes), and then it ends the workers of a
    loader too. PyTorch's loader raises an error at that, wherever the program is; this class prevents it.

    Outside of the main thread, where Python calls no handlers, it does nothing.
    """

    def __init__(self, notify: Callable[[str], object]) -> None:
        self.received: int | None = None
        self._notify = notify
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.getsignal(number)
                # A signal that the program handles in its own way, or ignores, is left alone.
                if before in (signal.default_int_handler, signal.SIG_DFL):
                    self._before[number] = before
                    signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self.end()
        self.received = number
        if (workers := getattr(signal, "SIGCHLD", None)) is not None and callable(signal.getsignal(workers)):
            self._before[workers] = signal.signal(workers, signal.SIG_DFL)
        name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        self._notify(f"{name}: ending after this step; once more to end at once")

    def was_cause(self) -> bool:
        """Was a signal the cause of an error in reading data, because it ended the workers?"""
        if self._before and self.received is None:
            sleep(_SIGNALS_TAKE)
        return self.received is not None

    def end(self, advice: str = "") -> None:
        """Raise the exception that the signal raises without a learner."""
        if self.received == signal.SIGTERM:
            raise SystemExit(128 + int(signal.SIGTERM))
        raise KeyboardInterrupt(*[advice] if advice else [])
