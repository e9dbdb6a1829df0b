"""Ctrl-C and SIGTERM while a training runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupts:
    """Ctrl-C and SIGTERM while a training runs: the first is noted, a second one acts at once.

    Outside of the main thread, where Python calls no handlers, it does nothing.
    """

    def __init__(self, noted: Callable[[str], object]) -> None:
        self.came: int | None = None
        self._noted = noted
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.getsignal(number)
                # What a program handles in its own way, or ignores, stays.
                if before in (signal.default_int_handler, signal.SIG_DFL):
                    self._before[number] = before
                    signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.came is not None:
            self.end()
        self.came = number
        name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
        self._noted(f"{name}: ending after this step; once more to end at once")

    def end(self, how: str = "") -> None:
        """Raise what the signal that came raises without a learner."""
        if self.came == signal.SIGTERM:
            raise SystemExit(128 + int(signal.SIGTERM))
        raise KeyboardInterrupt(*[how] if how else [])
