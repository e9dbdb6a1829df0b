"""`NumPy`: the contract on NumPy arrays, on the processor."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, cast

import numpy as np

from phlox.backend.contract import EngineBackend
from phlox.backend.contract.indexing import Mode, scatter
from phlox.backend.contract.linalg import NEARLY
from phlox.backend.contract.tiles import ROWS
from phlox.backend.contract.types import Array, Axes, Binary, Index, Shape, Unary, native
from phlox.backend.contract.widening import COMPUTING, widen
from phlox.backend.device import Device
from phlox.backend.kind import Kind, kind_of_dtype
from phlox.backend.numpy.attention import Attention
from phlox.backend.numpy.conv import Conv
from phlox.backend.numpy.elementwise import Elementwise
from phlox.backend.numpy.erf import erf
from phlox.backend.numpy.experts import Experts
from phlox.backend.numpy.linear import Dense
from phlox.backend.numpy.loss import Loss
from phlox.backend.numpy.norm import Norm
from phlox.backend.numpy.packed import Packed
from phlox.backend.numpy.pooling import Pooling
from phlox.backend.numpy.reduction import Reduction
from phlox.backend.numpy.sorting import Sorting
from phlox.backend.numpy.sums import running, total
from phlox.backend.numpy.update import Update
from phlox.backend.parallel import RowGroup, part_of
from phlox.backend.threefry import generator
from phlox.errors import DeviceError, RangeError
from phlox.host.dtypes import HALF_ELEMENTS, HOST_DTYPES


def quiet(ufunc: Callable[..., Any]) -> Any:
    """A function that returns infinities and NaNs without a warning, as on every engine."""
    return staticmethod(np.errstate(all="ignore")(ufunc))


_SINGLE = np.dtype(np.float32)


def _recast(source: np.dtype[Any], target: np.dtype[Any], x: Any) -> Any:
    """An array of the float type `source` as one of `target`; any other value unchanged."""
    if getattr(x, "dtype", None) != source:
        return x
    with np.errstate(over="ignore"):
        return np.asarray(x, target)


def _reduction(ufunc: np.ufunc, dtype: str | None = None) -> Any:
    """A reduction over several axes; `dtype` names the attribute of the backend with the type of the result."""

    def reduce(self: NumPy, x: Array, axes: Axes, keepdims: bool) -> Array:
        return ufunc.reduce(x, axis=axes, keepdims=keepdims, dtype=None if dtype is None else getattr(self, dtype))

    return reduce


def _arg_reduction(find: Callable[..., Any]) -> Any:
    def reduce(self: NumPy, x: Array, axis: int) -> Array:
        return find(x, axis=axis).astype(self.host_int_dtype)

    return reduce


def _matmul(x: Array, y: Array) -> Array:
    """`np.matmul`, except that a stack times a single matrix is one product of all rows."""
    if y.ndim == 2 and x.ndim > 2 and x.size and x.flags.c_contiguous:
        return x.reshape(-1, x.shape[-1]).dot(y).reshape(*x.shape[:-1], y.shape[1])
    return np.matmul(x, y)


def _complex(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Pairs as complex numbers, in the same memory if it is contiguous."""
    return np.ascontiguousarray(x).view(np.result_type(x.dtype, np.complex64))[..., 0]


def _pairs(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(x)[..., None].view(x.real.dtype)


@lru_cache(maxsize=64)
def _dtype_of(backend: NumPy, kind: type[Kind]) -> np.dtype[Any]:
    return backend.host_dtype(kind)


class NumPy(
    Elementwise, Reduction, Sorting, Dense, Packed, Experts, Norm, Loss, Attention, Conv, Pooling,
    Update, EngineBackend,
):  # fmt: skip
    """The backend of NumPy, the reference engine, which needs only NumPy; f32 by default, or f64, bf16, f16.

    At half precision it stores arrays in 16 bits, but computes in f32 and rounds every result once: NumPy's own
    half-precision arithmetic would stop counting ones at 256, and mix dtypes.

    Args:
        float: the dtype of floats: "f32", "f64", "bf16" or "f16".
        int: the dtype of integers: "i32" or "i64".

    >>> import phlox as px
    >>> px.ones((2,), device=NumPy()).sum().item()
    2.0
    """

    name = "numpy"

    def setup(self) -> None:
        if self.float_element in HALF_ELEMENTS:
            narrow = self.host_float_dtype
            wide = type(self)(int=self.int_element)
            widen(self, wide, COMPUTING, partial(_recast, narrow, _SINGLE), partial(_recast, _SINGLE, narrow))

    # --- arrays and devices

    def device(self, name: str | None = None) -> Device:
        if name not in (None, "cpu", "cpu:0"):
            raise DeviceError(f"{self!r} has no device {name!r}; it has only 'cpu'")
        return Device(self, "cpu")

    def device_of(self, x: Array) -> Device:
        return Device(self, "cpu")

    def owns(self, x: object) -> bool:
        return isinstance(x, np.ndarray)

    def to_device(self, x: Array, device: Device) -> Array:
        return x

    def from_host(self, array: np.ndarray[Any, Any], kind: type[Kind], device: Device) -> Array:
        return array if array.dtype == _dtype_of(self, kind) else self.fit(array, kind)

    def from_dlpack(self, x: Any, device: Device) -> Array:
        return cast(Any, x) if isinstance(x, np.ndarray) else np.from_dlpack(x)

    def to_host(self, x: Array) -> np.ndarray[Any, Any]:
        return np.asarray(x)

    def to_dlpack(self, x: Array, **options: Any) -> Any:
        x = np.asarray(x)
        if x.dtype.kind == "V" and x.dtype == HOST_DTYPES["bf16"]:
            raise BufferError(
                "NumPy cannot hand bfloat16 to DLPack; take .numpy(), or move it to Torch or Jax with .to_device"
            )
        # Other libraries do not accept negative strides, nor all of them zeros; and older ones no read-only memory.
        old = (options.get("max_version") or (0, 0)) < (1, 0)
        if options.get("copy") is None and (min(x.strides, default=1) <= 0 or (old and not x.flags.writeable)):
            x = x.copy()
        return x.__dlpack__(**options)

    def dlpack_device(self, x: Array) -> tuple[int, int]:
        return np.asarray(x).__dlpack_device__()

    def kind_of(self, x: Array) -> type[Kind]:
        return kind_of_dtype(x.dtype)

    # --- shape

    shape = native(attrgetter("shape"))

    # Methods of the array take a third of the time of NumPy's functions of these names.

    @staticmethod
    def reshape(x: Array, shape: Shape) -> Array:
        return x.reshape(shape)

    @staticmethod
    def permute_dims(x: Array, axes: Axes) -> Array:
        return x.transpose(axes)

    broadcast_to = staticmethod(np.broadcast_to)
    flip = staticmethod(np.flip)

    @staticmethod
    def concat(arrays: Any, axis: int) -> Array:
        return np.concatenate(arrays, axis)

    @staticmethod
    def pad(x: Array, widths: tuple[tuple[int, int], ...], value: float) -> Array:
        shape = tuple(before + size + after for size, (before, after) in zip(x.shape, widths, strict=True))
        padded = np.full(shape, value, x.dtype)
        padded[tuple(slice(before, before + size) for size, (before, _) in zip(x.shape, widths, strict=True))] = x
        return padded

    @staticmethod
    def index(x: Array, index: Index) -> Array:
        return x[index]

    def take(self, x: Array, indices: Array, axis: int) -> Array:
        self.check_indices(indices, x.shape[axis], from_end=True)
        return np.take(x, indices, axis)

    def take_along_axis(self, x: Array, indices: Array, axis: int) -> Array:
        self.check_indices(indices, x.shape[axis], from_end=True)
        return np.take_along_axis(x, indices, axis)

    def where(self, condition: Array, if_true: Any, if_false: Any) -> Array:
        # Two Python scalars do not determine the dtype of the result, and bfloat16 does not promote with floats.
        if isinstance(if_true, float) or (isinstance(if_true, int) and isinstance(if_false, (int, float))):
            if_true = np.asarray(if_true, self.host_float_dtype)
        if isinstance(if_false, float):
            if_false = np.asarray(if_false, self.host_float_dtype)
        return np.where(condition, if_true, if_false)

    repeat = native(np.repeat)
    tile = native(np.tile)

    def windows(self, x: Array, axis: int, size: int, step: int) -> Array:
        views = np.lib.stride_tricks.sliding_window_view(x, size, axis)
        return views[(*(slice(None),) * axis, slice(None, None, step))]

    def index_set(self, x: Array, values: Array, index: Index) -> Array:
        out = np.array(x)
        out[index] = values
        return out

    def float_index_adjoint(self, g: Array, shape: Shape, index: Index) -> Array:
        out = np.zeros(shape, g.dtype)
        out[index] = g
        return out

    def float_scatter(self, x: Array, positions: Array, updates: Array, mode: Mode) -> Array:
        return scatter(x, positions, updates, mode)

    int_scatter = float_scatter

    # --- matrices and signals

    def _signs(self, v: Array) -> Array:
        size = np.abs(v)
        near = size >= size.max(-2, keepdims=True) * NEARLY
        first = near.argmax(-2, keepdims=True)
        return np.where(np.take_along_axis(v, first, -2) < 0, -1.0, 1.0).astype(v.dtype)

    def rfft(self, x: Array) -> Array:
        return _pairs(np.fft.rfft(x))

    def irfft(self, x: Array, n: int) -> Array:
        return np.fft.irfft(_complex(x), n, norm="forward")

    def fft(self, x: Array, inverse: bool) -> Array:
        return _pairs(np.fft.ifft(_complex(x), norm="forward") if inverse else np.fft.fft(_complex(x)))

    def frame(self, x: Array, length: int, hop: int) -> Array:
        return np.lib.stride_tricks.sliding_window_view(x, length, -1)[..., ::hop, :]

    # --- float

    def float_full(self, shape: Shape, value: float, device: Device) -> Array:
        return np.full(shape, value, self.host_float_dtype)

    # These three are not quiet: on small arrays that takes twice as long as they do. NumPy warns if they overflow.
    float_add: Binary = staticmethod(np.add)
    float_sub: Binary = staticmethod(np.subtract)
    float_mul: Binary = staticmethod(np.multiply)
    float_div: Binary = quiet(np.divide)
    float_pow: Binary = quiet(np.power)
    float_maximum: Binary = staticmethod(np.maximum)
    float_minimum: Binary = staticmethod(np.minimum)
    float_neg: Unary = staticmethod(np.negative)
    float_abs: Unary = staticmethod(np.abs)
    float_sign: Unary = staticmethod(np.sign)
    float_floor: Unary = staticmethod(np.floor)
    float_ceil: Unary = staticmethod(np.ceil)
    float_round: Unary = staticmethod(np.rint)
    float_exp: Unary = quiet(np.exp)
    float_expm1: Unary = quiet(np.expm1)
    float_log: Unary = quiet(np.log)
    float_log1p: Unary = quiet(np.log1p)
    float_sqrt: Unary = quiet(np.sqrt)
    float_sin: Unary = quiet(np.sin)
    float_cos: Unary = quiet(np.cos)
    float_tanh: Unary = staticmethod(np.tanh)
    float_erf: Unary = staticmethod(erf)
    float_square = native(np.square)

    float_equal: Binary = staticmethod(np.equal)
    float_less: Binary = staticmethod(np.less)
    float_less_equal: Binary = staticmethod(np.less_equal)

    float_sum = staticmethod(total)
    float_prod = _reduction(np.multiply)
    float_max = _reduction(np.maximum)
    float_min = _reduction(np.minimum)
    float_argmax = _arg_reduction(np.argmax)
    float_argmin = _arg_reduction(np.argmin)
    float_cumsum = staticmethod(running)
    float_matmul: Binary = staticmethod(_matmul)
    tile_product = native(np.dot)
    stacked_products = native(np.matmul)

    def tile_products(self, x: Array, y: Array) -> Array:
        # For a stack, `np.matmul` calls BLAS for each of its matrices.
        return np.matmul(x.reshape(-1, ROWS, x.shape[1]), y).reshape(len(x), y.shape[1])

    def float_into_int(self, x: Array) -> Array:
        info = np.iinfo(self.host_int_dtype)
        truncated = np.trunc(np.asarray(x, np.float64))
        outside = ~((truncated >= info.min) & (truncated <= info.max))
        if outside.any():
            raise RangeError(f"{np.asarray(x)[outside].flat[0]} does not fit {self!r}'s integers ({info.dtype.name})")
        return truncated.astype(info.dtype)

    @staticmethod
    def float_into_bool(x: Array) -> Array:
        return np.not_equal(x, 0)

    # --- int

    def int_full(self, shape: Shape, value: int, device: Device) -> Array:
        return np.full(shape, value, self.host_int_dtype)

    def int_arange(self, start: int, stop: int, step: int, device: Device) -> Array:
        return self.fit(np.arange(start, stop, step, dtype=np.int64), kind_of_dtype(np.int64))

    int_add: Binary = quiet(np.add)
    int_sub: Binary = quiet(np.subtract)
    int_mul: Binary = quiet(np.multiply)

    @staticmethod
    @np.errstate(all="ignore")
    def int_floordiv(lhs: Array, rhs: Any) -> Array:
        if not np.all(rhs):
            raise ZeroDivisionError("integer division by zero")
        return np.floor_divide(lhs, rhs)

    @staticmethod
    @np.errstate(all="ignore")
    def int_mod(lhs: Array, rhs: Any) -> Array:
        if not np.all(rhs):
            raise ZeroDivisionError("integer modulo by zero")
        return np.remainder(lhs, rhs)

    @staticmethod
    @np.errstate(all="ignore")
    def int_pow(lhs: Array, rhs: Any) -> Array:
        if np.any(np.less(rhs, 0)):
            raise RangeError("an integer to a negative power is no integer; convert with .float() first")
        return np.power(lhs, rhs)

    int_maximum: Binary = staticmethod(np.maximum)
    int_minimum: Binary = staticmethod(np.minimum)
    int_neg: Unary = staticmethod(np.negative)
    int_abs: Unary = staticmethod(np.abs)
    int_sign: Unary = staticmethod(np.sign)
    int_equal: Binary = staticmethod(np.equal)
    int_less: Binary = staticmethod(np.less)
    int_less_equal: Binary = staticmethod(np.less_equal)
    int_sum = _reduction(np.add, "host_int_dtype")
    int_prod = _reduction(np.multiply, "host_int_dtype")
    int_max = _reduction(np.maximum)
    int_min = _reduction(np.minimum)
    int_argmax = _arg_reduction(np.argmax)
    int_argmin = _arg_reduction(np.argmin)

    def int_cumsum(self, x: Array, axis: int) -> Array:
        return np.cumsum(x, axis, dtype=self.host_int_dtype)

    def int_into_float(self, x: Array) -> Array:
        return x.astype(self.host_float_dtype)

    @staticmethod
    def int_into_bool(x: Array) -> Array:
        return np.not_equal(x, 0)

    # --- bool

    @staticmethod
    def bool_full(shape: Shape, value: bool, device: Device) -> Array:
        return np.full(shape, value, np.bool_)

    bool_and: Binary = staticmethod(np.logical_and)
    bool_or: Binary = staticmethod(np.logical_or)
    bool_xor: Binary = staticmethod(np.logical_xor)
    bool_not: Unary = staticmethod(np.logical_not)
    bool_any = _reduction(np.logical_or)
    bool_all = _reduction(np.logical_and)

    def bool_tri(self, rows: int, columns: int, k: int, device: Device) -> Array:
        return np.tri(rows, columns, k, np.bool_)

    def bool_into_int(self, x: Array) -> Array:
        return x.astype(self.host_int_dtype)

    def bool_into_float(self, x: Array) -> Array:
        return x.astype(self.host_float_dtype)

    # --- random

    def random_uniform(self, state: Array, shape: Shape, device: Device, rows: RowGroup | None = None) -> Array:
        return generator.random_uniform(state, shape, self.host_float_dtype, part_of(rows, shape))

    def random_normal(self, state: Array, shape: Shape, device: Device, rows: RowGroup | None = None) -> Array:
        return generator.random_normal(state, shape, self.host_float_dtype, part_of(rows, shape))

    def random_bernoulli(
        self, state: Array, shape: Shape, threshold: int, device: Device, rows: RowGroup | None = None
    ) -> Array:
        return generator.random_bernoulli(state, shape, threshold, part_of(rows, shape))

    def random_integers(
        self, state: Array, shape: Shape, low: int, high: int, device: Device, rows: RowGroup | None = None
    ) -> Array:
        drawn = generator.random_integers(state, shape, low, high, part_of(rows, shape))
        return drawn.astype(self.host_int_dtype, copy=False)

    def random_permutation(self, state: Array, n: int, device: Device) -> Array:
        return generator.random_permutation(state, n).astype(self.host_int_dtype, copy=False)
