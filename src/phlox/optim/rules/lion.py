"""Lion: steps of equal size along the signs of the momentum."""

from __future__ import annotations

from typing import ClassVar

from phlox.optim.config import SimpleConfig
from phlox.optim.rules.small_states import with_bits
from phlox.optim.rules.update_terms import average, decayed
from phlox.optim.simple import AnyTensor, Rule, SimpleOptimizer
from phlox.optim.state.blocks import StateBits
from phlox.optim.state.tree import State


class LionConfig(SimpleConfig):
    """Hyper-parameters of `Lion`; weight decay is decoupled. Defaults are the authors'. `state_bits` is as for Adam.

    The paper advises a learning rate 3 to 10 times smaller than AdamW's, and a decay larger by the same factor.

    >>> LionConfig(weight_decay=0.01).init()
    OptimizerAdaptor(Lion, 0 states)
    """

    beta_1: float = 0.9
    beta_2: float = 0.99
    weight_decay: float = 0.0
    maximize: bool = False
    state_bits: StateBits = 32

    def simple(self) -> SimpleOptimizer:
        return with_bits(Lion(self), self.state_bits)


class Lion(Rule[LionConfig]):
    """x = x - lr (sign(b1 m + (1 - b1) g) + decay x);  m = b2 m + (1 - b2) g.

    Chen et al. 2023: "Symbolic discovery of optimization algorithms".
    """

    moments = ("moment",)
    scalars: ClassVar = {}  # it does not count its steps
    elementwise = True

    def step(self, lr: float, tensor: AnyTensor, grad: AnyTensor, state: State) -> tuple[AnyTensor, State]:
        c, m = self.config, state["moment"]
        grad = -grad if c.maximize else grad
        direction = average(m, grad, c.beta_1).sign()
        return decayed(tensor, lr, c.weight_decay) - direction * lr, {"moment": average(m, grad, c.beta_2)}
