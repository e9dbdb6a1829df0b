"""Updates of optimizers that are worth a loop of their own."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from phlox.backend.contract.nn.sampling import SamplingOps
from phlox.backend.contract.types import Array

Real: TypeAlias = Any
"""A Python number, or an engine's stand-in for one inside a program."""


class AdamNumbers(NamedTuple):
    """What Adam's update depends on beside tensors; `correction_n` is 1 - beta_n ** time."""

    lr: Real
    beta_1: float
    beta_2: float
    epsilon: float
    weight_decay: float
    decoupled: bool
    correction_1: Real
    correction_2: Real


class UpdateOps(SamplingOps):
    """Each gives the new values of all its arrays, and leaves the old ones alone."""

    def adam_update(self, x: Array, g: Array, m: Array, v: Array, numbers: AdamNumbers) -> tuple[Array, Array, Array]:
        """One step of Adam or AdamW: x, and the first and second moment of its gradient g."""
        lr, beta_1, beta_2, epsilon, decay, decoupled, correction_1, correction_2 = numbers
        if decay:
            if decoupled:
                x = self.float_mul(x, 1.0 - lr * decay)
            else:
                g = self.float_add(g, self.float_mul(x, decay))
        m = self.float_add(self.float_mul(m, beta_1), self.float_mul(g, 1.0 - beta_1))
        v = self.float_add(self.float_mul(v, beta_2), self.float_mul(self.float_square(g), 1.0 - beta_2))
        scale = self.float_add(self.float_sqrt(self.float_mul(v, 1.0 / correction_2)), epsilon)
        return self.float_sub(x, self.float_mul(self.float_div(m, scale), lr / correction_1)), m, v
