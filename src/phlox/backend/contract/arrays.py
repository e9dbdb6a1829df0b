"""The arrays of a backend: their devices and element types, and moving them to and from the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from phlox.backend.contract.required import BoolOps, FloatOps, IntOps, RandomOps, ShapeOps
from phlox.backend.contract.types import Array, Kinds, Shape
from phlox.backend.device import Device
from phlox.backend.kind import Float, Kind
from phlox.errors import RangeError, UnsupportedError
from phlox.host.dtypes import HOST_DTYPES, INT_RANGES, LARGEST, FloatElement, IntElement


class ArrayOps(ShapeOps, FloatOps, IntOps, BoolOps, RandomOps):
    """The base of every family of operations: the required operations, and methods about arrays and devices."""

    float_element: FloatElement
    int_element: IntElement
    is_jax: bool = False
    """Are its arrays JAX's, so that a tensor of them is an array to `jax.numpy`?"""

    # --- devices

    def device(self, name: str | None = None) -> Device:
        """The default device, or the one called `name`: `"cpu"`, `"gpu"`, `"gpu:1"`. Raises `DeviceError` if absent."""
        raise NotImplementedError

    def to_device(self, x: Array, device: Device) -> Array:
        """The array on another device of this backend."""
        raise NotImplementedError

    def device_of(self, x: Array) -> Device:
        """The device of a native array."""
        raise NotImplementedError

    def replicate_like(self, x: Array, like: Array) -> Array:
        """x on all the devices of `like`, if an engine's arrays may be sharded.

        It is sharded as `like` if x has the same shape, and replicated otherwise.
        """
        return x

    def other_device_names(self, device: Device) -> str:
        """The names of an array's other devices, as text to append to the name of its first device."""
        return ""

    def memory_used(self, device: Device) -> int | None:
        """The bytes that arrays take on a device with memory of its own; None if the engine does not report them."""
        return None

    def peak_memory_used(self, device: Device) -> int | None:
        """The peak of `memory_used` so far."""
        return None

    def prefers_fused_matmul(self, joined: Sequence[Array]) -> bool:
        """Is one product with matrices joined along their columns faster than a product with each of them?

        It is if each matrix is gathered from several devices: joined, they need only one exchange. `joined` are the
        matrices, and the biases that are joined in the same way.
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
        """The array of the innermost backend, without the boxes of decorators."""
        return x

    def is_traced(self, x: Array) -> bool:
        """Is this array a tracer?"""
        return False

    def duplicate(self, x: Array) -> Array:
        """A copy."""
        return self.from_host(self.to_host(x).copy(), self.kind_of(x), self.device_of(x))

    def detach(self, x: Array) -> Array:
        """The same values as a constant, without gradients on any tape."""
        return x

    # --- to and from the host

    def from_host(self, array: np.ndarray[Any, Any], kind: type[Kind], device: Device) -> Array:
        """A native array from one in host memory, in this backend's element type.

        Floats are rounded. Raises `RangeError` for a finite float that would become infinite, and for an integer that
        does not fit.
        """
        raise NotImplementedError

    def host_argument(self, array: np.ndarray[Any, Any], kind: type[Kind], device: Device) -> Any:
        """A host array as an argument of a compiled function: with this backend's dtype, in memory of its own.

        The caller may then write to its own array. Raises `RangeError` as `from_host` does.
        """
        native = self.from_host(array, kind, device)
        return array.copy() if native is array else native

    def to_host(self, x: Array) -> np.ndarray[Any, Any]:
        """The values as a NumPy array, once they are computed. It may share memory: do not write to it."""
        raise NotImplementedError

    def await_array(self, x: Array) -> None:
        """Block until the array is computed, if the engine dispatches asynchronously."""

    def on_host(self, kinds: Kinds, fn: Callable[..., Any], *arrays: Array) -> Any:
        """Apply the NumPy function `fn` to the values on the host, to define operations that no others can express.

        `kinds` is the kind of the result, or a tuple for several results. Raises `UnsupportedError` for tracers.
        """
        if any(self.is_traced(x) for x in arrays):
            raise UnsupportedError(f"{self!r} cannot do this while a function is being traced, only eagerly")
        device = self.device_of(arrays[0])
        results = fn(*(self.to_host(x) for x in arrays))
        if not isinstance(kinds, tuple):
            return self._from_result(results, kinds, device)
        return tuple(self._from_result(x, kind, device) for x, kind in zip(results, kinds, strict=True))

    def _from_result(self, values: Any, kind: type[Kind], device: Device) -> Array:
        """A result computed on the host as a native array; rounding makes a number that is too large an infinity."""
        host = np.asarray(values)
        if kind.name == "float":
            with np.errstate(over="ignore"):
                host = host.astype(self.host_float_dtype, copy=False)
        return self.from_host(host, kind, device)

    # --- to and from other libraries

    def owns(self, x: object) -> bool:
        """Is this an array of the engine, or one of its tracers, of any element type?"""
        return False

    def accept(self, x: Array) -> Array:
        """An array that the engine owns, in this backend's element type, where it is."""
        kind, backend = self.kind_of(x), cast("Any", self)
        return x if x.dtype == self.element(kind) else backend.cast(x, self, self.device_of(x))

    def from_dlpack(self, x: Any, device: Device) -> Array:
        """Another library's array, with its element type; without a copy if possible.

        `x` has the methods `__dlpack__` and `__dlpack_device__` of the Array API standard. It may raise any
        exception for an array that it does not accept.
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
        """The engine's own dtype for the elements of a kind."""
        return self.host_dtype(kind)

    def owns_floats(self, x: object) -> bool:
        """Is this an array of floats of this backend's element type?"""
        return getattr(x, "dtype", None) == self.element(Float)

    def fit(self, array: np.ndarray[Any, Any], kind: type[Kind]) -> np.ndarray[Any, Any]:
        """A host array cast to this backend's element type; `RangeError` for values that do not fit."""
        raise NotImplementedError

    def check_scalar(self, value: float, kind: type[Kind]) -> None:
        """`RangeError` for a Python scalar that does not fit this backend's element type; floats are rounded."""
        if kind.name == "int":
            low, high = INT_RANGES[self.int_element]
            if not low <= value <= high:
                raise RangeError(
                    f"{value} does not fit {self!r}'s integers ({self.host_int_dtype}); use a backend of wider ones"
                )
        elif kind.name == "float" and (isinstance(value, int) or math.isfinite(value)):
            largest = LARGEST[self.float_element]
            # As a Python float: NumPy would round the limit to the precision of a scalar of its own.
            if not -largest <= (value if isinstance(value, int) else float(value)) <= largest:
                raise RangeError(
                    f"{value} does not fit {self!r}'s floats ({self.host_float_dtype}); use a backend of wider ones"
                )
