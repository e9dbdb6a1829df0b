"""What every family of derived operations stands on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phlox.backend.contract.required import BoolOps, FloatOps, IntOps, ShapeOps
from phlox.backend.contract.types import Array, Kinds, Shape
from phlox.backend.device import Device


class CoreOps(ShapeOps, FloatOps, IntOps, BoolOps):
    """Operations in terms of others, so that they work, and have derivatives, on every backend."""

    def shape(self, x: Array) -> Shape:
        """The shape of a native array."""
        return tuple(x.shape)

    def device_of(self, x: Array) -> Device:
        """Where a native array lives."""
        raise NotImplementedError

    def detach(self, x: Array) -> Array:
        """The same values, seen as a constant by every tape."""
        return x

    def barrier(self, x: Array, after: Array) -> Array:
        """x, as a value that a compiler can compute only once it has `after`; for those who do not compile, x."""
        return x

    def rounded(self, x: Array) -> Array:
        """x, as its element type holds it, for what follows: a compiler rounds no product and sum together."""
        return x

    def cast(self, x: Array, target: Any, device: Device) -> Array:
        """The values as an array of another backend, in its element type, on one of its devices."""
        raise NotImplementedError

    def on_host(self, kinds: Kinds, fn: Callable[..., Any], *arrays: Array) -> Any:
        """What a NumPy function makes of the values: the definition of an operation that no others make up.

        `kinds` says of which kind the result is, or each one of several. Raises `UnsupportedError` under a trace.
        """
        raise NotImplementedError
