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
"""From `(gradients of the states after, saved)` to those of the gates' inputs, and those of the states before."""


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
        """The forward loop: its results, the last states, those before every step, and what the steps have saved."""
        count = len(start)

        def body(states: States, one: States) -> tuple[Sequence[Array], Sequence[Array]]:
            after, saved = step(one[0], states)
            if alive is None:
                return after, (*after, *saved)
            kept = [self.where(one[1], new, old) for new, old in zip(after, states, strict=True)]
            return kept, (*kept, *saved, self.where(one[1], after[0], 0.0))

        z = self.linear(x, weight, bias)
        along = (z,) if alive is None else (z, alive)
        last, found = self._steps(body, start, along, self.shape(x)[0], reverse=reverse)
        y = found[0] if alive is None else found[-1]
        before = tuple([self._delayed(one, found[place], reverse) for place, one in enumerate(start)])
        return y, last, before, found[count:] if alive is None else found[count:-1]

    def _back_through_time(
        self,
        back: StepBack,
        gs: tuple[Array | None, ...],
        saved: States,
        like: Array,
        alive: Array | None,
        reverse: bool,
    ) -> tuple[States, States]:
        """The backward loop: the gradients of the gates' inputs, and those of the first states."""
        length, *sizes = self.shape(like)
        device = self.device_of(like)
        g, *last = gs
        start = [self.float_full(tuple(sizes), 0.0, device) if one is None else one for one in last]
        extra = tuple([x for x in (g, alive) if x is not None])

        def body(towards: States, one: States) -> tuple[Sequence[Array], Sequence[Array]]:
            after, kept = list(towards), one[len(extra) :]
            if g is not None:
                after[0] = self.float_add(after[0], one[0])
            if alive is None:
                given, before = back(tuple(after), kept)
                return before, given
            there = one[len(extra) - 1]
            given, before = back(tuple([self.where(there, d, 0.0) for d in after]), kept)
            return [self.where(there, new, old) for new, old in zip(before, towards, strict=True)], given

        first, given = self._steps(body, start, (*extra, *saved), length, reverse=not reverse)
        return given, first

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
        """[batch, count * width] as so many [batch, width]."""
        rows, columns = self.shape(z)
        width = columns // count
        return [
            self.index(z, (slice(0, rows, 1), slice(start, start + width, 1))) for start in range(0, columns, width)
        ]

    def _delayed(self, start: Array, states: Array, reverse: bool) -> Array:
        """[time, batch, width]: the state before every step, of those after them."""
        length, *sizes = self.shape(states)
        kept = slice(1, length, 1) if reverse else slice(0, length - 1, 1)
        rest = self.index(states, (kept, *[slice(0, size, 1) for size in sizes]))
        first = self.reshape(start, (1, *sizes))
        return self.concat((rest, first) if reverse else (first, rest), 0)

    def _product_of_steps(self, x: Array, y: Array) -> Array:
        """x' y of all steps: [time, batch, n] and [time, batch, m] give [n, m]."""
        length, batch, n = self.shape(x)
        rows = length * batch
        m = self.shape(y)[2]
        return self.float_matmul(self.permute_dims(self.reshape(x, (rows, n)), (1, 0)), self.reshape(y, (rows, m)))
