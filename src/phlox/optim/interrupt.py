"""What Ctrl-C must not cut short."""

from __future__ import annotations

import signal
import threading
from typing import Any


class Uninterrupted:
    """Ctrl-C waits until the end of this scope, where memory is written to that was in use."""

    __slots__ = ("_before", "_pressed")

    def __enter__(self) -> None:
        self._before: Any = None
        self._pressed = False
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if callable(before):
                signal.signal(signal.SIGINT, self._press)
                self._before = before

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            if self._pressed:
                signal.raise_signal(signal.SIGINT)

    def _press(self, number: int, frame: object) -> None:
        self._pressed = True
