"""Derivatives of collectives: the backward pass is a collective too, which all processes run in the same order.

The loss is the sum of the losses of all processes. An array that one process contributes to a sum is part of the result
on every process, so its gradient is the sum of the gradients of all processes; for a mean, it is their mean.
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
    """The base class of `Autodiff`, for functions that use its operations; it has the collectives."""

    box: type[Tracked]
    """The class of its tracked values."""

    def all_reduce(self, arrays: Sequence[Array], op: Reduction, presence: Presence | None = None) -> list[Array]:
        if processes().size == 1:
            return list(arrays)
        tracked = [index for index, x in enumerate(arrays) if type(x) is self.box]
        if not tracked:
            return self.inner.all_reduce(arrays, op, presence)

        def run(*values: Array) -> tuple[tuple[Array, ...], Any]:
            return tuple(self.inner.all_reduce(values, op, presence)), None

        def differentiate(
            backend: Backend, saved: Any, gs: tuple[Array | None, ...], needed: Needed
        ) -> tuple[Array | None, ...]:
            indices = [index for index, g in enumerate(gs) if g is not None]
            sums = dict(zip(indices, backend.all_reduce([gs[index] for index in indices], op), strict=True))
            return tuple([sums.get(index) for index in range(len(gs))])

        if presence is not None or len(tracked) == len(arrays):
            return list(tape_several(self.inner, self.box, tuple(arrays), run, differentiate))
        results = list(arrays)  # arrays without a history stay without one, and may have another kind
        others = [index for index in range(len(arrays)) if type(arrays[index]) is not self.box]
        for indices, reduced in (
            (tracked, tape_several(self.inner, self.box, tuple([arrays[n] for n in tracked]), run, differentiate)),
            (others, self.inner.all_reduce([arrays[n] for n in others], op)),
        ):
            for index, result in zip(indices, reduced, strict=True):
                results[index] = result
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
