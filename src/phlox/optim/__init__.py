"""Floor 6: optimizers, gradient clipping, learning-rate schedules."""

from __future__ import annotations

from phlox.lazy import lazily, lend
from phlox.module import GradientsParams
from phlox.optim.clipping import GradientClipping
from phlox.optim.config import SimpleConfig
from phlox.optim.groups import Group, vectors
from phlox.optim.lbfgs.optimizer import Lbfgs, LbfgsConfig, LbfgsOutcome
from phlox.optim.optax.adaptor import OptaxAdaptor
from phlox.optim.optimizer import Optimizer
from phlox.optim.rules.adadelta import Adadelta, AdadeltaConfig
from phlox.optim.rules.adafactor import Adafactor, AdafactorConfig
from phlox.optim.rules.adagrad import Adagrad, AdagradConfig
from phlox.optim.rules.adam import Adam, AdamConfig, AdamWConfig
from phlox.optim.rules.adamax import AdaMax, AdaMaxConfig
from phlox.optim.rules.adan import Adan, AdanConfig
from phlox.optim.rules.lamb import Lamb, LambConfig
from phlox.optim.rules.lion import Lion, LionConfig
from phlox.optim.rules.muon import Muon, MuonConfig
from phlox.optim.rules.nadam import NAdam, NAdamConfig
from phlox.optim.rules.radam import RAdam, RAdamConfig
from phlox.optim.rules.rmsprop import RmsProp, RmsPropConfig
from phlox.optim.rules.schedule_free import ScheduleFreeAdamW, ScheduleFreeAdamWConfig
from phlox.optim.rules.sgd import Sgd, SgdConfig
from phlox.optim.rules.update_terms import average, decayed, descent
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
from phlox.optim.simple import SimpleOptimizer
from phlox.optim.state.report import StateReport
from phlox.optim.step.adaptor import OptimizerAdaptor
from phlox.optim.step.shared_scalars import counted
from phlox.optim.wrappers.accumulation import GradientsAccumulator
from phlox.optim.wrappers.ema import Ema
from phlox.optim.wrappers.loss_scaling import LossScaler

lend(["phlox.optim.groups"], SimpleOptimizer=SimpleOptimizer, SimpleConfig=SimpleConfig)

__all__ = [
    "AdaMax", "AdaMaxConfig", "Adadelta", "AdadeltaConfig", "Adafactor", "AdafactorConfig", "Adagrad", "AdagradConfig",
    "Adam", "AdamConfig", "AdamWConfig", "Adan", "AdanConfig", "ConstantLr", "CosineAnnealingLr", "CosineRestartsLr",
    "CyclicLr", "Ema", "ExponentialLr", "FunctionLr", "GradientClipping", "GradientsAccumulator", "GradientsParams",
    "Group", "GroupedLr", "InverseSqrtLr", "Lamb", "LambConfig", "Lbfgs", "LbfgsConfig", "LbfgsOutcome", "LinearLr",
    "Lion", "LionConfig", "LossScaler", "LrSchedule", "MultiStepLr", "Muon", "MuonConfig", "NAdam", "NAdamConfig",
    "NoamLr", "OneCycleLr", "OptaxAdaptor", "Optimizer", "OptimizerAdaptor", "PolynomialLr", "ProductLr", "RAdam",
    "RAdamConfig", "ReduceOnPlateauLr", "RmsProp", "RmsPropConfig", "ScheduleFreeAdamW", "ScheduleFreeAdamWConfig",
    "SequenceLr", "Sgd", "SgdConfig", "SimpleConfig", "SimpleOptimizer", "StateReport", "StepLr", "SumLr", "WarmUpLr",
    "average", "counted", "decayed", "descent", "vectors",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__, {})
