"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from phlox.config import Config
from phlox.errors import ConfigError
from phlox.optim.adaptor import OptimizerAdaptor, SimpleOptimizer
from phlox.optim.clipping import GradientClipping
from phlox.optim.state import State
from phlox.tensor import Tensor, zeros_like


class SgdConfig(Config):
    """Hyper-parameters of `Sgd`; the defaults are PyTorch's."""

    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def validate(self) -> None:
        if not (self.momentum >= 0.0 and self.weight_decay >= 0.0):
            raise ConfigError(
                f"momentum and weight_decay are at least zero, got {self.momentum} and {self.weight_decay}"
            )
        if self.nesterov and (self.momentum <= 0.0 or self.dampening != 0.0):
            raise ConfigError("nesterov needs a momentum above zero and no dampening")

    def init(self, *, grad_clipping: GradientClipping | None = None) -> OptimizerAdaptor:
        """The optimizer."""
        return OptimizerAdaptor(Sgd(self), grad_clipping=grad_clipping)


class Sgd(SimpleOptimizer):
    """v = momentum v + (1 - dampening) g;  x = x - lr v  (Sutskever et al. 2013).

    With weight decay g is g + decay x first; with Nesterov's variant the step is along g + momentum v. The first
    v is g.
    """

    def __init__(self, config: SgdConfig) -> None:
        self.config = config

    def init(self, tensor: Tensor[Any, Any, Any]) -> State:
        # The first velocity is the gradient, undamped: a start at zero gives that only without dampening.
        return {"velocity": zeros_like(tensor)} if self.config.momentum and not self.config.dampening else None

    def step(
        self, lr: float, tensor: Tensor[Any, Any, Any], grad: Tensor[Any, Any, Any], state: State
    ) -> tuple[Tensor[Any, Any, Any], State]:
        c = self.config
        if c.weight_decay:
            grad = grad + tensor * c.weight_decay
        if c.momentum:
            velocity = grad if state is None else state["velocity"] * c.momentum + grad * (1.0 - c.dampening)
            state = {"velocity": velocity}
            grad = grad + velocity * c.momentum if c.nesterov else velocity
        return tensor - grad * lr, state
