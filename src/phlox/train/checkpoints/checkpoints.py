"""`Checkpoints`: saves the state of a training while it runs, and finds what was saved."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from phlox.errors import DataError, DistributedError, PhloxError, RecordError, RunError
from phlox.other_names import answering
from phlox.record import PrecisionSettings, Record
from phlox.record.io.files import remove_leftovers
from phlox.record.precision import Precision, checked_precision
from phlox.train.callback import AnyLearner, Callback
from phlox.train.callbacks.monitor import better_mode, is_count
from phlox.train.checkpoints.background import BackgroundWriter
from phlox.train.checkpoints.files import (
    FOLDER,
    BestName,
    Catalog,
    Done,
    Job,
    best_of,
    file_name,
    holds_several,
    later_than,
    line_of,
    mark_of,
    newest_first,
    newest_whole,
    place,
    save,
    whole,
)
from phlox.train.checkpoints.in_shards import ShardWriter, is_mismatch
from phlox.train.folder.lock import FolderLock
from phlox.train.folder.run_folder import claim
from phlox.train.history import plain

if TYPE_CHECKING:
    from phlox.train.parallel.team import Team

_STATE, _BEST = "state", "best"


class Checkpoints(Callback):
    """Saves the whole state of a training, from which `fit(resume=True)` continues it.

    A checkpoint is a copy of the state in memory, which a thread writes while the training goes on. If the previous
    one is still being written, the copy waits; a newer copy replaces one that waits. So at most three copies are held.
    A file gets its name, `step-00000090.safetensors`, when it is complete on the disk; `checkpoints.json` lists the
    checkpoints, with the values and a CRC-32 of each. A full disk does not end the training: the learner is warned, the
    older checkpoints stay, and the next save tries again.

    The last state is saved when the training ends, also by Ctrl-C or because data cannot be read. After any other error
    the checkpoints stay as they are.

    Args:
        folder: the folder to write to; `checkpoints` in the run's folder if None.
        every_steps, every_epochs, every_minutes: when to save; if none is given, after each epoch.
        keep: how many of the newest to keep; None keeps all. The one at the best value is kept as well.
        best: the name of a value, such as "validation/f1". The model's weights at its best are kept in
            `best.safetensors`.
        mode: whether "min" or "max" is the best; "auto" derives it from the name.
        background: whether a thread writes the files; False waits until each file is written.
        precision: the precision of the tensors in the files, such as `HALF`. None keeps them as they are, so that a
            resumed training gives exactly the same results.

    Raises RunError for invalid arguments and, when a training starts, if it has no folder or the folder has the
    checkpoints of another training.

    >>> Checkpoints(every_minutes=10, best="validation/loss", keep=2)
    Checkpoints(every_minutes=10, keep=2, best='validation/loss', mode='min')
    """

    last: ClassVar[bool] = True
    writes: ClassVar[bool] = True
    main_only: ClassVar[bool | None] = False  # all processes save together

    @answering
    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        every_steps: int | None = None,
        every_epochs: int | None = None,
        every_minutes: float | None = None,
        keep: int | None = 3,
        best: str | None = None,
        mode: Literal["min", "max", "auto"] = "auto",
        background: bool = True,
        precision: Precision | None = None,
    ) -> None:
        for name, number in (("every_steps", every_steps), ("every_epochs", every_epochs), ("keep", keep)):
            if number is not None and not is_count(number):
                raise RunError(f"Checkpoints: {name}={number!r}; give a whole number of at least 1, or None")
        if every_minutes is not None and not 0.0 <= every_minutes < math.inf:
            raise RunError(f"Checkpoints: every_minutes={every_minutes!r}; give a number of minutes, or None")
        if best is not None and (not isinstance(best, str) or not best):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RunError(f'Checkpoints: best={best!r}; give the name of a value, such as "validation/loss"')
        if mode not in ("min", "max", "auto"):
            raise RunError(f'Checkpoints: mode={mode!r}; give "min", "max" or "auto"')
        if every_steps is None and every_epochs is None and every_minutes is None:
            every_epochs = 1
        self.folder = None if folder is None else Path(folder)
        self.every_steps, self.every_epochs, self.every_minutes = every_steps, every_epochs, every_minutes
        self.keep = keep
        self.best = best
        self.mode = better_mode(best) if best is not None and mode == "auto" else mode
        self.background = background
        self.precision = PrecisionSettings() if precision is None else checked_precision(precision)
        self._remembered: Mapping[str, Any] = {}
        self._best: dict[str, Any] | None = None
        self._error: BaseException | None = None
        self._lock: FolderLock | None = None
        self._is_open = False

    def __repr__(self) -> str:
        given = {
            "folder": None if self.folder is None else str(self.folder), "every_steps": self.every_steps,
            "every_epochs": self.every_epochs, "every_minutes": self.every_minutes, "keep": self.keep,
        }  # fmt: skip
        if self.best is not None:
            given |= {"best": self.best, "mode": self.mode}
        return f"Checkpoints({', '.join(f'{name}={value!r}' for name, value in given.items() if value is not None)})"

    # --- what was saved

    @staticmethod
    def latest_in(folder: str | os.PathLike[str]) -> Path:
        """The newest undamaged checkpoint of a run folder or its folder of checkpoints; see `load`."""
        found = place(folder)
        if holds_several(found):
            return newest_whole(found)[0]
        whole(found)
        return found

    @staticmethod
    def best_in(folder: str | os.PathLike[str]) -> Record:
        """The weights of the best model, from a run folder or its folder of checkpoints.

        Raises RunError if there are none or the file is damaged.
        """
        path = place(folder)
        path = best_of(path) if holds_several(path) else path
        if not path.exists():
            raise RunError(f"{path}: is missing; a training keeps it with Checkpoints(best='validation/...')")
        try:
            return whole(path)
        except RecordError as error:
            raise RunError(f"{error}; the checkpoints beside it may be whole") from error

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Record:
        """Load the newest checkpoint of a run folder or a folder of checkpoints, or one checkpoint file.

        All checksums are verified. In a folder, damaged checkpoints are skipped with a `RunWarning`.

        Raises:
            RunError: there is no such folder, it has no undamaged checkpoint, or a newer version of Phlox wrote it.
            RecordError: the file is damaged.
        """
        found = place(path)
        return newest_whole(found)[1] if holds_several(found) else whole(found)

    @staticmethod
    def exist_in(folder: str | os.PathLike[str]) -> bool:
        """Is there any checkpoint, damaged or not, in a run folder or a folder of checkpoints?"""
        path = Path(folder)
        return path.is_dir() and bool(newest_first(place(path)))

    # --- the events

    def state(self) -> Mapping[str, Any]:
        """The best value so far."""
        return {} if self._best is None else {"best": dict(self._best)}

    def restore(self, state: Mapping[str, Any], /) -> None:
        """Restore the best value."""
        self._remembered = dict(state)

    def on_fit_start(self, learner: AnyLearner) -> None:
        """Lock the folder, and read which checkpoints it has."""
        if self.best is not None and self.best.startswith("validation/") and learner.validation_data is None:
            raise RunError(
                f"Checkpoints: best={self.best!r} is a value of the validation, and there are no validation data; give "
                'fit(..., validation=...), or best="train/..."'
            )
        team = learner._team  # pyright: ignore[reportPrivateUsage]
        self._team: Team | None = team if team is not None and team.in_shards else None
        self._catalog: Catalog | None = None
        if self._team is None:
            self._best = self._begin(learner)
        else:  # process 0 looks, and all learn of it
            self._best = self._team.by_main(lambda: self._begin(learner))
        self._path = self._place(learner)
        self._error = None
        self._done: deque[Done] = deque()
        self._best_saved = self._best
        if self._team is None:
            self._writer: BackgroundWriter[Job] | ShardWriter = BackgroundWriter(
                self._write, (_BEST, _STATE), self.background
            )
        else:
            self._writer = ShardWriter(self._path, self._written, self.precision, self.background)
        self._seen = learner.step
        self._saved = (learner.step, learner.epoch)
        self._taken_at = time.monotonic()
        self._is_open = True

    def on_step_end(self, learner: AnyLearner) -> None:
        """Save if it is time."""
        self._report(learner)
        former, self._seen = self._seen, learner.step
        is_due = self.every_steps is not None and self._seen // self.every_steps > former // self.every_steps
        if self.every_minutes is not None and time.monotonic() - self._taken_at >= 60.0 * self.every_minutes:
            is_due = self._team is None or not learner.asks_to_save()  # all processes do, after a step of their own
        if is_due:
            self._take(learner)

    def save_now(self, learner: AnyLearner) -> None:
        """Save the state at a step on which all processes have agreed."""
        self._take(learner)

    def on_epoch_start(self, learner: AnyLearner) -> None:
        """Report what has been written."""
        self._report(learner)

    def on_validation_start(self, learner: AnyLearner) -> None:
        """Report what has been written."""
        self._report(learner)

    def on_validation_end(self, learner: AnyLearner) -> None:
        """Keep the weights if they are the best."""
        self._report(learner)
        if self.best is not None and self.best.startswith("validation/"):
            self._compare(learner, self.best)

    def on_epoch_end(self, learner: AnyLearner) -> None:
        """Keep the weights if they are the best, and save if it is time."""
        self._report(learner)
        if self.best is not None and not self.best.startswith("validation/"):
            self._compare(learner, self.best)
        if self.every_epochs is not None and learner.epoch % self.every_epochs == 0:
            self._take(learner)

    def on_exception(self, learner: AnyLearner, error: BaseException) -> None:
        """Note how the training ends."""
        self._error = error

    def on_fit_end(self, learner: AnyLearner) -> None:
        """Save the last state, unless the training ended with an error, and wait until all files are written."""
        if not self._is_open:
            return
        try:
            self._settle(learner)
            # Of errors only those of the data are known to leave the state as the last step has made it.
            spoilt = isinstance(self._error, Exception) and not isinstance(self._error, (DataError, OSError))
            if self._team is not None and not learner.is_together:
                spoilt = True  # the others are elsewhere, or not there
            if self._saved != (learner.step, learner.epoch) and not spoilt:
                try:
                    self._take(learner)
                except PhloxError as error:
                    if self._error is None:
                        raise
                    learner.warn(f"step {learner.step}: no checkpoint of the last state: {error}")
                self._settle(learner)
        finally:
            self._is_open = False
            self._release()

    # --- what they do

    def _begin(self, learner: AnyLearner) -> dict[str, Any] | None:
        """Lock the folder, and read its checkpoints and the best value so far."""
        path = self._open(learner)
        try:
            self._catalog = Catalog(path)
            if not learner.is_resumed:
                self._check_new(learner, path)
            return self._best_there(learner, path)
        except BaseException:
            self._release()
            raise

    def _place(self, learner: AnyLearner) -> Path:
        if self.folder is not None:
            return self.folder
        if learner.folder is None:
            raise RunError("Checkpoints: there is no folder to write to; give fit(folder=...), or Checkpoints(folder)")
        return Path(learner.folder) / FOLDER

    def _open(self, learner: AnyLearner) -> Path:
        path = self._place(learner)
        if self.folder is None and learner.folder is not None:
            path = claim(learner.folder, FOLDER + "/")
        try:
            self._lock = FolderLock(path)
        except OSError as error:
            raise RunError(f"{path}: cannot be created ({error.strerror or error}); give another folder") from error
        remove_leftovers(path)
        return path

    def _check_new(self, learner: AnyLearner, path: Path) -> None:
        """Raise `RunError` if the folder has the checkpoints of another training: the two would be mixed."""
        found = next(later_than(path, learner.step), None) if learner.step else next(iter(newest_first(path)), None)
        # Of a training that was killed before its first state only the best is there; it begins anew.
        assert self._catalog is not None
        is_begun = bool(self._catalog.checkpoints) or not self._catalog.files
        if found is None and learner.step == 0 and is_begun and best_of(path).exists():
            found = best_of(path)
        if found is not None:
            raise RunError(
                f"{path}: has checkpoints of another training ({found.name}); give resume=True to go on with it, or "
                "another folder"
            )

    def _best_there(self, learner: AnyLearner, path: Path) -> dict[str, Any] | None:
        """The best value so far, from the file of the best weights: there are no weights for any other."""
        if self.best is None or (learner.step == 0 and not learner.is_resumed):
            return None
        assert self._catalog is not None
        remembered: Mapping[str, Any] = self._remembered.get("best") or {}
        best = best_of(path)
        try:
            mark = mark_of(whole(best), best) if best.exists() else {}
        except RecordError as error:
            learner.warn(f"the weights of the best are lost, and the best from now on is kept: {error}")
            return None
        if mark.get("name") == self.best and isinstance(mark.get("value"), float):
            held = self._catalog.best
            if held is None or held["step"] != mark.get("step"):  # killed before the list was written
                self._catalog.best = line_of(best, {key: mark[key] for key in mark if key != "format"})
            return {name: mark[name] for name in ("name", "value", "step")}
        if learner.is_resumed and remembered.get("name") == self.best:
            learner.warn(
                f"{best}: is missing ({self.best} was {remembered['value']} at step {remembered['step']}); the "
                "best from now on is kept"
            )
        return None

    def _compare(self, learner: AnyLearner, name: str) -> None:
        if self._team is not None:  # whether the one before has been written decides here, in all processes alike
            self._settle(learner)
        value = float(learner.value(name))
        former = None if self._best is None else self._best["value"]
        if math.isnan(value) or (former is not None and not (value < former if self.mode == "min" else value > former)):
            return
        try:
            weights = learner.weights() if self._team is None else learner.weights_record()
        except MemoryError as error:
            learner.warn(f"step {learner.step}: the weights of the best are not kept: {error}")
            return
        self._best = {"name": name, "value": value, "step": learner.step}
        mark = {**self._best, "mode": self.mode, "epoch": learner.epoch}
        name = BestName.FILE if self._team is None else BestName.FOLDER
        self._writer.put(_BEST, Job(name, weights, mark, learner.seconds, is_best=True))
        self._report(learner)

    def _take(self, learner: AnyLearner) -> None:
        """Copy the state, and give it to the writer."""
        step = learner.step
        self._taken_at = time.monotonic()
        mark = {"step": step, "epoch": learner.epoch, "values": plain(learner.values())}
        try:
            record = learner.snapshot() if self._team is None else learner.saved_state()
        except MemoryError as error:
            learner.warn(f"step {step}: no checkpoint, since there is no memory for a copy of the state: {error}")
            return
        self._writer.put(_STATE, Job(file_name(step, in_shards=self._team is not None), record, mark, learner.seconds))
        self._report(learner)

    def _write(self, job: Job) -> None:
        """Write a file and the list of files; on the writer's thread."""
        path = self._path / job.name
        assert self._catalog is not None
        try:
            self._catalog.announce(job.name)
            line, lost = save(job.record, path, job.mark, self.precision)
            line["seconds"] = job.seconds
            if job.is_best:
                self._catalog.set_best(line)
            else:
                self._catalog.add(line, self.keep)
            self._done.append(Done(path, job.mark, job.is_best, lost))
        except Exception as error:
            self._done.append(Done(path, job.mark, job.is_best, error=error))

    def _written(self, job: Job, error: Exception | None) -> None:
        """Note what all processes have written together, or the error."""
        path = self._path / job.name
        if error is None and self._catalog is not None:
            try:
                self._catalog.announce(job.name)
                line = {**line_of(path, job.mark), "seconds": job.seconds}
                if job.is_best:
                    self._catalog.set_best(line)
                else:
                    self._catalog.add(line, self.keep)
            except Exception as raised:
                error = raised
        if job.is_best and error is None:
            self._best_saved = {name: job.mark[name] for name in ("name", "value", "step")}
        self._done.append(Done(path, job.mark, job.is_best, error=error))

    def _settle(self, learner: AnyLearner) -> None:
        self._writer.wait()
        self._report(learner)

    def _report(self, learner: AnyLearner) -> None:
        """Report what the writer has done since the last call."""
        if isinstance(self._writer, ShardWriter):
            self._writer.poll()
        while self._done:
            done = self._done.popleft()
            if done.lost:
                learner.warn(f"{done.path}: {done.lost}")
            if done.error is not None:
                self._report_error(learner, done, done.error)
            elif not done.is_best:
                self._saved = (done.mark["step"], done.mark["epoch"])
                if done.path.exists():  # a newer one may have taken its place already
                    learner.announce(done.path)

    def _report_error(self, learner: AnyLearner, done: Done, error: Exception) -> None:
        if done.is_best:
            # That of which there are weights.
            line = self._best_saved if self._team is not None or self._catalog is None else self._catalog.best
            self._best = None if line is None else {name: line[name] for name in ("name", "value", "step")}
        cause = error.__cause__ if isinstance(error, RecordError) else error
        if not isinstance(cause, (OSError, MemoryError, DistributedError)) or is_mismatch(error):
            raise error
        reason = (cause.strerror if isinstance(cause, OSError) else None) or str(cause) or type(cause).__name__
        learner.warn(
            f"{done.path}: the checkpoint of step {done.mark['step']} could not be written ({reason}); the "
            "training goes on, and the next checkpoint tries again"
        )

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
