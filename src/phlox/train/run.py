"""The start of a fit: the folder of the run, the checkpoint to resume, and the callbacks that every run has."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from phlox.config import BaseConfig
from phlox.errors import RunError
from phlox.record import Record
from phlox.train.observers.callback import Callback
from phlox.train.observers.checkpoints.checkpoints import Checkpoints
from phlox.train.observers.checkpoints.files import candidates, first_whole, with_history
from phlox.train.observers.folder.model_file import ModelFile
from phlox.train.observers.folder.run_folder import RunFolder
from phlox.train.observers.loggers.files import JsonlLogger
from phlox.train.observers.views.report import Report
from phlox.train.observers.views.view import View, progress
from phlox.train.resume_notes import lost_states, other_settings

if TYPE_CHECKING:
    from phlox.train.loop.fit import Fit
    from phlox.train.step.data_parallel import DataParallel

METRICS, REPORT = "metrics.jsonl", "report.html"


class Preparation:
    """Opens the folder of a run, adds the callbacks of every run, and finds the record to resume from.

    See `Learner.fit` for the arguments. Paths are made absolute: a program may change its folder while it trains.
    """

    def __init__(
        self,
        folder: Any = None,
        *,
        resume: Any = False,
        overwrite: bool = False,
        shows: bool = False,
        config: Any = None,
    ) -> None:
        if overwrite and folder is None:
            raise RunError("fit: overwrite=True is for a run in folder=, which was not given")
        if config is not None and not isinstance(config, BaseConfig):
            got = type(config).__name__
            raise RunError(f"fit: config is a phlox.Config (of a class Settings(phlox.Config): ...), got a {got}")
        self._run = folder if isinstance(folder, RunFolder) else None
        folder_path = folder.path if isinstance(folder, RunFolder) else folder
        self.path = None if folder_path is None else Path(os.path.abspath(folder_path))  # noqa: PTH100  (which follows no links)
        self._resume, self._overwrite, self._shows, self._config = resume, overwrite, shows, config

    def __call__(self, fit: Fit, stack: ExitStack) -> Record | None:
        """Prepare a fit."""
        team = fit.team
        if team is None or team.size == 1:
            record = self._record(fit)
        else:
            if self._run is not None:
                raise RunError("fit: with several processes, process 0 opens the folder; give folder= its path")
            # Process 0 finds the checkpoints and opens the folder; all processes verify and read a checkpoint together.
            paths = team.by_main(lambda: self._checkpoint_paths(fit))
            record = None if paths is None else _record_of([Path(path) for path in paths], team)
        fit.control.run.starts_over = bool(self._resume) and record is None
        if self._shows and not _has(fit, View) and (team is None or team.is_main):
            fit.callbacks.insert(0, progress())
        if self.path is not None:
            begin = partial(self._open, fit, self.path, record, stack)
            if team is None:
                begin()
            else:
                team.by_main(begin)
            if not _has(fit, Checkpoints):
                fit.callbacks.append(Checkpoints())
        if record is not None and (team is None or team.is_main):
            fit.notes = [*other_settings(fit, record), *lost_states(fit, record, in_folder=self.path is not None)]
        return record

    def _open(self, fit: Fit, path: Path, record: Record | None, stack: ExitStack) -> None:
        """Open the folder of the run, and add the callbacks that write to it."""
        run = self._run
        if run is None:
            run = RunFolder(path, overwrite=self._overwrite, resume="auto" if self._resume else False)
            stack.enter_context(run)
        run.describe(self._config, fit.stepper.device, {"stream": fit.state.stream.state()}, fit.settings())
        fit.callbacks.insert(0, ModelFile(run))  # the first, so that at the end it is called after all others
        if not _has(fit, JsonlLogger):
            fit.callbacks.append(JsonlLogger(run.file(METRICS), overwrite=record is None and run.is_resumed))
        if not _has(fit, Report):
            fit.callbacks.append(Report(run.file(REPORT)))

    def _checkpoint_paths(self, fit: Fit) -> list[str] | None:
        """The paths of checkpoints, newest first; the training resumes from the first one that is complete."""
        path = self._folder(fit)
        return None if path is None else [str(candidate) for candidate in candidates(path)]

    def _record(self, fit: Fit) -> Record | None:
        """The record of the checkpoint to resume from; None if there is none."""
        path = self._folder(fit)
        return None if path is None else Checkpoints.load(path)

    def _folder(self, fit: Fit) -> Path | None:
        """The folder of the checkpoint to resume from; None if there is no checkpoint yet, in the run's own folder."""
        resume = self._resume
        if not resume:
            return None
        own = [path for path in (self.path, *_folders(fit)) if path is not None]
        if resume is True:
            if not own:
                raise RunError("fit: resume=True resumes the run in folder=; give folder=, or resume=PATH")
            with_checkpoints = [path for path in own if Checkpoints.exist_in(path)]
            return with_checkpoints[0] if with_checkpoints else None
        path = Path(resume)
        if path.is_dir() and not Checkpoints.exist_in(path) and path.resolve() in [p.resolve() for p in own]:
            return None  # the first start of a program that resumes at later starts
        return path


def _record_of(paths: list[Path], team: DataParallel) -> Record:
    """The record of the first checkpoint that is complete in all processes."""
    from phlox.distributed import gather_objects

    def agreed(problem: str | None) -> str | None:
        return next((text for text in gather_objects(problem) if text is not None), None)

    path, record = first_whole(paths, team.rank, team.size, agreed)
    return with_history(record, path, warns=team.is_main)


def _folders(fit: Fit) -> list[Path]:
    callbacks: list[Any] = fit.callbacks
    return [each.folder for each in callbacks if isinstance(each, Checkpoints) and each.folder is not None]


def _has(fit: Fit, kind: type[Callback]) -> bool:
    return any(isinstance(cast("Any", callback), kind) for callback in fit.callbacks)
