"""Training: the learner, its callbacks and loggers, and the folder of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phlox.lazy import lazily, lend
from phlox.tensor.functional.loss_weight import Loss
from phlox.train.events import EpochReport, Growing, History, Plan
from phlox.train.learner import Learner
from phlox.train.loop.fit import Fit
from phlox.train.observers.callback import Callback, LambdaCallback
from phlox.train.observers.callbacks.control import EarlyStopping, ReduceOnPlateau, StopAfter, Unfreeze
from phlox.train.observers.callbacks.monitor import Monitor, Watch
from phlox.train.observers.callbacks.nan_guard import NanGuard
from phlox.train.observers.callbacks.profiling import Profile, Throughput
from phlox.train.observers.checkpoints.checkpoints import Checkpoints
from phlox.train.observers.folder.run_folder import RunFolder
from phlox.train.observers.loggers.files import CsvLogger, JsonlLogger, Logger
from phlox.train.step.metric_state import MetricInputs
from phlox.train.values import Histogram, Image

lend(["phlox.train.observers.callback"], Learner=Learner)
lend(["phlox.train.control", "phlox.train.run"], Fit=Fit)

if TYPE_CHECKING:
    from phlox.train.observers.callbacks.histograms import Histograms
    from phlox.train.observers.folder.run_model import load_model
    from phlox.train.observers.loggers.trackers import MlflowLogger, TensorBoardLogger, WandbLogger
    from phlox.train.observers.views.curves import draw_curves
    from phlox.train.observers.views.report import Report
    from phlox.train.observers.views.schedule_plot import draw_schedule
    from phlox.train.observers.views.view import NotebookProgress, PlainProgress, Print, RichProgress, View, progress
    from phlox.train.trials.dry_run import DryRun
    from phlox.train.trials.lr_find import LrCurve

__all__ = [
    "Callback", "Checkpoints", "CsvLogger", "DryRun", "EarlyStopping", "EpochReport", "Growing", "Histogram",
    "Histograms", "History", "Image", "JsonlLogger", "LambdaCallback", "Learner", "Logger", "Loss", "LrCurve",
    "MetricInputs", "MlflowLogger", "Monitor", "NanGuard", "NotebookProgress", "PlainProgress", "Plan", "Print",
    "Profile", "ReduceOnPlateau", "Report", "RichProgress", "RunFolder", "StopAfter", "TensorBoardLogger", "Throughput",
    "Unfreeze", "View", "WandbLogger", "Watch", "draw_curves", "draw_schedule", "load_model", "progress",
]  # fmt: skip

__getattr__, __dir__ = lazily(
    __name__,
    {
        "trials.dry_run": "DryRun", "trials.lr_find": "LrCurve",
        "observers.callbacks.histograms": "Histograms",
        "observers.folder.run_model": "load_model",
        "observers.views.curves": "draw_curves", "observers.views.report": "Report",
        "observers.views.schedule_plot": "draw_schedule",
        "observers.loggers.trackers": "MlflowLogger TensorBoardLogger WandbLogger",
        "observers.views.view": "NotebookProgress PlainProgress Print RichProgress View progress",
    },
)  # fmt: skip
