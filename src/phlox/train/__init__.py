"""Training: the learner, its callbacks and loggers, and the folder of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.lazy import lazily, lend
from phlox.train.callback import Callback, LambdaCallback
from phlox.train.callbacks import EarlyStopping, Print, ReduceOnPlateau, StopAfter, Unfreeze
from phlox.train.checkpoints import Checkpoints
from phlox.train.folder import RunFolder
from phlox.train.history import EpochReport, Plan
from phlox.train.learner import Learner
from phlox.train.loggers import CsvLogger, JsonlLogger, Logger
from phlox.train.loop import Fit
from phlox.train.meter import MetricInputs
from phlox.train.monitor import Monitor, Watch
from phlox.train.nonfinite import NanGuard
from phlox.train.profiling import Profile, Throughput

lend(["phlox.train.callback"], Learner=Learner)
lend(["phlox.train.state"], Fit=Fit)

if TYPE_CHECKING:
    from phlox.train.curves import draw_curves
    from phlox.train.dry_run import DryRun
    from phlox.train.lr_find import LrCurve
    from phlox.train.report import Report
    from phlox.train.schedule_plot import draw_schedule
    from phlox.train.trackers import MlflowLogger, TensorBoardLogger, WandbLogger
    from phlox.train.view import NotebookProgress, PlainProgress, RichProgress, View, progress

__all__ = [
    "Callback", "Checkpoints", "CsvLogger", "DryRun", "EarlyStopping", "EpochReport", "JsonlLogger", "LambdaCallback",
    "Learner", "Logger", "LrCurve", "MetricInputs", "MlflowLogger", "Monitor", "NanGuard", "NotebookProgress",
    "PlainProgress", "Plan", "Print", "Profile", "ReduceOnPlateau", "Report", "RichProgress", "RunFolder", "StopAfter",
    "TensorBoardLogger", "Throughput", "Unfreeze", "View", "WandbLogger", "Watch", "draw_curves", "draw_schedule",
    "progress",
]  # fmt: skip

__getattr__, __dir__ = lazily(
    __name__,
    {
        "curves": "draw_curves", "dry_run": "DryRun", "lr_find": "LrCurve", "report": "Report",
        "schedule_plot": "draw_schedule", "trackers": "MlflowLogger TensorBoardLogger WandbLogger",
        "view": "NotebookProgress PlainProgress RichProgress View progress",
    },
)  # fmt: skip
