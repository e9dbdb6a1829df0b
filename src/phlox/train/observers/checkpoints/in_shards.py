"""`ShardWriter`: checkpoints that several processes or devices write together, each its own parts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phlox.record.io.links import remove_link
from phlox.record.precision import Precision
from phlox.train.observers.checkpoints.files import Job, step_of


@dataclass(slots=True)
class _UnderWay:
    """A save that may still be running."""

    job: Job
    handle: Any


class ShardWriter:
    """Saves one record after another, by `px.distributed.save`. All processes call it, with the same jobs.

    The values are copied when a job is given, and written while the training goes on. A job waits for the one before:
    all processes have to write the same checkpoints, so none is skipped.

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
        self._last: _UnderWay | None = None

    def put(self, kind: str, job: Job) -> None:
        """Save a record."""
        from phlox.distributed import save

        self.wait()
        step = step_of(job.name)
        place = self._folder / job.name if step is None else self._folder
        if step is None:
            with contextlib.suppress(OSError):  # another process may have done so, and made the folder
                remove_link(place)
        try:
            handle = save(job.marked(), place, step=step, precision=self._precision, asynchronous=self._background)
        except Exception as error:
            self._done(job, error)
            return
        self._last = _UnderWay(job.without_record(), handle)
        self.poll()

    def poll(self) -> None:
        """Call `done` for a save that has ended."""
        if self._last is not None and self._last.handle.is_done:
            self.wait()

    def wait(self) -> None:
        """Wait until all is done."""
        last, self._last = self._last, None
        if last is None:
            return
        error: Exception | None = None
        try:
            last.handle.wait()
        except Exception as raised:
            error = raised
        self._done(last.job, error)


def is_mismatch(error: Exception) -> bool:
    """Do the processes save different records? The next save would fail, too."""
    from phlox.distributed.checkpoints.committing import RecordMismatchError

    return isinstance(error, RecordMismatchError)
