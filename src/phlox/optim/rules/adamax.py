"""AdaMax: Adam with the infinity norm."""

from __future__ import annotations

from phlox.optim.config import SimpleConfig
from phlox.optim.rules.update_terms import average, descent
from phlox.optim.simple import AnyTensor, Rule, SimpleOptimizer
from phlox.optim.state.tree import State
from phlox.optim.step.shared_scalars import counted


class AdaMaxConfig(SimpleConfig):
    """Hyper-parameters of `AdaMax`: `weight_decay` is added to the gradient. Defaults are PyTorch's.

    >>> AdaMaxConfig(weight_decay=0.01).init()
    OptimizerAdaptor(AdaMax, 0 states)
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    maximize: bool = False

    def simple(self) -> SimpleOptimizer:
        return AdaMax(self)


class AdaMax(Rule[AdaMaxConfig]):
    """m = b1 m + (1 - b1) g;  u = max(b2 u, |g| + eps);  x = x - lr m / ((1 - b1^t) u).

    Kingma, Ba 2015: "Adam: a method for stochastic optimization", section 7.1.
    """

    moments = ("moment", "infinity_norm")
    elementwise = True

    def step(self, lr: float, tensor: AnyTensor, grad: AnyTensor, state: State) -> tuple[AnyTensor, State]:
        c = self.config
        time, correction = counted(state["time"], tensor.backend, c.beta_1)
        grad = descent(c, tensor, grad)
        m = average(state["moment"], grad, c.beta_1)
        u = (state["infinity_norm"] * c.beta_2).maximum(grad.abs() + c.epsilon)
        return tensor - m / u * (lr / correction), {"moment": m, "infinity_norm": u, "time": time}
