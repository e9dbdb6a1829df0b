"""Loops over the steps of a sequence, forward and backward, for any cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from phlox.backend.contract.nn.linear import DenseOps
from phlox.backend.contract.tracing import TracingOps
from phlox.backend.contract.types import Array

States: TypeAlias = tuple[Array, ...]
Step: TypeAlias = Callable[[Array, States], tuple[States, States]]
"""From `(z, states)`, z being the input part of all gates, to the new states and the values for the derivative."""
StepBack: TypeAlias = Callable[[States, States], tuple[States, States]]
"""From (gradients of the states after, saved) to the gradients of the gates' inputs and of the states before."""


class RecurrenceOps(DenseOps, TracingOps):
    """Loops over steps; the inputs of all steps are multiplied with their weights in one product, before the loop.

    The backward loop computes the gradients of the gates' inputs; after it, each weight's gradient is one product.
    """

    def _through_time(
        self,
        step: Step,
        x: Array,
        weight: Array,
        bias: Array | None,
        start: States,
        alive: Array | None,
        reverse: bool,
    ) -> tuple[Array, States, States, States]:
        """The forward loop: its results, the last states, the states before every step, and the steps' saved values."""
        count = len(start)

        def body(states: States, inputs: States) -> tuple[Sequence[Array], Sequence[Array]]:
            after, saved = step(inputs[0], states)
            if alive is None:
                return after, (*after, *saved)
            held = [self.where(inputs[1], new, old) for new, old in zip(after, states, strict=True)]
            return held, (*held, *saved, self.where(inputs[1], after[0], 0.0))

        z = self.linear(x, weight, bias)
        along = (z,) if alive is None else (z, alive)
        last, columns = self._steps(body, start, along, self.shape(x)[0], reverse=reverse)
        y = columns[0] if alive is None else columns[-1]
        before = tuple([self._delayed(state, columns[index], reverse) for index, state in enumerate(start)])
        return y, last, before, columns[count:] if alive is None else columns[count:-1]

    def _back_through_time(
        self,
        back: StepBack,
        gs: tuple[Array | None, ...],
        saved: States,
        like: Array,
        alive: Array | None,
        reverse: bool,
    ) -> tuple[States, States]:
        """The backward loop: the gradients of the gates' inputs, and of the first states."""
        length, *sizes = self.shape(like)
        device = self.device_of(like)
        g, *last = gs
        start = [self.float_full(tuple(sizes), 0.0, device) if state is None else state for state in last]
        extra = tuple([x for x in (g, alive) if x is not None])

        def body(dstates: States, inputs: States) -> tuple[Sequence[Array], Sequence[Array]]:
            after, saved_step = list(dstates), inputs[len(extra) :]
            if g is not None:
                after[0] = self.float_add(after[0], inputs[0])
            if alive is None:
                dgates, before = back(tuple(after), saved_step)
                return before, dgates
            is_alive = inputs[len(extra) - 1]
            dgates, before = back(tuple([self.where(is_alive, d, 0.0) for d in after]), saved_step)
            return [self.where(is_alive, new, old) for new, old in zip(before, dstates, strict=True)], dgates

        first, dgates = self._steps(body, start, (*extra, *saved), length, reverse=not reverse)
        return dgates, first

    def _steps(
        self,
        body: Callable[[States, States], tuple[Sequence[Array], Sequence[Array]]],
        start: Sequence[Array],
        xs: Sequence[Array],
        length: int,
        *,
        reverse: bool,
    ) -> tuple[States, States]:
        """The loop itself; an engine may override it."""
        return self.scan(body, start, xs, length, reverse=reverse)

    def _parts_of_gates(self, z: Array, count: int) -> list[Array]:
        """[batch, count * width] as `count` arrays [batch, width]."""
        rows, columns = self.shape(z)
        width = columns // count
        return [
            self.index(z, (slice(0, rows, 1), slice(start, start + width, 1))) for start in range(0, columns, width)
        ]

    def _delayed(self, start: Array, states: Array, reverse: bool) -> Array:
        """The states before every step, [time, batch, width], from those after every step."""
        length, *sizes = self.shape(states)
        others = slice(1, length, 1) if reverse else slice(0, length - 1, 1)
        later = self.index(states, (others, *[slice(0, size, 1) for size in sizes]))
        first = self.reshape(start, (1, *sizes))
        return self.concat((later, first) if reverse else (first, later), 0)

    def _product_of_steps(self, x: Array, y: Array) -> Array:
        """x' y, summed over all steps: [time, batch, n] and [time, batch, m] give [n, m]."""
        length, batch, n = self.shape(x)
        rows = length * batch
        m = self.shape(y)[2]
        return self.float_matmul(self.permute_dims(self.reshape(x, (rows, n)), (1, 0)), self.reshape(y, (rows, m)))
