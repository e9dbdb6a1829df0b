"""`BackgroundWriter`: files are written by a thread, while the training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

J = TypeVar("J")


class BackgroundWriter(Generic[J]):
    """Calls `write` with one job after another, on a thread that lives as long as there are any.

    Of each kind of job only the newest waits: one that is given while another waits takes its place.

    Args:
        write: does a job, and raises nothing.
        kinds: the kinds of jobs; of several that wait, the first kind is done first.
        background: False does each job at once, on the caller's thread.
    """

    def __init__(self, write: Callable[[J], None], kinds: tuple[str, ...], background: bool = True) -> None:
        self._write = write
        self._kinds = kinds
        self._background = background
        self._waiting: dict[str, J] = {}
        self._is_running = False
        self._changed = threading.Condition()

    def put(self, kind: str, job: J) -> None:
        """Do a job of this kind as soon as those before it are done."""
        if not self._background:
            self._write(job)
            return
        with self._changed:
            self._waiting[kind] = job
            if self._is_running:
                return
            self._is_running = True
        try:
            # Not a daemon: a program that ends waits until its last state is written.
            threading.Thread(target=self._run, name="phlox-checkpoints").start()
        except RuntimeError:  # the system gives no more threads
            self._run()

    def make_room(self, kind: str) -> None:
        """Wait until no job of this kind waits, so that the next one takes the place of none."""
        with self._changed:
            self._changed.wait_for(lambda: kind not in self._waiting)

    def wait(self) -> None:
        """Wait until all is done."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_running)

    def _run(self) -> None:
        while True:
            with self._changed:
                kind = next((kind for kind in self._kinds if kind in self._waiting), None)
                if kind is None:
                    self._is_running = False
                    self._changed.notify_all()
                    return
                job = self._waiting.pop(kind)
                self._changed.notify_all()
            self._write(job)
            del job  # its tensors, before the next one comes
