"""Learning-rate schedules: objects that return the next rate, and whose state is a record."""

from __future__ import annotations

from phlox.optim.schedule.base import LrSchedule
from phlox.optim.schedule.compose import GroupedLr, ProductLr, SequenceLr, SumLr, WarmUpLr
from phlox.optim.schedule.cyclic import CosineRestartsLr, CyclicLr, OneCycleLr
from phlox.optim.schedule.plateau import ReduceOnPlateauLr
from phlox.optim.schedule.shapes import (
    ConstantLr,
    CosineAnnealingLr,
    ExponentialLr,
    FunctionLr,
    InverseSqrtLr,
    LinearLr,
    MultiStepLr,
    NoamLr,
    PolynomialLr,
    StepLr,
)

__all__ = [
    "ConstantLr", "CosineAnnealingLr", "CosineRestartsLr", "CyclicLr", "ExponentialLr", "FunctionLr", "GroupedLr",
    "InverseSqrtLr", "LinearLr", "LrSchedule", "MultiStepLr", "NoamLr", "OneCycleLr", "PolynomialLr", "ProductLr",
    "ReduceOnPlateauLr", "SequenceLr", "StepLr", "SumLr", "WarmUpLr",
]  # fmt: skip
