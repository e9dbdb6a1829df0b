"""`Checkpoints`: saves the state of a training while it runs, and finds saved states."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from phlox.errors import DistributedError, PhloxError, RecordError, RunError
from phlox.module import Module
from phlox.other_names import answering
from phlox.record import PrecisionSettings, Record
from phlox.record.io.files import remove_leftovers
from phlox.record.precision import PrecisionLike, checked_precision
from phlox.train.events import plain
from phlox.train.observers.callback import AnyLearner, Callback
from phlox.train.observers.callbacks.monitor import better_mode, check_value_name, is_count, value_of
from phlox.train.observers.checkpoints.catalog import BestName, Catalog, Ranking
from phlox.train.observers.checkpoints.files import (
    FOLDER,
    Done,
    Job,
    best_files,
    bests_in,
    candidates,
    checkpoint_path,
    file_name,
    first_whole,
    holds_several,
    later_than,
    line_of,
    mark_of,
    newest_first,
    save,
    whole,
    with_history,
)
from phlox.train.observers.checkpoints.history_file import HistoryFile, Position
from phlox.train.observers.checkpoints.writers import BackgroundWriter, ShardWriter, is_mismatch
from phlox.train.observers.folder.lock import FolderLock
from phlox.train.observers.folder.run_folder import claim
from phlox.train.state import COUNTS, LOG, with_lines
from phlox.train.unchanged import completed, left_out_of

if TYPE_CHECKING:
    from phlox.train.step.data_parallel import DataParallel

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
        keep_best: the weights of how many of the best values to keep; those after the first are in files such as
            `best-00000090.safetensors`, see `best_in`.
        ties: of equal values, whether the "first" or the "last" one counts as better.
        frozen: whether to save what is not trained too. False leaves out frozen parameters that are as they were when
            the training began: of a model with an adapter, the files hold the adapter. To resume, give the learner a
            model with the same base; a checksum tells if it is another one.
        background: whether a thread writes the files; False waits until each file is written.
        precision: the precision of the tensors in the files, such as `HALF`. None keeps them as they are, so that a
            resumed training gives exactly the same results.

    Raises RunError for invalid arguments and, when a training starts, if it has no folder, the folder has the
    checkpoints of another training, or no value will have the name `best`; see `Watch`.

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
        keep_best: int = 1,
        ties: Literal["first", "last"] = "first",
        frozen: bool = True,
        background: bool = True,
        precision: PrecisionLike | None = None,
    ) -> None:
        for name, number in (("every_steps", every_steps), ("every_epochs", every_epochs), ("keep", keep)):
            if number is not None and not is_count(number):
                raise RunError(f"Checkpoints: {name}={number!r}; give a whole number of at least 1, or None")
        if not is_count(keep_best):
            raise RunError(f"Checkpoints: keep_best={keep_best!r}; give a whole number of at least 1")
        if ties not in ("first", "last"):
            raise RunError(f'Checkpoints: ties={ties!r}; give "first" or "last"')
        if best is None and (keep_best, ties) != (1, "first"):
            raise RunError("Checkpoints: keep_best and ties are about best=, the name of a value; give that too")
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
        self.keep_best, self.ties = keep_best, ties
        self._ranking = Ranking("min" if self.mode == "auto" else self.mode, ties, keep_best)
        self.frozen, self.background = frozen, background
        self.precision = PrecisionSettings() if precision is None else checked_precision(precision)
        self._remembered: list[Mapping[str, Any]] = []
        self._bests: list[dict[str, Any]] = []
        """`_bests`: values with saved weights, the best first; `_pending`: values whose weights are being written."""
        self._pending: list[dict[str, Any]] = []
        self._error: BaseException | None = None
        self._lock: FolderLock | None = None
        self._is_open = False

    def __repr__(self) -> str:
        args = {
            "folder": None if self.folder is None else str(self.folder), "every_steps": self.every_steps,
            "every_epochs": self.every_epochs, "every_minutes": self.every_minutes, "keep": self.keep,
        }  # fmt: skip
        if self.best is not None:
            args |= {"best": self.best, "mode": self.mode}
            args |= {"keep_best": self.keep_best if self.keep_best > 1 else None}
            args |= {"ties": self.ties if self.ties != "first" else None}
        args |= {"frozen": None if self.frozen else False}
        return f"Checkpoints({', '.join(f'{name}={value!r}' for name, value in args.items() if value is not None)})"

    # --- finding checkpoints

    @staticmethod
    def latest_in(folder: str | os.PathLike[str]) -> Path:
        """The newest undamaged checkpoint of a run folder or its folder of checkpoints; see `load`."""
        path = checkpoint_path(folder)
        if holds_several(path):
            return first_whole(candidates(path))[0]
        whole(path)
        return path

    @staticmethod
    def best_in(folder: str | os.PathLike[str], rank: int = 1, *, base: Module | None = None) -> Record:
        """The weights of the best model, from a run folder or its folder of checkpoints.

        Args:
            folder: the folder.
            rank: 1 for the best, 2 for the second best, ...; a training keeps several with `keep_best`.
            base: a model of the same structure and base, for weights that were saved with `frozen=False`.

        Raises RunError if there are none or the file is damaged, and RecordError if `base` is another one or missing.
        """
        path = checkpoint_path(folder)
        files = bests_in(path) if holds_several(path) else [path]
        if not files:
            path /= BestName.FILE
            raise RunError(f"{path}: is missing; a training keeps it with Checkpoints(best='validation/...')")
        if not is_count(rank) or rank > len(files):
            kept = f"the weights of {len(files)} of the best"
            raise RunError(f"{path}: rank={rank!r}, and it has {kept}; Checkpoints(best=..., keep_best=...) keeps more")
        path = files[rank - 1]
        try:
            record = whole(path)
        except RecordError as error:
            raise RunError(f"{error}; the checkpoints beside it may be whole") from error
        if not left_out_of(record):
            return record
        try:
            return completed(record, Record() if base is None else base.into_record())
        except RecordError as error:
            hint = "" if base is not None else "give best_in(folder, base=MODEL): "
            raise RecordError(f"{path}: {hint}{error}") from error

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Record:
        """Load the newest checkpoint of a run folder or a folder of checkpoints, or one checkpoint file.

        All checksums are verified. In a folder, damaged checkpoints are skipped with a `RunWarning`.

        Raises:
            RunError: there is no such folder, it has no undamaged checkpoint, or a newer version of Phlox wrote it.
            RecordError: the file is damaged.
        """
        file = checkpoint_path(path)
        file, record = first_whole(candidates(file)) if holds_several(file) else (file, whole(file))
        return with_history(record, file)

    @staticmethod
    def exist_in(folder: str | os.PathLike[str]) -> bool:
        """Is there any checkpoint, damaged or not, in a run folder or a folder of checkpoints?"""
        path = Path(folder)
        return path.is_dir() and bool(newest_first(checkpoint_path(path)))

    # --- the events

    def state(self) -> Mapping[str, Any]:
        """The best values so far."""
        ranked = self._ranked()
        return {"best": ranked} if ranked else {}

    def restore(self, state: Mapping[str, Any], /) -> None:
        """Restore the best values."""
        bests: Any = state.get("best", [])
        self._remembered = [bests] if isinstance(bests, Mapping) else list(bests)  # an older version saved only one

    def on_fit_start(self, learner: AnyLearner) -> None:
        """Lock the folder, and read the list of its checkpoints."""
        if self.best is not None:
            check_value_name(learner, self.best, "Checkpoints: best")
        team = learner.team
        self._team: DataParallel | None = team if team is not None and team.in_shards else None
        if not self.frozen:
            if self._team is not None:
                raise RunError("Checkpoints: frozen=False is for one process, and this training has several")
            learner.remember_base()
        self._catalog: Catalog | None = None
        if self._team is None:
            self._bests = self._begin(learner)
        else:  # process 0 reads, and sends the result to all
            self._bests = self._team.by_main(lambda: self._begin(learner))
        self._pending = []
        self._path = self._folder_path(learner)
        self._history: HistoryFile | None = None
        self._error = None
        self._done: deque[Done] = deque()
        if self._team is None:
            self._writer: BackgroundWriter[Job] | ShardWriter = BackgroundWriter(
                self._write, (_BEST, _STATE), self.background
            )
        else:
            self._writer = ShardWriter(self._path, self._written, self.precision, self.background)
        self._last_step = learner.step
        self._saved = (learner.step, learner.epoch)
        self._save_time = time.monotonic()
        self._is_open = True

    def on_step_end(self, learner: AnyLearner) -> None:
        """Save if a save is due."""
        self._report(learner)
        former, self._last_step = self._last_step, learner.step
        is_due = self.every_steps is not None and self._last_step // self.every_steps > former // self.every_steps
        if self.every_minutes is not None and time.monotonic() - self._save_time >= 60.0 * self.every_minutes:
            is_due = self._team is None or not learner.asks_to_save()  # all processes must save after the same step
        if is_due:
            self._save_state(learner)

    def save_now(self, learner: AnyLearner) -> None:
        """Save the state at a step on which all processes have agreed."""
        self._save_state(learner)

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
        """Keep the weights if they are the best, and save if a save is due."""
        self._report(learner)
        if self.best is not None and not self.best.startswith("validation/"):
            self._compare(learner, self.best)
        if self.every_epochs is not None and learner.epoch % self.every_epochs == 0:
            self._save_state(learner)

    def on_exception(self, learner: AnyLearner, error: BaseException) -> None:
        """Remember the error that ends the training."""
        self._error = error

    def on_fit_end(self, learner: AnyLearner) -> None:
        """Save the last state, unless the training ended with an error, and wait until all files are written."""
        if not self._is_open:
            return
        try:
            self._settle(learner)
            spoilt = self._error is not None and not learner.is_whole
            if self._team is not None and not learner.is_together:
                spoilt = True  # the other processes are at another step, or have failed
            if self._saved != (learner.step, learner.epoch) and not spoilt:
                try:
                    self._save_state(learner)
                except PhloxError as error:
                    if self._error is None:
                        raise
                    learner.warn(f"step {learner.step}: no checkpoint of the last state: {error}")
                self._settle(learner)
            if self._catalog is not None:
                with contextlib.suppress(OSError):  # then the changes stay beside the list
                    self._catalog.complete()
        finally:
            self._is_open = False
            self._release()

    # --- saving

    def _begin(self, learner: AnyLearner) -> list[dict[str, Any]]:
        """Lock the folder, and read its checkpoints and the best values so far."""
        path = self._open(learner)
        try:
            self._catalog = Catalog(path)
            if not learner.is_resumed:
                self._check_new(learner, path)
            return self._bests_on_disk(learner, path)
        except BaseException:
            self._release()
            raise

    def _folder_path(self, learner: AnyLearner) -> Path:
        if self.folder is not None:
            return self.folder
        if learner.folder is None:
            raise RunError("Checkpoints: there is no folder to write to; give fit(folder=...), or Checkpoints(folder)")
        return Path(learner.folder) / FOLDER

    def _open(self, learner: AnyLearner) -> Path:
        path = self._folder_path(learner)
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
        former = next(later_than(path, learner.step), None) if learner.step else next(iter(newest_first(path)), None)
        # A training that was killed before its first state left only the best weights; it may begin anew.
        assert self._catalog is not None
        is_begun = bool(self._catalog.checkpoints) or not self._catalog.files
        if former is None and learner.step == 0 and is_begun:
            former = next(iter(best_files(path)), None)
        if former is not None:
            raise RunError(
                f"{path}: has checkpoints of another training ({former.name}); give resume=True to resume it, or "
                "another folder"
            )

    def _bests_on_disk(self, learner: AnyLearner, path: Path) -> list[dict[str, Any]]:
        """The best values so far, read from the files of the best weights: no other value has weights."""
        if self.best is None or (learner.step == 0 and not learner.is_resumed):
            return []
        assert self._catalog is not None
        listed = {(entry["file"], entry["step"]): entry for entry in self._catalog.bests}
        lines: list[dict[str, Any]] = []
        lost = False
        for file in best_files(path):
            try:
                mark = mark_of(whole(file), file)
            except RecordError as error:
                lost = True
                learner.warn(f"the best weights are lost, and the best from now on is kept: {error}")
                continue
            if mark.get("name") == self.best and isinstance(mark.get("value"), float):
                # Not in the list if the process was killed before it wrote the list.
                line = listed.get((file.name, mark.get("step"))) or line_of(file, mark)
                lines.append({key: value for key, value in line.items() if key != "format"})
            elif learner.is_resumed and mark.get("name") is not None:
                learner.warn(
                    f"{file}: has the weights of the best {mark['name']}, and now best={self.best!r}: the first "
                    "weights of that replace them"
                )
        count, lines = len(lines), self._ranking.of(lines)
        if lines and (len(lines) < count or lines[0]["file"] not in (BestName.FILE, BestName.FOLDER)):
            self._catalog.set_bests(lines)  # killed before the best file was renamed, or another one deleted
        else:
            self._catalog.bests = lines
        remembered = [entry for entry in self._remembered if entry.get("name") == self.best][: self.keep_best]
        if learner.is_resumed and len(lines) < len(remembered) and not lost:
            steps = [line["step"] for line in lines]
            entry = next((entry for entry in remembered if entry["step"] not in steps), remembered[-1])
            learner.warn(
                f"{path / BestName.FILE}: is missing ({self.best} was {entry['value']} at step {entry['step']}); the "
                "best from now on is kept"
            )
        return [_entry(line) for line in self._catalog.bests]

    def _with_entry(self, entries: list[dict[str, Any]], entry: dict[str, Any]) -> list[dict[str, Any]]:
        """The best of these entries and a new one, which replaces an earlier entry of its step."""
        return self._ranking.of([*(other for other in entries if other["step"] != entry["step"]), entry])

    def _ranked(self) -> list[dict[str, Any]]:
        entries = self._bests
        for entry in self._pending:
            entries = self._with_entry(entries, entry)
        return entries

    def _compare(self, learner: AnyLearner, name: str) -> None:
        if isinstance(self._writer, ShardWriter):
            assert self._team is not None
            self._settle(learner)
            # Only values whose weights were written count, and all processes must decide alike.
            self._bests = self._team.by_main(lambda: self._bests)
        entry: dict[str, Any] = {
            "name": name,
            "value": value_of(learner, name, "Checkpoints: best"),
            "step": learner.step,
        }
        ranked = self._ranked()
        former = [
            other for other in ranked if other["step"] == learner.step
        ]  # for example of a branch that was abandoned
        if math.isnan(entry["value"]) or self._ranking.of([*former, entry])[0] is not entry:
            return
        if entry not in self._with_entry(ranked, entry):
            return
        try:
            if isinstance(self._writer, ShardWriter):
                weights = learner.weights_record()
            else:
                if self.keep_best > 1:
                    self._writer.make_room(_BEST)  # every one of them must be written, and not only the newest
                weights = learner.weights(frozen=self.frozen)
        except MemoryError as error:
            learner.warn(f"step {learner.step}: the best weights are not kept: {error}")
            return
        self._pending = [entry] if self.keep_best == 1 else [*self._pending, entry]
        ties = {} if self.ties == "first" else {"ties": self.ties}
        mark = {**entry, "mode": self.mode, **ties, "epoch": learner.epoch}
        file = BestName.of(learner.step if self.keep_best > 1 else None, in_shards=self._team is not None)
        self._writer.put(_BEST, Job(file, weights, mark, learner.seconds, is_best=True))
        self._report(learner)

    def _save_state(self, learner: AnyLearner) -> None:
        """Copy the state, and give it to the writer."""
        step = learner.step
        self._save_time = time.monotonic()
        mark = {"step": step, "epoch": learner.epoch, "values": plain(learner.values())}
        try:
            shared = self._team is not None
            record = learner.saved_state(whole=False) if shared else learner.snapshot(whole=False, frozen=self.frozen)
        except MemoryError as error:
            learner.warn(f"step {step}: no checkpoint, because the memory has no room for a copy of the state: {error}")
            return
        job = Job(file_name(step, in_shards=shared), record, mark, learner.seconds)
        if self._catalog is not None:
            job = self._with_history(learner, job)
        self._writer.put(_STATE, job)
        self._report(learner)

    def _with_history(self, learner: AnyLearner, job: Job) -> Job:
        """The job with the position of its history; with several processes, this one writes the history now."""
        assert self._catalog is not None
        grown, counts = learner.grown(), job.record[LOG][COUNTS]
        position = None if self._history is None else self._history.extend(grown, counts)
        if position is None:
            self._history = HistoryFile(self._path)
            position = self._history.extend(grown, counts)
        if self._team is not None and position is not None:
            try:
                self._write_history(position)
            except OSError:  # put the lines into the checkpoint: if its write fails too, all processes hear of it
                return replace(job, record=with_lines(job.record, grown))
        return replace(job, history=position)

    def _write_history(self, position: Position) -> None:
        """Write the lines up to a position, before the checkpoint that needs them."""
        assert self._catalog is not None
        if position.lines:
            self._catalog.announce(position.file.path.name)
            position.file.write(position)

    def _write(self, job: Job) -> None:
        """Write a file and the list of files; on the writer's thread."""
        assert self._catalog is not None
        try:
            if job.history is not None:
                self._write_history(job.history)
            self._catalog.announce(job.name)
            lost = save(job.marked(), self._path / job.name, self.precision)
        except Exception as error:
            self._written(job, error)
        else:
            self._written(job, None, lost)

    def _written(self, job: Job, error: Exception | None, lost: str = "") -> None:
        """List a written file, and queue the result or the error for the report."""
        path = self._path / job.name
        if error is None and self._catalog is not None:
            try:
                self._catalog.announce(job.name)
                if job.is_best:
                    self._catalog.add_best(job.line(path), self._ranking)
                else:
                    self._catalog.add(job.line(path), self.keep)
            except Exception as raised:
                error = raised
        self._done.append(Done(path, job.mark, job.is_best, lost if error is None else "", error))

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
            if done.is_best:
                self._pending = [entry for entry in self._pending if entry["step"] != done.mark["step"]]
            if done.error is not None:
                self._report_error(learner, done, done.error)
            elif done.is_best:
                self._bests = self._with_entry(self._bests, _entry(done.mark))
            else:
                self._saved = (done.mark["step"], done.mark["epoch"])
                if done.path.exists():  # a newer checkpoint may have replaced it already
                    learner.announce(done.path)

    def _report_error(self, learner: AnyLearner, done: Done, error: Exception) -> None:
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


def _entry(mark: Mapping[str, Any]) -> dict[str, Any]:
    return {name: mark[name] for name in ("name", "value", "step")}
