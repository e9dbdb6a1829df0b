"""What a fit begins with: the folder of the run, where it is resumed, and the callbacks that every run has."""

from __future__ import annotations

from contextlib import ExitStack
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
    """Open the folder, add the callbacks of every run, and give the record to go on from, if there is one."""
    if overwrite and folder is None:
        raise RunError("fit: overwrite=True says what to do with a run in folder=, which was not given")
    if fit.config is not None and not isinstance(cast("Any", fit.config), BaseConfig):
        got = type(fit.config).__name__
        raise RunError(f"fit: config is a phlox.Config (of a class Settings(phlox.Config): ...), got a {got}")
    record = _record(fit, fit.folder, resume)
    if shows and not _has(fit, View):
        fit.callbacks.insert(0, progress())
    if folder is not None:
        run = folder if isinstance(folder, RunFolder) else None
        if run is None:
            run = RunFolder(fit.folder or "", overwrite=overwrite, resume="auto" if resume else False)
            stack.enter_context(run)
        run.describe(fit.config, fit.learner.device, {"stream": fit.learner.stream.state()})
        if not _has(fit, JsonlLogger):
            fit.callbacks.append(JsonlLogger(run.file(METRICS), overwrite=record is None and run.is_resumed))
        if not _has(fit, Report):
            fit.callbacks.append(Report(run.file(REPORT)))
        if not _has(fit, Checkpoints):
            fit.callbacks.append(Checkpoints())
    return record


def _record(fit: Fit, folder: Path | None, resume: Any) -> Record | None:
    """The checkpoint to go on from; None where there is none yet, in a folder that is the run's own."""
    if not resume:
        return None
    own = [path for path in (folder, *_folders(fit)) if path is not None]
    if resume is True:
        if not own:
            raise RunError("fit: resume=True goes on with the run in folder=; give that, or resume=PATH")
        found = [path for path in own if Checkpoints.exist_in(path)]
        return Checkpoints.load(found[0]) if found else None
    path = Path(resume)
    if path.is_dir() and not Checkpoints.exist_in(path) and path.resolve() in [one.resolve() for one in own]:
        return None  # the first start of a program that is written to be started again
    return Checkpoints.load(path)


def _folders(fit: Fit) -> list[Path]:
    return [one.folder for one in fit.callbacks if isinstance(one, Checkpoints) and one.folder is not None]


def _has(fit: Fit, kind: type[Callback]) -> bool:
    return any(isinstance(one, kind) for one in fit.callbacks)
