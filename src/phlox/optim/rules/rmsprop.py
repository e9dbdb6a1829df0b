"""RMSprop: gradients over the root of the mean of their squares."""

from __future__ import annotations

from phlox.optim.config import SimpleConfig
from phlox.optim.rules.update_terms import average, descent
from phlox.optim.simple import AnyTensor, Rule, SimpleOptimizer
from phlox.optim.state.tree import State
from phlox.tensor import zeros_like


class RmsPropConfig(SimpleConfig):
    """Hyper-parameters of `RmsProp`: `weight_decay` is added to the gradient. Defaults are PyTorch's.

    >>> RmsPropConfig(weight_decay=0.01).init()
    OptimizerAdaptor(RmsProp, 0 states)
    """

    alpha: float = 0.99
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False
    maximize: bool = False

    def simple(self) -> SimpleOptimizer:
        return RmsProp(self)


class RmsProp(Rule[RmsPropConfig]):
    """v = alpha v + (1 - alpha) g^2;  b = momentum b + g / (sqrt(v) + eps);  x = x - lr b.

    Hinton 2012: "Neural networks for machine learning", lecture 6e. If `centered`, the square of the moving average of
    g is subtracted from v in the root; the result estimates the variance, and is kept from going below zero by rounding
    (Graves 2013: "Generating sequences with recurrent neural networks").
    """

    elementwise = True

    def init(self, tensor: AnyTensor) -> State:
        c = self.config
        names = ["square", *["mean"] * c.centered, *["velocity"] * bool(c.momentum)]
        return {name: zeros_like(tensor) for name in names}

    def step(self, lr: float, tensor: AnyTensor, grad: AnyTensor, state: State) -> tuple[AnyTensor, State]:
        c = self.config
        grad = descent(c, tensor, grad)
        after = {"square": average(state["square"], grad.square(), c.alpha)}
        variance = after["square"]
        if c.centered:
            after["mean"] = average(state["mean"], grad, c.alpha)
            variance = (variance - after["mean"].square()).maximum(0.0)
        step = grad / (variance.sqrt() + c.epsilon)
        if c.momentum:
            step = after["velocity"] = state["velocity"] * c.momentum + step
        return tensor - step * lr, after
