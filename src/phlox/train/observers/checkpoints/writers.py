"""How checkpoints are written: by a thread, or by several processes or devices together."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from phlox.record.io.links import remove_link
from phlox.record.precision import Precision
from phlox.train.observers.checkpoints.files import Job, step_of

if TYPE_CHECKING:
    from phlox.distributed import SaveHandle

J = TypeVar("J")


class BackgroundWriter(Generic[J]):
    """Calls `write` with one job after another, on a thread that ends when there are no more jobs.

    Only the newest job of each kind waits: a new job replaces one of its kind that still waits.

    Args:
        write: does a job, and raises nothing.
        kinds: the kinds of jobs, in the order in which waiting jobs are done.
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
        """Do a job of this kind as soon as the jobs before it are done."""
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
        """Wait until no job of this kind waits, so that the next one replaces none."""
        with self._changed:
            self._changed.wait_for(lambda: kind not in self._waiting)

    def wait(self) -> None:
        """Wait until all jobs are done."""
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
            del job  # free its tensors before the next job


class ShardWriter:
    """Saves one record after another, by `px.distributed.save`. All processes call it, with the same jobs.

    `put` copies the values, which are written while the training goes on. A job waits for the one before: all processes
    must write the same checkpoints, so none is skipped.

    Args:
        folder: the folder of the checkpoints.
        done: a function that `poll` and `wait` call with each complete job, or with its error.
        precision: the precision of the tensors in the files.
        background: False waits until each checkpoint is written.
    """

    def __init__(
        self,
        folder: Path,
        done: Callable[[Job, Exception | None], None],
        precision: Precision,
        background: bool = True,
    ) -> None:
        self._folder, self._done = folder, done
        self._precision, self._background = precision, background
        self._last: tuple[Job, SaveHandle] | None = None
        """The save that may still be running."""

    def put(self, kind: str, job: Job) -> None:
        """Save a record."""
        from phlox.distributed import save

        self.wait()
        step = step_of(job.name)
        path = self._folder / job.name if step is None else self._folder
        if step is None:
            with contextlib.suppress(OSError):  # another process may have removed it, and made the folder
                remove_link(path)
        try:
            handle = save(job.marked(), path, step=step, precision=self._precision, asynchronous=self._background)
        except Exception as error:
            self._done(job, error)
            return
        self._last = job.without_record(), handle
        self.poll()

    def poll(self) -> None:
        """Call `done` for a save that has ended."""
        if self._last is not None and self._last[1].is_done:
            self.wait()

    def wait(self) -> None:
        """Wait until the last job is done."""
        last, self._last = self._last, None
        if last is None:
            return
        job, handle = last
        try:
            handle.wait()
        except Exception as error:
            self._done(job, error)
        else:
            self._done(job, None)


def is_mismatch(error: Exception) -> bool:
    """Do the processes save different records? The next save would fail, too."""
    from phlox.distributed.checkpoints.committing import RecordMismatchError

    return isinstance(error, RecordMismatchError)
