"""Adan: Nesterov's momentum from the differences of gradients."""

from __future__ import annotations

from phlox.optim.config import SimpleConfig
from phlox.optim.rules.update_terms import average
from phlox.optim.simple import AnyTensor, Rule, SimpleOptimizer
from phlox.optim.state.tree import State
from phlox.optim.step.shared_scalars import chosen, counted


class AdanConfig(SimpleConfig):
    """Hyper-parameters of `Adan`; weight decay is decoupled, and acts after the step. Defaults are the authors'.

    A beta is the part of the moving average that is kept, as in the authors' program. The paper's beta is 1 minus that.

    >>> AdanConfig(weight_decay=0.01).init()
    OptimizerAdaptor(Adan, 0 states)
    """

    beta_1: float = 0.98
    beta_2: float = 0.92
    beta_3: float = 0.99
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    maximize: bool = False

    def simple(self) -> SimpleOptimizer:
        return Adan(self)


class Adan(Rule[AdanConfig]):
    """x = (x - lr (m / (1 - b1^t) + b2 d / (1 - b2^t)) / (sqrt(n / (1 - b3^t)) + eps)) / (1 + lr decay).

    Here m, d and n are moving averages, with b1, b2 and b3, of g, of e = g - g_{t-1} (zero at first), and of
    (g + b2 e)^2. Xie et al. 2022: "Adan: adaptive Nesterov momentum algorithm for faster optimizing deep models".
    """

    moments = ("moment", "difference", "square", "gradient")
    elementwise = True

    def step(self, lr: float, tensor: AnyTensor, grad: AnyTensor, state: State) -> tuple[AnyTensor, State]:
        c = self.config
        grad = -grad if c.maximize else grad
        time, *corrections = counted(state["time"], tensor.backend, c.beta_1, c.beta_2, c.beta_3)
        change = (grad - state["gradient"]) * chosen(time > 1, 1.0, 0.0, tensor.backend)
        m = average(state["moment"], grad, c.beta_1)
        d = average(state["difference"], change, c.beta_2)
        n = average(state["square"], (grad + change * c.beta_2).square(), c.beta_3)
        scale = (n * (1.0 / corrections[2])).sqrt() + c.epsilon
        step = (m * (lr / corrections[0]) + d * (lr * c.beta_2 / corrections[1])) / scale
        tensor = tensor - step
        if c.weight_decay:
            tensor = tensor * (1.0 / (1.0 + lr * c.weight_decay))
        return tensor, {"moment": m, "difference": d, "square": n, "gradient": grad, "time": time}
