"""Floor 6: optimizers, gradient clipping, learning-rate schedules."""

from __future__ import annotations

from phlox.lazy import lazily, lend
from phlox.module import GradientsParams
from phlox.optim.accumulation import GradientsAccumulator
from phlox.optim.adadelta import Adadelta, AdadeltaConfig
from phlox.optim.adafactor import Adafactor, AdafactorConfig
from phlox.optim.adagrad import Adagrad, AdagradConfig
from phlox.optim.adam import Adam, AdamConfig, AdamWConfig
from phlox.optim.adamax import AdaMax, AdaMaxConfig
from phlox.optim.adan import Adan, AdanConfig
from phlox.optim.adaptor import OptimizerAdaptor
from phlox.optim.clipping import GradientClipping
from phlox.optim.config import SimpleConfig
from phlox.optim.ema import Ema
from phlox.optim.groups import Group, vectors
from phlox.optim.lamb import Lamb, LambConfig
from phlox.optim.lbfgs import Lbfgs, LbfgsConfig, LbfgsOutcome
from phlox.optim.lion import Lion, LionConfig
from phlox.optim.loss_scaling import LossScaler
from phlox.optim.muon import Muon, MuonConfig
from phlox.optim.nadam import NAdam, NAdamConfig
from phlox.optim.optax_adaptor import OptaxAdaptor
from phlox.optim.optimizer import Optimizer
from phlox.optim.radam import RAdam, RAdamConfig
from phlox.optim.rmsprop import RmsProp, RmsPropConfig
from phlox.optim.schedule import (
    ConstantLr,
    CosineAnnealingLr,
    CosineRestartsLr,
    CyclicLr,
    ExponentialLr,
    FunctionLr,
    GroupedLr,
    InverseSqrtLr,
    LinearLr,
    LrSchedule,
    MultiStepLr,
    NoamLr,
    OneCycleLr,
    PolynomialLr,
    ProductLr,
    ReduceOnPlateauLr,
    SequenceLr,
    StepLr,
    SumLr,
    WarmUpLr,
)
from phlox.optim.schedule_free import ScheduleFreeAdamW, ScheduleFreeAdamWConfig
from phlox.optim.sgd import Sgd, SgdConfig
from phlox.optim.simple import SimpleOptimizer
from phlox.optim.state_report import StateReport

lend(["phlox.optim.groups"], SimpleOptimizer=SimpleOptimizer, SimpleConfig=SimpleConfig)

__all__ = [
    "AdaMax", "AdaMaxConfig", "Adadelta", "AdadeltaConfig", "Adafactor", "AdafactorConfig", "Adagrad", "AdagradConfig",
    "Adam", "AdamConfig", "AdamWConfig", "Adan", "AdanConfig", "ConstantLr", "CosineAnnealingLr", "CosineRestartsLr",
    "CyclicLr", "Ema", "ExponentialLr", "FunctionLr", "GradientClipping", "GradientsAccumulator", "GradientsParams",
    "Group", "GroupedLr", "InverseSqrtLr", "Lamb", "LambConfig", "Lbfgs", "LbfgsConfig", "LbfgsOutcome", "LinearLr",
    "Lion", "LionConfig", "LossScaler", "LrSchedule", "MultiStepLr", "Muon", "MuonConfig", "NAdam", "NAdamConfig",
    "NoamLr", "OneCycleLr", "OptaxAdaptor", "Optimizer", "OptimizerAdaptor", "PolynomialLr", "ProductLr", "RAdam",
    "RAdamConfig", "ReduceOnPlateauLr", "RmsProp", "RmsPropConfig", "ScheduleFreeAdamW", "ScheduleFreeAdamWConfig",
    "SequenceLr", "Sgd", "SgdConfig", "SimpleConfig", "SimpleOptimizer", "StateReport",
    "StepLr", "SumLr", "WarmUpLr", "vectors",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__, {})
