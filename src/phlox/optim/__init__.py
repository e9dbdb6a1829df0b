"""Floor 6: optimizers, gradient clipping, learning-rate schedules."""

from __future__ import annotations

from phlox.module import GradientsParams
from phlox.optim.adam import Adam, AdamConfig, AdamWConfig
from phlox.optim.adaptor import OptimizerAdaptor, SimpleOptimizer
from phlox.optim.clipping import GradientClipping
from phlox.optim.optimizer import Optimizer
from phlox.optim.schedule import ConstantLr, CosineAnnealingLr, LrSchedule
from phlox.optim.sgd import Sgd, SgdConfig

__all__ = [
    "Adam", "AdamConfig", "AdamWConfig", "ConstantLr", "CosineAnnealingLr", "GradientClipping", "GradientsParams",
    "LrSchedule", "Optimizer", "OptimizerAdaptor", "Sgd", "SgdConfig", "SimpleOptimizer",
]  # fmt: skip
