"""Training: the learner, its callbacks, and the folder of a run."""

from __future__ import annotations

from phlox.train.callback import Callback, LambdaCallback
from phlox.train.curves import draw_curves
from phlox.train.dry_run import DryRun
from phlox.train.folder import RunFolder
from phlox.train.history import EpochReport, Plan
from phlox.train.learner import Learner
from phlox.train.lr_find import LrCurve
from phlox.train.meter import MetricInputs
from phlox.train.nonfinite import NanGuard
from phlox.train.schedule_plot import draw_schedule

__all__ = [
    "Callback", "DryRun", "EpochReport", "LambdaCallback", "Learner", "LrCurve", "MetricInputs", "NanGuard", "Plan",
    "RunFolder", "draw_curves", "draw_schedule",
]  # fmt: skip
