"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from phlox.backend import Backend
from phlox.backend.contract.update import SgdScalars
from phlox.errors import ConfigError
from phlox.optim.config import SimpleConfig
from phlox.optim.rules.update_terms import descent
from phlox.optim.simple import AnyTensor, Kernel, Rule, SimpleOptimizer
from phlox.optim.state.tree import State
from phlox.optim.step.shared_scalars import chosen, counted
from phlox.tensor import zeros_like


class SgdConfig(SimpleConfig):
    """Hyper-parameters of `Sgd`. Defaults are PyTorch's.

    >>> SgdConfig(momentum=0.9, nesterov=True).init()
    OptimizerAdaptor(Sgd, 0 states)
    """

    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False

    def validate(self) -> None:
        super().validate()
        if self.nesterov and (self.momentum <= 0.0 or self.dampening != 0.0):
            raise ConfigError("nesterov needs a momentum above zero and no dampening")

    def simple(self) -> SimpleOptimizer:
        return Sgd(self)


class Sgd(Rule[SgdConfig]):
    """v = momentum v + (1 - dampening) g;  x = x - lr v.

    x is the parameter and g its gradient; the first v is g. Weight decay adds decay x to g first. Nesterov's variant
    steps along g + momentum v (Sutskever et al. 2013: "On the importance of initialization and momentum in deep
    learning").
    """

    elementwise = True

    def init(self, tensor: AnyTensor) -> State:
        if not self.config.momentum:
            return None
        # Without dampening, the first velocity from zero is the gradient; with it, the first step must be known.
        return {"velocity": zeros_like(tensor), **({"time": 0} if self.config.dampening else {})}

    def step(self, lr: float, tensor: AnyTensor, grad: AnyTensor, state: State) -> tuple[AnyTensor, State]:
        c = self.config
        grad = descent(c, tensor, grad)
        if not c.momentum:
            return tensor - grad * lr, state
        velocity = state["velocity"] * c.momentum
        after: dict[str, Any] = {}
        if c.dampening:
            (after["time"],) = counted(state["time"], tensor.backend)
            velocity = velocity + grad * chosen(after["time"] > 1, 1.0 - c.dampening, 1.0, tensor.backend)
        else:
            velocity = velocity + grad
        step = grad + velocity * c.momentum if c.nesterov else velocity
        return tensor - step * lr, {"velocity": velocity, **after}

    def kernel(self, lr: float, state: State, backend: Backend) -> Kernel | None:
        c = self.config
        after = () if state is None or not c.dampening else (state["time"] + 1,)
        first = after == (1,)
        numbers = SgdScalars(lr, c.momentum, c.dampening, c.weight_decay, c.nesterov, c.maximize, first)
        return Kernel("sgd", numbers, after)
