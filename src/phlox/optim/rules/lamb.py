"""LAMB: Adam with steps in proportion to the weights, for large batches."""

from __future__ import annotations

from phlox.optim.config import SimpleConfig
from phlox.optim.rules.update_terms import average, norm
from phlox.optim.simple import AnyTensor, Rule, SimpleOptimizer
from phlox.optim.state.tree import State
from phlox.optim.step.shared_scalars import counted
from phlox.tensor import where


class LambConfig(SimpleConfig):
    """Hyper-parameters of `Lamb`. Defaults are the paper's, except `weight_decay`, which is 0.01 there.

    >>> LambConfig(weight_decay=0.01).init()
    OptimizerAdaptor(Lamb, 0 states)
    """

    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.0
    maximize: bool = False

    def simple(self) -> SimpleOptimizer:
        return Lamb(self)


class Lamb(Rule[LambConfig]):
    """r = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps) + decay x;  x = x - lr |x| / |r| r, with m and v as in Adam.

    |x| and |r| are norms of the whole tensor. If one of them is zero, the ratio |x| / |r| is 1. You et al. 2020: "Large
    batch optimization for deep learning: training BERT in 76 minutes".
    """

    moments = ("moment_1", "moment_2")

    def step(self, lr: float, tensor: AnyTensor, grad: AnyTensor, state: State) -> tuple[AnyTensor, State]:
        c = self.config
        grad = -grad if c.maximize else grad
        time, correction_1, correction_2 = counted(state["time"], tensor.backend, c.beta_1, c.beta_2)
        m = average(state["moment_1"], grad, c.beta_1)
        v = average(state["moment_2"], grad.square(), c.beta_2)
        step = m * (1.0 / correction_1) / ((v * (1.0 / correction_2)).sqrt() + c.epsilon)
        if c.weight_decay:
            step = step + tensor * c.weight_decay
        size, length = norm(tensor), norm(step)
        moves = length > 0.0
        ratio = where((size > 0.0) & moves, size / where(moves, length, 1.0), 1.0)
        return tensor - step * ratio * lr, {"moment_1": m, "moment_2": v, "time": time}
