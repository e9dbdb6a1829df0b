"""Adadelta: steps in the units of the weights."""

from __future__ import annotations

from typing import ClassVar

from phlox.errors import ConfigError
from phlox.optim.config import SimpleConfig
from phlox.optim.rules.update_terms import average, descent
from phlox.optim.simple import AnyTensor, Rule, SimpleOptimizer
from phlox.optim.state.tree import State


class AdadeltaConfig(SimpleConfig):
    """Hyper-parameters of `Adadelta`: `weight_decay` is added to the gradient. Defaults are PyTorch's.

    The learning rate in the paper, and PyTorch's default, is 1.

    >>> AdadeltaConfig(weight_decay=0.01).init()
    OptimizerAdaptor(Adadelta, 0 states)
    """

    rho: float = 0.9
    epsilon: float = 1e-6
    weight_decay: float = 0.0
    maximize: bool = False

    def validate(self) -> None:
        super().validate()
        if self.rho > 1.0:
            raise ConfigError(f"rho must lie in [0, 1], got {self.rho}")

    def simple(self) -> SimpleOptimizer:
        return Adadelta(self)


class Adadelta(Rule[AdadeltaConfig]):
    """v = rho v + (1 - rho) g^2;  d = g sqrt(u + eps) / sqrt(v + eps);  u = rho u + (1 - rho) d^2;  x = x - lr d.

    Zeiler 2012: "ADADELTA: an adaptive learning rate method".
    """

    moments = ("square", "square_step")
    scalars: ClassVar = {}  # it does not count its steps
    elementwise = True

    def step(self, lr: float, tensor: AnyTensor, grad: AnyTensor, state: State) -> tuple[AnyTensor, State]:
        c = self.config
        grad = descent(c, tensor, grad)
        v = average(state["square"], grad.square(), c.rho)
        delta = (state["square_step"] + c.epsilon).sqrt() / (v + c.epsilon).sqrt() * grad
        u = average(state["square_step"], delta.square(), c.rho)
        return tensor - delta * lr, {"square": v, "square_step": u}
