"""What a backend says of its arrays: where they live, of which elements, and how they come from and go to the host."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from phlox.backend.contract.required import BoolOps, FloatOps, IntOps, RandomOps, ShapeOps
from phlox.backend.contract.types import Array, Kinds, Shape
from phlox.backend.device import Device
from phlox.backend.kind import Float, Kind
from phlox.errors import RangeError, UnsupportedError
from phlox.host.dtypes import HOST_DTYPES, INT_RANGES, LARGEST, FloatElement, IntElement


class ArrayOps(ShapeOps, FloatOps, IntOps, BoolOps, RandomOps):
    """What every family of derived operations stands on: the required operations, and arrays themselves."""

    float_element: FloatElement
    int_element: IntElement

    # --- devices

    def device(self, name: str | None = None) -> Device:
        """The default device, or the one called `name`: `"cpu"`, `"gpu"`, `"gpu:1"`. Raises `DeviceError` if absent."""
        raise NotImplementedError

    def to_device(self, x: Array, device: Device) -> Array:
        """The array on another device of this backend."""
        raise NotImplementedError

    def device_of(self, x: Array) -> Device:
        """Where a native array lives."""
        raise NotImplementedError

    def replicate_like(self, x: Array, like: Array) -> Array:
        """x on all the devices that `like` is on, where an engine's arrays may be spread over several.

        In shards as `like` is if it has its shape; whole on each of them, otherwise.
        """
        return x

    def other_device_names(self, device: Device) -> str:
        """How the devices after the first one are called, of those over which an array is spread."""
        return ""

    def prefers_fused_matmul(self) -> bool:
        """Does one product with matrices side by side cost less here than a product with each of them?

        So it is where each is gathered from several devices: one exchange then does for all.
        """
        return False

    # --- arrays

    def shape(self, x: Array) -> Shape:
        """The shape of a native array."""
        return tuple(x.shape)

    def kind_of(self, x: Array) -> type[Kind]:
        """The kind that a native array belongs to."""
        raise NotImplementedError

    def strip(self, x: Array) -> Array:
        """The array of the innermost backend behind decorators."""
        return x

    def is_traced(self, x: Array) -> bool:
        """Is this array a tracer in a program that is being traced?"""
        return False

    def duplicate(self, x: Array) -> Array:
        """The same values in memory of their own."""
        return self.from_host(self.to_host(x).copy(), self.kind_of(x), self.device_of(x))

    def detach(self, x: Array) -> Array:
        """The same values, seen as a constant by every tape."""
        return x

    # --- to and from the host

    def from_host(self, array: np.ndarray[Any, Any], kind: type[Kind], device: Device) -> Array:
        """A native array from one in host memory, in this backend's element type.

        Floats round; a finite float that would become infinite, or an integer that does not fit, is `RangeError`.
        """
        raise NotImplementedError

    def to_host(self, x: Array) -> np.ndarray[Any, Any]:
        """The values as a NumPy array; waits for an asynchronous engine. May share memory: do not write to it."""
        raise NotImplementedError

    def await_array(self, x: Array) -> None:
        """Wait until an asynchronous engine has made the array, for whoever must not have too many under way."""

    def on_host(self, kinds: Kinds, fn: Callable[..., Any], *arrays: Array) -> Any:
        """What a NumPy function makes of the values: the definition of an operation that no others make up.

        `kinds` says of which kind the result is, or each one of several. Raises `UnsupportedError` under a trace.
        """
        if any(self.is_traced(x) for x in arrays):
            raise UnsupportedError(f"{self!r} cannot do this while a program is being traced, only eagerly")
        device = self.device_of(arrays[0])
        found = fn(*(self.to_host(x) for x in arrays))
        if not isinstance(kinds, tuple):
            return self._computed(found, kinds, device)
        return tuple(self._computed(x, kind, device) for x, kind in zip(found, kinds, strict=True))

    def _computed(self, found: Any, kind: type[Kind], device: Device) -> Array:
        """A result found on the host; rounded as results are, so that what is too large becomes an infinity."""
        host = np.asarray(found)
        if kind.name == "float":
            with np.errstate(over="ignore"):
                host = host.astype(self.host_float_dtype, copy=False)
        return self.from_host(host, kind, device)

    # --- to and from other libraries

    def from_dlpack(self, x: Any, device: Device) -> Array:
        """An array, of whatever element type, in the memory of another library's where it can be there.

        `x` has the methods `__dlpack__` and `__dlpack_device__` of the Array API standard. What cannot be taken is any
        exception.
        """
        raise UnsupportedError(f"{self!r} takes no arrays of other libraries through DLPack")

    def to_dlpack(self, x: Array, **options: Any) -> Any:
        """The array as a DLPack capsule; see `__dlpack__` of the Array API standard."""
        return self.strip(x).__dlpack__(**options)

    def dlpack_device(self, x: Array) -> tuple[int, int]:
        """The device of an array as DLPack numbers it."""
        return self.strip(x).__dlpack_device__()

    # --- element types

    @property
    def host_float_dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of this backend's floats."""
        return HOST_DTYPES[self.float_element]

    @property
    def host_int_dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of this backend's integers."""
        return HOST_DTYPES[self.int_element]

    def host_dtype(self, kind: type[Kind]) -> np.dtype[Any]:
        """The NumPy dtype of this backend's elements of a kind."""
        name = kind.name
        return HOST_DTYPES[self.float_element if name == "float" else self.int_element if name == "int" else "bool"]

    def element(self, kind: type[Kind]) -> Any:
        """The engine's own type of the elements of a kind."""
        return self.host_dtype(kind)

    def owns_floats(self, x: object) -> bool:
        """Is this an array of floats in this backend's own element type?"""
        return getattr(x, "dtype", None) == self.element(Float)

    def fit(self, array: np.ndarray[Any, Any], kind: type[Kind]) -> np.ndarray[Any, Any]:
        """A host array in this backend's element type; `RangeError` for values which that cannot hold."""
        raise NotImplementedError

    def check_scalar(self, value: float, kind: type[Kind]) -> None:
        """`RangeError` for a Python number that this backend's elements cannot hold; floats are rounded."""
        if kind.name == "int":
            low, high = INT_RANGES[self.int_element]
            if not low <= value <= high:
                raise RangeError(
                    f"{value} does not fit {self!r}'s integers ({self.host_int_dtype}); use a backend of wider ones"
                )
        elif kind.name == "float" and (isinstance(value, int) or math.isfinite(value)):
            largest = LARGEST[self.float_element]
            if not -largest <= value <= largest:
                raise RangeError(
                    f"{value} does not fit {self!r}'s floats ({self.host_float_dtype}); use a backend of wider ones"
                )
