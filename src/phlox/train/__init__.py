"""Training: the learner, its callbacks and loggers, and the folder of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.lazy import lazily, lend
from phlox.train.callback import Callback, LambdaCallback
from phlox.train.callbacks.control import EarlyStopping, Print, ReduceOnPlateau, StopAfter, Unfreeze
from phlox.train.callbacks.monitor import Monitor, Watch
from phlox.train.callbacks.profiling import Profile, Throughput
from phlox.train.checkpoints.checkpoints import Checkpoints
from phlox.train.folder.run_folder import RunFolder
from phlox.train.history import EpochReport, History, Plan
from phlox.train.learner import Learner
from phlox.train.loggers.files import CsvLogger, JsonlLogger, Logger
from phlox.train.loop import Fit
from phlox.train.meter import MetricInputs
from phlox.train.nonfinite import NanGuard

lend(["phlox.train.callback"], Learner=Learner)
lend(["phlox.train.state"], Fit=Fit)

if TYPE_CHECKING:
    from phlox.train.loggers.trackers import MlflowLogger, TensorBoardLogger, WandbLogger
    from phlox.train.trials.dry_run import DryRun
    from phlox.train.trials.lr_find import LrCurve
    from phlox.train.views.curves import draw_curves
    from phlox.train.views.report import Report
    from phlox.train.views.schedule_plot import draw_schedule
    from phlox.train.views.view import NotebookProgress, PlainProgress, RichProgress, View, progress

__all__ = [
    "Callback", "Checkpoints", "CsvLogger", "DryRun", "EarlyStopping", "EpochReport", "History", "JsonlLogger",
    "LambdaCallback", "Learner", "Logger", "LrCurve", "MetricInputs", "MlflowLogger", "Monitor", "NanGuard",
    "NotebookProgress", "PlainProgress", "Plan", "Print", "Profile", "ReduceOnPlateau", "Report", "RichProgress",
    "RunFolder", "StopAfter", "TensorBoardLogger", "Throughput", "Unfreeze", "View", "WandbLogger", "Watch",
    "draw_curves", "draw_schedule", "progress",
]  # fmt: skip

__getattr__, __dir__ = lazily(
    __name__,
    {
        "trials.dry_run": "DryRun", "trials.lr_find": "LrCurve",
        "views.curves": "draw_curves", "views.report": "Report",
        "views.schedule_plot": "draw_schedule", "loggers.trackers": "MlflowLogger TensorBoardLogger WandbLogger",
        "views.view": "NotebookProgress PlainProgress RichProgress View progress",
    },
)  # fmt: skip
