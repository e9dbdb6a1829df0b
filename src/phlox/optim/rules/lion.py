"""Lion: steps of equal size along the signs of the momentum."""

from __future__ import annotations

from typing import Any

from phlox.optim.config import SimpleConfig
from phlox.optim.rules.update_terms import average, decayed
from phlox.optim.simple import SimpleOptimizer
from phlox.optim.state.tree import State
from phlox.tensor import Tensor, zeros_like


class LionConfig(SimpleConfig):
    """Hyper-parameters of `Lion`; weight decay is decoupled. Defaults are the authors'.

    The paper advises a learning rate 3 to 10 times smaller than AdamW's, and a decay larger by the same factor.

    >>> LionConfig(weight_decay=0.01).init()
    OptimizerAdaptor(Lion, 0 states)
    """

    beta_1: float = 0.9
    beta_2: float = 0.99
    weight_decay: float = 0.0
    maximize: bool = False

    def simple(self) -> SimpleOptimizer:
        return Lion(self)


class Lion(SimpleOptimizer):
    """x = x - lr (sign(b1 m + (1 - b1) g) + decay x);  m = b2 m + (1 - b2) g.

    Chen et al. 2023: "Symbolic discovery of optimization algorithms".
    """

    shares_counts = True  # it has none
    elementwise = True

    def __init__(self, config: LionConfig) -> None:
        self.config = config

    def init(self, tensor: Tensor[Any, Any, Any]) -> State:
        return {"moment": zeros_like(tensor)}

    def step(
        self, lr: float, tensor: Tensor[Any, Any, Any], grad: Tensor[Any, Any, Any], state: State
    ) -> tuple[Tensor[Any, Any, Any], State]:
        c, m = self.config, state["moment"]
        grad = -grad if c.maximize else grad
        direction = average(m, grad, c.beta_1).sign()
        return decayed(tensor, lr, c.weight_decay) - direction * lr, {"moment": average(m, grad, c.beta_2)}
