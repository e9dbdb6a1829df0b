"""Updates of optimizers that are worth a loop of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    time: Real = 0
    """The number of this step, for kernels that find the corrections themselves."""


Moved: TypeAlias = tuple[Array, Array, Array]
"""A tensor and its two moments after an update."""


class UpdateOps(SamplingOps):
    """Each gives the new values of all its arrays, and leaves the old ones alone."""

    def adam_update(self, x: Array, g: Array, m: Array, v: Array, numbers: AdamNumbers) -> tuple[Array, Array, Array]:
        """One step of Adam or AdamW: x, and the first and second moment of its gradient g."""
        lr, beta_1, beta_2, epsilon, decay, decoupled, correction_1, correction_2, _ = numbers
        if decay:
            if decoupled:
                x = self.float_mul(x, 1.0 - lr * decay)
            else:
                g = self.float_add(g, self.float_mul(x, decay))
        m = self.float_add(self.float_mul(m, beta_1), self.float_mul(g, 1.0 - beta_1))
        v = self.float_add(self.float_mul(v, beta_2), self.float_mul(self.float_square(g), 1.0 - beta_2))
        scale = self.float_add(self.float_sqrt(self.float_mul(v, 1.0 / correction_2)), epsilon)
        return self.float_sub(x, self.float_mul(self.float_div(m, scale), lr / correction_1)), m, v


class ManyUpdates:
    """Updates of many tensors at once, for engines that are faster so: no operations, for they may write to arrays."""

    def adam_updates(
        self,
        xs: Sequence[Array],
        gs: Sequence[Array],
        ms: Sequence[Array],
        vs: Sequence[Array],
        numbers: Sequence[AdamNumbers],
        own: Sequence[bool],
    ) -> tuple[list[Moved], Callable[[], object]]:
        """`adam_update` of several: the arrays that will hold what they come to, and the function that sees to it.

        Where `own` is true, nobody else has the moments, and their memory may be that of the new ones: it is changed
        when the function is called, and not before. What can fail, has not failed by then. No array is a placeholder.
        """
        one_by_one: Any = self
        every = zip(xs, gs, ms, vs, numbers, strict=True)
        return [one_by_one.adam_update(*one) for one in every], lambda: None
