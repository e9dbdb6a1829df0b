"""Training: the learner, metrics, loggers, and the folder of a run."""

from __future__ import annotations

from phlox.train.curves import draw_curves
from phlox.train.folder import RunFolder
from phlox.train.learner import Learner
from phlox.train.logger import EpochReport, Logger, MetricsFile, Plan, StepReport
from phlox.train.metrics import Mean, Measure, accuracy
from phlox.train.progress import PlainProgress, RichProgress, progress
from phlox.train.schedule_plot import draw_schedule

__all__ = [
    "EpochReport",
    "Learner",
    "Logger",
    "Mean",
    "Measure",
    "MetricsFile",
    "PlainProgress",
    "Plan",
    "RichProgress",
    "RunFolder",
    "StepReport",
    "accuracy",
    "draw_curves",
    "draw_schedule",
    "progress",
]  # fmt: skip
