"""A backend as a stranger would write it, against the public interface alone, on arrays that can do nothing themselves.

A `Box` has no shape, no operators and no length, so whatever touches an array other than by an operation of the backend
fails here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from phlox.backend import Bool, Device, EngineBackend, Float, Int, Kind, NumPy
from phlox.errors import DeviceError, RangeError


class Box:
    """Numbers that nobody but `Stranger` looks at."""

    __slots__ = ("_held",)

    def __init__(self, held: Any) -> None:
        self._held = np.asarray(held)

    def __bool__(self) -> bool:
        raise TypeError("a Box is neither true nor false")

    __eq__ = None  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


def bare(x: Any) -> Any:
    """What is in the box; a number as it is."""
    return x._held if isinstance(x, Box) else x


def elementwise(fn: Callable[..., Any], keep: str = "") -> Any:
    """An operation that NumPy has as a function of as many arrays; the result of the kind `keep`, or as it comes."""

    def operation(self: Stranger, *operands: Any) -> Box:
        with np.errstate(all="ignore"):
            found = fn(*map(bare, operands))
        return Box(found.astype(self.host_dtype(_KINDS[keep]), copy=False) if keep else found)

    return operation


def reduction(fn: Callable[..., Any], kind: str) -> Any:
    """A reduction over axes."""

    def operation(self: Stranger, x: Box, axes: tuple[int, ...], keepdims: bool) -> Box:
        with np.errstate(all="ignore"):
            return Box(np.asarray(fn(bare(x), axis=axes, keepdims=keepdims), self.host_dtype(_KINDS[kind])))

    return operation


def search(fn: Callable[..., Any]) -> Any:
    """The place of an extreme element along an axis."""
    return lambda self, x, axis: Box(np.asarray(fn(bare(x), axis=axis), self.host_int_dtype))


_KINDS: dict[str, type[Kind]] = {"float": Float, "int": Int, "bool": Bool}


class Stranger(EngineBackend):
    """What the contract requires, and nothing else."""

    name = "stranger"
    floats = ("f32", "f64")

    # --- arrays and devices

    def device(self, name: str | None = None) -> Device:
        if name not in (None, "attic"):
            raise DeviceError(f"{self!r} has no device {name!r}; it has only 'attic'")
        return Device(self, "attic")

    def device_of(self, x: Box) -> Device:
        return Device(self, "attic")

    def to_device(self, x: Box, device: Device) -> Box:
        return x

    def from_host(self, array: np.ndarray[Any, Any], kind: type[Kind], device: Device) -> Box:
        return Box(self.fit(array, kind).copy())

    def to_host(self, x: Box) -> np.ndarray[Any, Any]:
        return bare(x)

    def kind_of(self, x: Box) -> type[Kind]:
        return {"f": Float, "i": Int, "b": Bool}[bare(x).dtype.kind]

    def shape(self, x: Box) -> tuple[int, ...]:
        return bare(x).shape

    # --- moving elements about

    def reshape(self, x: Box, shape: tuple[int, ...]) -> Box:
        return Box(bare(x).reshape(shape))

    def permute_dims(self, x: Box, axes: tuple[int, ...]) -> Box:
        return Box(bare(x).transpose(axes))

    def broadcast_to(self, x: Box, shape: tuple[int, ...]) -> Box:
        return Box(np.broadcast_to(bare(x), shape))

    def flip(self, x: Box, axes: tuple[int, ...]) -> Box:
        return Box(np.flip(bare(x), axes))

    def concat(self, arrays: Sequence[Box], axis: int) -> Box:
        return Box(np.concatenate([bare(x) for x in arrays], axis))

    def pad(self, x: Box, widths: tuple[tuple[int, int], ...], value: float) -> Box:
        return Box(np.pad(bare(x), widths, constant_values=value) if widths else bare(x))

    def index(self, x: Box, index: tuple[int | slice, ...]) -> Box:
        return Box(bare(x)[index])

    def take(self, x: Box, indices: Box, axis: int) -> Box:
        self.check_indices(indices, self.shape(x)[axis], from_end=True)
        return Box(np.take(bare(x), bare(indices), axis))

    def take_along_axis(self, x: Box, indices: Box, axis: int) -> Box:
        self.check_indices(indices, self.shape(x)[axis], from_end=True)
        return Box(np.take_along_axis(bare(x), bare(indices), axis))

    def where(self, condition: Box, if_true: Any, if_false: Any) -> Box:
        boxed = isinstance(if_true, Box) or isinstance(if_false, Box)
        found = np.where(bare(condition), bare(if_true), bare(if_false))
        return Box(found if boxed else found.astype(self.host_float_dtype))

    # --- Float

    def float_full(self, shape: tuple[int, ...], value: float, device: Device) -> Box:
        return Box(np.full(shape, value, self.host_float_dtype))

    float_add = elementwise(np.add)
    float_sub = elementwise(np.subtract)
    float_mul = elementwise(np.multiply)
    float_div = elementwise(np.divide)
    float_pow = elementwise(np.power)
    float_maximum = elementwise(np.maximum)
    float_minimum = elementwise(np.minimum)
    float_neg = elementwise(np.negative)
    float_abs = elementwise(np.abs)
    float_sign = elementwise(np.sign)
    float_floor = elementwise(np.floor)
    float_ceil = elementwise(np.ceil)
    float_round = elementwise(np.rint)
    float_exp = elementwise(np.exp)
    float_expm1 = elementwise(np.expm1)
    float_log = elementwise(np.log)
    float_log1p = elementwise(np.log1p)
    float_sqrt = elementwise(np.sqrt)
    float_sin = elementwise(np.sin)
    float_cos = elementwise(np.cos)
    float_tanh = elementwise(np.tanh)

    def float_erf(self, x: Box) -> Box:
        reference = NumPy(float=self.float_element)
        return Box(reference.float_erf(bare(x)))

    float_equal = elementwise(np.equal)
    float_less = elementwise(np.less)
    float_less_equal = elementwise(np.less_equal)
    float_sum = reduction(np.sum, "float")
    float_prod = reduction(np.prod, "float")
    float_max = reduction(np.max, "float")
    float_min = reduction(np.min, "float")
    float_argmax = search(np.argmax)
    float_argmin = search(np.argmin)

    def float_cumsum(self, x: Box, axis: int) -> Box:
        return Box(np.cumsum(bare(x), axis))

    float_matmul = elementwise(np.matmul)

    def float_into_int(self, x: Box) -> Box:
        whole = np.trunc(bare(x).astype(np.float64))
        bounds = np.iinfo(self.host_int_dtype)
        bad = ~((whole >= bounds.min) & (whole <= bounds.max))
        if bad.any():
            raise RangeError(f"{bare(x)[bad].flat[0]} does not fit {self!r}'s integers")
        return Box(whole.astype(self.host_int_dtype))

    float_into_bool = elementwise(lambda x: x != 0)

    # --- Int

    def int_full(self, shape: tuple[int, ...], value: int, device: Device) -> Box:
        return Box(np.full(shape, value, self.host_int_dtype))

    def int_arange(self, start: int, stop: int, step: int, device: Device) -> Box:
        return self.from_host(np.arange(start, stop, step, dtype=np.int64), Int, device)

    int_add = elementwise(np.add)
    int_sub = elementwise(np.subtract)
    int_mul = elementwise(np.multiply)

    def int_floordiv(self, lhs: Any, rhs: Any) -> Box:
        return Box(self._divided(np.floor_divide, lhs, rhs))

    def int_mod(self, lhs: Any, rhs: Any) -> Box:
        return Box(self._divided(np.remainder, lhs, rhs))

    def _divided(self, fn: Callable[..., Any], lhs: Any, rhs: Any) -> Any:
        if not np.all(bare(rhs)):
            raise ZeroDivisionError("integer division by zero")
        with np.errstate(all="ignore"):
            return fn(bare(lhs), bare(rhs))

    def int_pow(self, lhs: Any, rhs: Any) -> Box:
        if np.any(np.less(bare(rhs), 0)):
            raise RangeError("an integer to a negative power is no integer; convert with .float() first")
        with np.errstate(all="ignore"):
            return Box(np.power(bare(lhs), bare(rhs)))

    int_maximum = elementwise(np.maximum)
    int_minimum = elementwise(np.minimum)
    int_neg = elementwise(np.negative)
    int_abs = elementwise(np.abs)
    int_sign = elementwise(np.sign)
    int_equal = elementwise(np.equal)
    int_less = elementwise(np.less)
    int_less_equal = elementwise(np.less_equal)
    int_sum = reduction(np.add.reduce, "int")
    int_prod = reduction(np.multiply.reduce, "int")
    int_max = reduction(np.max, "int")
    int_min = reduction(np.min, "int")
    int_argmax = search(np.argmax)
    int_argmin = search(np.argmin)

    def int_cumsum(self, x: Box, axis: int) -> Box:
        return Box(np.cumsum(bare(x), axis, dtype=self.host_int_dtype))

    int_into_float = elementwise(np.asarray, "float")
    int_into_bool = elementwise(lambda x: x != 0)

    # --- Bool

    def bool_full(self, shape: tuple[int, ...], value: bool, device: Device) -> Box:
        return Box(np.full(shape, value, np.bool_))

    bool_and = elementwise(np.logical_and)
    bool_or = elementwise(np.logical_or)
    bool_xor = elementwise(np.logical_xor)
    bool_not = elementwise(np.logical_not)
    bool_any = reduction(np.any, "bool")
    bool_all = reduction(np.all, "bool")
    bool_into_int = elementwise(np.asarray, "int")
    bool_into_float = elementwise(np.asarray, "float")

    # --- random draws: the reference generator's, put in a box

    def random_uniform(self, state: Any, shape: tuple[int, ...], device: Device) -> Box:
        return self._drawn("random_uniform", state, shape)

    def random_normal(self, state: Any, shape: tuple[int, ...], device: Device) -> Box:
        return self._drawn("random_normal", state, shape)

    def random_bernoulli(self, state: Any, shape: tuple[int, ...], threshold: int, device: Device) -> Box:
        return self._drawn("random_bernoulli", state, shape, threshold)

    def random_integers(self, state: Any, shape: tuple[int, ...], low: int, high: int, device: Device) -> Box:
        return self._drawn("random_integers", state, shape, low, high)

    def random_permutation(self, state: Any, n: int, device: Device) -> Box:
        return self._drawn("random_permutation", state, n)

    def _drawn(self, name: str, *arguments: Any) -> Box:
        reference = NumPy(float=self.float_element, int=self.int_element)
        return Box(getattr(reference, name)(*arguments, reference.device()))
