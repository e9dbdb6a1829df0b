"""Adam, and Adam with decoupled weight decay."""

from __future__ import annotations

import math
from typing import Any

from phlox.backend import Backend
from phlox.backend.contract.update import AdamNumbers
from phlox.config import Config
from phlox.errors import ConfigError
from phlox.optim.adaptor import OptimizerAdaptor, SimpleOptimizer
from phlox.optim.clipping import GradientClipping
from phlox.optim.sharing import shared
from phlox.optim.state import State
from phlox.tensor import Tensor, zeros_like
from phlox.tensor.functional import adam_update


class AdamConfig(Config):
    """Hyper-parameters of Adam (Kingma, Ba 2015): `weight_decay` is added to the gradient. Defaults are PyTorch's."""

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def validate(self) -> None:
        if not (0.0 <= self.beta_1 < 1.0 and 0.0 <= self.beta_2 < 1.0):
            raise ConfigError(f"the betas lie in [0, 1), got {self.beta_1} and {self.beta_2}")
        if not (self.epsilon >= 0.0 and self.weight_decay >= 0.0):
            raise ConfigError(f"epsilon and weight_decay are at least zero, got {self.epsilon} and {self.weight_decay}")

    def init(self, *, grad_clipping: GradientClipping | None = None) -> OptimizerAdaptor:
        """The optimizer."""
        return OptimizerAdaptor(Adam(self, decoupled=False), grad_clipping=grad_clipping)


class AdamWConfig(AdamConfig):
    """Hyper-parameters of AdamW (Loshchilov, Hutter 2019): decay acts on the weights alone. Defaults are PyTorch's."""

    weight_decay: float = 0.01

    def init(self, *, grad_clipping: GradientClipping | None = None) -> OptimizerAdaptor:
        """The optimizer."""
        return OptimizerAdaptor(Adam(self, decoupled=True), grad_clipping=grad_clipping)


class Adam(SimpleOptimizer):
    """m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  x = x - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).

    Decoupled, x is multiplied by 1 - lr decay first; otherwise decay x is added to g.
    """

    shares_counts = True

    def __init__(self, config: AdamConfig, *, decoupled: bool) -> None:
        self.config = config
        self.decoupled = decoupled

    def init(self, tensor: Tensor[Any, Any, Any]) -> State:
        return {"moment_1": zeros_like(tensor), "moment_2": zeros_like(tensor), "time": 0}

    def step(
        self, lr: float, tensor: Tensor[Any, Any, Any], grad: Tensor[Any, Any, Any], state: State
    ) -> tuple[Tensor[Any, Any, Any], State]:
        c = self.config
        time, correction_1, correction_2 = shared(_later, state["time"], c.beta_1, c.beta_2, tensor.backend)
        numbers = AdamNumbers(
            lr, c.beta_1, c.beta_2, c.epsilon, c.weight_decay, self.decoupled, correction_1, correction_2
        )
        tensor, m, v = adam_update(tensor, grad, state["moment_1"], state["moment_2"], numbers)
        return tensor, {"moment_1": m, "moment_2": v, "time": time}


def _later(time: Any, beta_1: float, beta_2: float, backend: Backend) -> tuple[Any, Any, Any]:
    """The time after one more step, and 1 - beta ** time for both betas."""
    time = time + 1
    correction_1, correction_2 = (
        -backend.number_expm1(time * math.log(beta)) if beta else 1.0 for beta in (beta_1, beta_2)
    )
    return time, correction_1, correction_2
