"""The start of a fit: the folder of the run, the checkpoint to resume, and the callbacks that every run has."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from phlox.config import BaseConfig
from phlox.errors import RunError
from phlox.record import Record
from phlox.train.callback import Callback
from phlox.train.checkpoints.checkpoints import Checkpoints
from phlox.train.folder.run_folder import RunFolder
from phlox.train.loggers.files import JsonlLogger
from phlox.train.views.report import Report
from phlox.train.views.view import View, progress

if TYPE_CHECKING:
    from phlox.train.loop import Fit

METRICS, REPORT = "metrics.jsonl", "report.html"


def prepare(
    fit: Fit, folder: Path | RunFolder | None, resume: Any, stack: ExitStack, *, overwrite: bool, shows: bool
) -> Record | None:
    """Open the folder, add the callbacks of every run, and return the record to resume from, if there is one."""
    if overwrite and folder is None:
        raise RunError("fit: overwrite=True says what to do with a run in folder=, which was not given")
    if fit.config is not None and not isinstance(cast("Any", fit.config), BaseConfig):
        got = type(fit.config).__name__
        raise RunError(f"fit: config is a phlox.Config (of a class Settings(phlox.Config): ...), got a {got}")
    team = fit.team
    if team is None or team.size == 1:
        record = _record(fit, fit.folder, resume)
    else:
        if isinstance(folder, RunFolder):
            raise RunError("fit: of several processes the first opens the folder; give folder= its path")
        # Process 0 looks and opens, and all learn of it; what it has found each reads by itself.
        found = team.by_main(lambda: _place(fit, fit.folder, resume))
        record = None if found is None else Checkpoints.load(found)
    if shows and not _has(fit, View) and (team is None or team.is_main):
        fit.callbacks.insert(0, progress())
    if folder is not None:
        begin = partial(_open, fit, folder, record, stack, overwrite=overwrite, resume=resume)
        if team is None:
            begin()
        else:
            team.by_main(begin)
        if not _has(fit, Checkpoints):
            fit.callbacks.append(Checkpoints())
    return record


def _open(
    fit: Fit, folder: Path | RunFolder, record: Record | None, stack: ExitStack, *, overwrite: bool, resume: Any
) -> None:
    """Open the folder of the run, and add the callbacks that write to it."""
    run = folder if isinstance(folder, RunFolder) else None
    if run is None:
        run = RunFolder(fit.folder or "", overwrite=overwrite, resume="auto" if resume else False)
        stack.enter_context(run)
    run.describe(fit.config, fit.learner.device, {"stream": fit.learner.stream.state()})
    if not _has(fit, JsonlLogger):
        fit.callbacks.append(JsonlLogger(run.file(METRICS), overwrite=record is None and run.is_resumed))
    if not _has(fit, Report):
        fit.callbacks.append(Report(run.file(REPORT)))


def _place(fit: Fit, folder: Path | None, resume: Any) -> str | None:
    """The path of the checkpoint to go on from."""
    path = _folder(fit, folder, resume)
    return None if path is None else str(Checkpoints.latest_in(path))


def _record(fit: Fit, folder: Path | None, resume: Any) -> Record | None:
    """The checkpoint to go on from."""
    path = _folder(fit, folder, resume)
    return None if path is None else Checkpoints.load(path)


def _folder(fit: Fit, folder: Path | None, resume: Any) -> Path | None:
    """The folder of the checkpoint to resume from; None if there is no checkpoint yet, in the run's own folder."""
    if not resume:
        return None
    own = [path for path in (folder, *_folders(fit)) if path is not None]
    if resume is True:
        if not own:
            raise RunError("fit: resume=True goes on with the run in folder=; give that, or resume=PATH")
        found = [path for path in own if Checkpoints.exist_in(path)]
        return found[0] if found else None
    path = Path(resume)
    if path.is_dir() and not Checkpoints.exist_in(path) and path.resolve() in [one.resolve() for one in own]:
        return None  # the first start of a program that is written to be started again
    return path


def _folders(fit: Fit) -> list[Path]:
    return [one.folder for one in fit.callbacks if isinstance(one, Checkpoints) and one.folder is not None]


def _has(fit: Fit, kind: type[Callback]) -> bool:
    return any(isinstance(one, kind) for one in fit.callbacks)
