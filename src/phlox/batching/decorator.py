"""`Batched(B)`: the backend B where an operation on one example runs once for the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients, Kinds, Needed, Shape
from phlox.backend.contract.widening import DEFINED_IN_STEPS, converters, widen
from phlox.backend.device import Device
from phlox.backend.reproducible import when_installed
from phlox.batching.build import build
from phlox.batching.loop import Body, each, scan
from phlox.batching.mapped import MappedOps, box_of
from phlox.batching.rules import FORWARDED, RULES
from phlox.errors import AutodiffError, BackendError, UnsupportedError
from phlox.host.dtypes import FloatElement


class Batched(MappedOps):
    """The backend `inner` with a batch: an array looks like one example, and operations apply to all examples.

    `phlox.vmap` uses it; engines do not need to know about it. An array that all examples share stays the inner
    backend's own, so constants cost nothing and are computed once. An operation has a rule for the whole batch, or is
    composed of operations that have one. Functions of other libraries are called for one example after the other. The
    decorator composes with itself and with the tape: on `Batched(Autodiff(B))` the tape sees the whole batch, on
    `Autodiff(Batched(B))` every example has its own gradient.
    """

    _instances: ClassVar[dict[Backend, Batched]] = {}

    def __new__(cls, inner: Backend) -> Batched:
        if inner in cls._instances:
            return cls._instances[inner]
        self = super().__new__(cls)
        self.inner = inner
        self.name = f"batched({inner.name})"
        self.float_element = inner.float_element
        self.int_element = inner.int_element
        self.compiles = inner.compiles
        # With a tape below the batch, training mode is also on inside the batch.
        self.differentiates = inner.differentiates
        self.batched = inner.batched + 1
        self.box = box = box_of(self.batched)
        shape = inner.shape
        self.shape = lambda x: shape(x.value)[1:] if type(x) is box else shape(x)
        self._bind()
        self = cls._instances.setdefault(inner, self)
        when_installed(self._bind)
        return self

    def _bind(self) -> None:
        """Build the operations from the inner backend's."""
        for name, rule in RULES.items():
            try:
                setattr(self, name, build(self, name, rule))
            except BackendError:
                continue  # An operation that the inner backend lacks is missing here too.
        for name in FORWARDED:
            try:
                setattr(self, name, getattr(self.inner, name))
            except BackendError:
                continue
        wide, grow, shrink = converters(self)
        if wide is not self:
            widen(self, wide, DEFINED_IN_STEPS - RULES.keys() - {*FORWARDED}, grow, shrink)

    def __reduce__(self) -> tuple[Any, ...]:
        return Batched, (self.inner,)

    def __repr__(self) -> str:
        return f"Batched({self.inner!r})"

    def _box_like(self, x: Array, value: Array) -> Array:
        return self.boxed(value) if type(x) is self.box else value

    # --- tapes below

    def without_tape(self) -> Backend | None:
        lower = self.inner.without_tape()
        return None if lower is None else Batched(lower)

    def value(self, x: Array) -> Array:
        return self._box_like(x, self.inner.value(self.below(x)))

    def make_leaf(self, x: Array) -> Array:
        return self._box_like(x, self.inner.make_leaf(self.below(x)))

    def node_of(self, x: Array) -> Any:
        return self.inner.node_of(self.below(x))

    def copy_leaf(self, x: Array) -> Array:
        return self._box_like(x, self.inner.copy_leaf(self.below(x)))

    def is_leaf(self, x: Array) -> bool:
        return self.inner.is_leaf(self.below(x))

    def poisoned(self, x: Array, why: str) -> Array:
        return self._box_like(x, self.inner.poisoned(self.below(x), why))

    def backward(self, x: Array, cotangent: Array | None, retain: bool) -> dict[int, Array]:
        raise AutodiffError(
            "backward() inside phlox.vmap would need a tape above the batch; use phlox.grad(fn) or "
            "phlox.value_and_grad(fn) there, or call backward() on the result of vmap"
        )

    def strip(self, x: Array) -> Array:
        """The array without its history; a batched one stays batched."""
        return self._box_like(x, self.inner.strip(self.below(x)))

    def with_float(self, element: FloatElement) -> Backend:
        return Batched(self.inner.with_float(element))

    # --- values

    def batch_of(self, x: Array) -> Shape:
        if type(x) is not self.box:
            return self.inner.batch_of(x)
        return (*self.inner.batch_of(x.value), self.inner.shape(x.value)[0])

    def _check_shared(self, x: Array) -> Array:
        """x, if all examples share it; otherwise `UnsupportedError`, because it has no single value."""
        if type(x) is self.box:
            raise self._escape(x)
        return x

    def _escape(self, x: Array) -> UnsupportedError:
        sizes = self.inner.shape(x.value)
        return UnsupportedError(
            f"a tensor of shape {sizes[1:]} inside phlox.vmap stands for {sizes[0]} examples and has no single value; "
            "compute with the tensor itself (phlox.where for a choice), or read the values that vmap returns"
        )

    def to_host(self, x: Array) -> np.ndarray[Any, Any]:
        return self.inner.to_host(self._check_shared(x))

    def to_dlpack(self, x: Array, **options: Any) -> Any:
        return self.inner.to_dlpack(self._check_shared(x), **options)

    def dlpack_device(self, x: Array) -> tuple[int, int]:
        return self.inner.dlpack_device(self._check_shared(x))

    def duplicate(self, x: Array) -> Array:
        return self._box_like(x, self.inner.duplicate(self.below(x)))

    def as_numbers(self, x: Array) -> Array:
        return self._box_like(x, self.inner.as_numbers(self.below(x)))

    def is_traced(self, x: Array) -> bool:
        """Does x lack a single value? A tracer has no value, and a batched array has many."""
        return type(x) is self.box or self.inner.is_traced(x)

    # --- devices

    def to_device(self, x: Array, device: Device) -> Array:
        return self._box_like(x, self.inner.to_device(self.below(x), device.on(self.inner)))

    def cast(self, x: Array, target: Backend, device: Device) -> Array:
        if type(x) is not self.box:
            below = target.inner if isinstance(target, Batched) and target.batched == self.batched else target
            assert below is not None
            if below is self.inner:
                return self.inner.to_device(x, device.on(below))
            return self.inner.cast(x, below, device.on(below))
        above = target
        while not (isinstance(above, Batched) and above.batched == self.batched):
            if above.inner is None:
                raise UnsupportedError(
                    f"a tensor inside phlox.vmap cannot leave the batch for {target!r}; move the arguments, or "
                    "the result of vmap"
                )
            above = above.inner
        below, goal = above.inner, device.on(above.inner)
        moved = self.inner.to_device(x.value, goal) if below is self.inner else self.inner.cast(x.value, below, goal)
        return self.boxed(moved)

    def barrier(self, x: Array, after: Array) -> Array:
        return self._box_like(x, self.inner.barrier(self.below(x), self.below(after)))

    def rounded(self, x: Array) -> Array:
        return self._box_like(x, self.inner.rounded(self.below(x)))

    # --- one example after the other

    def on_host(self, kinds: Kinds, fn: Callable[..., Any], *arrays: Array) -> Any:
        return each(self, lambda *example: self.inner.on_host(kinds, fn, *example), arrays)

    def call_native(self, fn: Callable[..., Any], *arrays: Array) -> Any:
        return each(self, lambda *example: self.inner.call_native(fn, *example), arrays)

    def native_vjp(
        self, fn: Callable[..., Any], arrays: Sequence[Array], gs: Sequence[Any], needed: Needed
    ) -> Gradients:
        return self.inner.native_vjp(fn, arrays, gs, needed)

    # --- loops

    def scan(
        self, body: Body, carry: Sequence[Array], xs: Sequence[Array], length: int, *, reverse: bool = False
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        if not self.traces_loops():
            return super().scan(body, carry, xs, length, reverse=reverse)
        return scan(self, body, carry, xs, length, reverse)
