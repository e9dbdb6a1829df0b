"""Derivatives of collectives: the backward pass is a collective too, which all processes run in the same order.

The loss is that of all processes together. An array that a process adds to a sum is part of the result on every
process, so its gradient is the sum of all gradients; for a mean, it is their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phlox.autodiff.tape import Tracked
from phlox.autodiff.taping import tape, tape_several
from phlox.backend.contract import Backend, Decorator
from phlox.backend.contract.collectives import Presence, Reduction
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.backend.processes import processes


class TapeOps(Decorator):
    """The base of `Autodiff`, for what is written in its operations; and its collectives."""

    box: type[Tracked]
    """The class of its tracked values."""

    def all_reduce(self, arrays: Sequence[Array], op: Reduction, presence: Presence | None = None) -> list[Array]:
        if processes().size == 1:
            return list(arrays)
        tracked = [number for number, x in enumerate(arrays) if type(x) is self.box]
        if not tracked:
            return self.inner.all_reduce(arrays, op, presence)

        def run(*values: Array) -> tuple[tuple[Array, ...], Any]:
            return tuple(self.inner.all_reduce(values, op, presence)), None

        def differentiate(
            backend: Backend, saved: Any, gs: tuple[Array | None, ...], needed: Needed
        ) -> tuple[Array | None, ...]:
            reached = [number for number, g in enumerate(gs) if g is not None]
            found = dict(zip(reached, backend.all_reduce([gs[number] for number in reached], op), strict=True))
            return tuple([found.get(number) for number in range(len(gs))])

        if presence is not None or len(tracked) == len(arrays):
            return list(tape_several(self.inner, self.box, tuple(arrays), run, differentiate))
        results = list(arrays)  # those without a history stay so, and may be of another kind
        others = [number for number in range(len(arrays)) if type(arrays[number]) is not self.box]
        for numbers, found in (
            (tracked, tape_several(self.inner, self.box, tuple([arrays[n] for n in tracked]), run, differentiate)),
            (others, self.inner.all_reduce([arrays[n] for n in others], op)),
        ):
            for number, result in zip(numbers, found, strict=True):
                results[number] = result
        return results

    def all_gather(self, x: Array) -> Array:
        if type(x) is not self.box:
            return self.inner.all_gather(x)

        def run(value: Array) -> tuple[Array, None]:
            return self.inner.all_gather(value), None

        def differentiate(backend: Backend, saved: Any, g: Array, needed: Needed) -> Gradients:
            (total,) = backend.all_reduce([g], "sum")
            whole = [slice(0, size, 1) for size in backend.shape(total)[1:]]
            return (backend.index(total, (processes().rank, *whole)),)

        return tape(self.inner, self.box, (x,), run, differentiate)

    def broadcast(self, x: Array, root: int) -> Array:
        if type(x) is not self.box:
            return self.inner.broadcast(x, root)

        def run(value: Array) -> tuple[Array, None]:
            return self.inner.broadcast(value, root), None

        def differentiate(backend: Backend, saved: Any, g: Array, needed: Needed) -> Gradients:
            (total,) = backend.all_reduce([g], "sum")
            if processes().rank == root:
                return (total,)
            return (backend.float_full(backend.shape(total), 0.0, backend.device_of(total)),)

        return tape(self.inner, self.box, (x,), run, differentiate)
