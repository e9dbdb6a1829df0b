"""`Jax`: the contract on JAX arrays, on any device that XLA drives."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from phlox.backend.contract import EngineBackend
from phlox.backend.contract.types import Array, Binary, Shape, Unary, native
from phlox.backend.device import Device
from phlox.backend.element import FloatElement, IntElement
from phlox.backend.jax import ops, random
from phlox.backend.jax.composites import Composites
from phlox.backend.jax.ops import arg_reduction, reduction, simple
from phlox.backend.kind import Bool, Float, Int, Kind
from phlox.errors import DeviceError, RangeError

_ELEMENTS: dict[str, Any] = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16, "i32": jnp.int32}
_PROBE = np.zeros((), np.float32)
_NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def _no_zero(divisor: Any, operation: str) -> None:
    if not isinstance(divisor, Tracer) and not np.all(np.asarray(divisor)):
        raise ZeroDivisionError(f"integer {operation} by zero")


class Jax(Composites, EngineBackend):
    """JAX arrays: compiled by XLA, on a processor, a GPU or a TPU; f32 by default, or bf16, f16."""

    name = "jax"
    floats: ClassVar[tuple[FloatElement, ...]] = ("f32", "bf16", "f16")
    ints: ClassVar[tuple[IntElement, ...]] = ("i32",)

    def setup(self) -> None:
        self._float = _ELEMENTS[self.float_element]

    # --- arrays and devices

    def device(self, name: str | None = None) -> Device:
        if name is None:
            return Device(self, _device_name(jax.devices()[0]))
        platform, _, number = name.partition(":")
        try:
            devices = jax.devices(platform)
        except RuntimeError:
            devices = []
        if not (number or "0").isdigit() or int(number or "0") >= len(devices):
            have = ", ".join(_device_name(device) for device in jax.devices())
            raise DeviceError(f"{self!r} has no device {name!r} here (it has {have})")
        return Device(self, f"{platform}:{number or 0}" if len(devices) > 1 or platform != "cpu" else platform)

    @staticmethod
    def native_device(device: Device) -> Any:
        """JAX's own object for a device."""
        platform, _, number = device.name.partition(":")
        return jax.devices(platform)[int(number or "0")]

    def device_of(self, x: Array) -> Device:
        if isinstance(x, Tracer):
            return self.device()
        return Device(self, _device_name(next(iter(x.devices()))))

    def to_device(self, x: Array, device: Device) -> Array:
        return jax.device_put(x, self.native_device(device))

    def from_host(self, array: np.ndarray[Any, Any], kind: type[Kind], device: Device) -> Array:
        return self.place(jnp.asarray(self.fit(array, kind)), device)

    def place(self, x: Array, device: Device) -> Array:
        """On the device asked for; on the default one arrays stay uncommitted, as JAX makes them."""
        if isinstance(x, Tracer) or device.name == self.device().name:
            return x
        return self.to_device(x, device)

    def to_host(self, x: Array) -> np.ndarray[Any, Any]:
        return np.asarray(x)

    def kind_of(self, x: Array) -> type[Kind]:
        if x.dtype == jnp.bool_:
            return Bool
        return Int if jnp.issubdtype(x.dtype, jnp.integer) else Float

    def is_number(self, value: object) -> bool:
        return isinstance(value, (Tracer, jax.Array)) and value.ndim == 0

    def is_traced(self, x: Array) -> bool:
        return isinstance(x, Tracer)

    def bakes_constants(self) -> bool:
        # Under jit, scan and checkpoint, an operation on constants is recorded; under grad and vmap, it is done.
        return isinstance(lax.neg(_PROBE), Tracer)

    def is_gone(self, x: Array) -> bool:
        return not isinstance(x, Tracer) and x.is_deleted()

    def native_vjp(self, fn: Callable[..., Any], arrays: Sequence[Array], g: Any) -> tuple[Array, ...]:
        return jax.vjp(fn, *arrays)[1](g)

    def number_expm1(self, x: Any) -> Any:
        return jnp.expm1(x) if self.is_number(x) else math.expm1(x)

    def python_number(self, x: Any) -> Any:
        return x if isinstance(x, Tracer) else x.item()

    compiles = True

    def compile(self, fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return jax.jit(fn, donate_argnums=0)

    def record_only(self, fn: Callable[[Any, Any], Any], donated: Any, kept: Any) -> None:
        jax.eval_shape(fn, donated, kept)

    def is_record_error(self, error: Exception) -> bool:
        return isinstance(error, _NEEDS_VALUES)

    # --- shape

    shape = native(np.shape)
    reshape = staticmethod(ops.reshape)
    permute_dims = staticmethod(ops.permute_dims)
    broadcast_to = staticmethod(ops.broadcast_to)
    flip = staticmethod(ops.flip)
    concat = staticmethod(ops.concat)
    pad = staticmethod(ops.pad)
    index = staticmethod(ops.index)

    def take(self, x: Array, indices: Array, axis: int) -> Array:
        self.check_indices(indices, x.shape[axis], from_end=True)
        return ops.take(x, indices, axis)

    def take_along_axis(self, x: Array, indices: Array, axis: int) -> Array:
        self.check_indices(indices, x.shape[axis], from_end=True)
        return ops.take_along_axis(x, indices, axis)

    def where(self, condition: Array, if_true: Any, if_false: Any) -> Array:
        if isinstance(if_true, (int, float)) and isinstance(if_false, (int, float)):
            if_true = jnp.asarray(if_true, self._float)
        return _where(condition, if_true, if_false)

    # --- float

    def float_full(self, shape: Shape, value: float, device: Device) -> Array:
        return self.place(_full(shape, self._float, value), device)

    float_add: Binary = simple(jnp.add)
    float_sub: Binary = simple(jnp.subtract)
    float_mul: Binary = simple(jnp.multiply)
    float_div: Binary = simple(jnp.divide)
    float_pow: Binary = simple(jnp.power)
    float_maximum: Binary = simple(jnp.maximum)
    float_minimum: Binary = simple(jnp.minimum)
    float_neg: Unary = simple(lax.neg)
    float_abs: Unary = simple(lax.abs)
    float_sign: Unary = simple(lax.sign)
    float_floor: Unary = simple(lax.floor)
    float_ceil: Unary = simple(lax.ceil)
    float_round: Unary = simple(jnp.rint)
    float_exp: Unary = simple(lax.exp)
    float_expm1: Unary = simple(lax.expm1)
    float_log: Unary = simple(lax.log)
    float_log1p: Unary = simple(lax.log1p)
    float_sqrt: Unary = simple(lax.sqrt)
    float_rsqrt = simple(lax.rsqrt)
    float_sin: Unary = simple(lax.sin)
    float_cos: Unary = simple(lax.cos)
    float_tanh: Unary = simple(lax.tanh)
    float_erf: Unary = simple(lax.erf)

    float_equal: Binary = simple(jnp.equal)
    float_less: Binary = simple(jnp.less)
    float_less_equal: Binary = simple(jnp.less_equal)
    float_not_equal = simple(jnp.not_equal)
    float_isfinite = simple(lax.is_finite)

    float_sum = reduction(jnp.sum)
    float_prod = reduction(jnp.prod)
    float_max = reduction(jnp.max)
    float_min = reduction(jnp.min)
    float_argmax = arg_reduction(lax.argmax)
    float_argmin = arg_reduction(lax.argmin)
    float_cumsum = staticmethod(ops.cumsum)
    float_matmul: Binary = simple(jnp.matmul)

    def float_into_int(self, x: Array) -> Array:
        if not isinstance(x, Tracer):
            host = np.asarray(x, np.float64)
            outside = ~((np.trunc(host) >= -(2.0**31)) & (np.trunc(host) < 2.0**31))
            if outside.any():
                raise RangeError(f"{host[outside].flat[0]} does not fit {self!r}'s integers (int32)")
        return ops.cast(x, jnp.int32)

    @staticmethod
    def float_into_bool(x: Array) -> Array:
        return ops.cast(x, jnp.bool_)

    float_index_adjoint = staticmethod(ops.index_adjoint)
    float_take_adjoint = staticmethod(ops.take_adjoint)
    float_take_along_axis_adjoint = staticmethod(ops.take_along_axis_adjoint)

    # --- int

    def int_full(self, shape: Shape, value: int, device: Device) -> Array:
        return self.place(_full(shape, jnp.int32, value), device)

    def int_arange(self, start: int, stop: int, step: int, device: Device) -> Array:
        return self.from_host(np.arange(start, stop, step, dtype=np.int64), Int, device)

    int_add: Binary = simple(jnp.add)
    int_sub: Binary = simple(jnp.subtract)
    int_mul: Binary = simple(jnp.multiply)

    @staticmethod
    def int_floordiv(lhs: Array, rhs: Any) -> Array:
        _no_zero(rhs, "division")
        return jnp.floor_divide(lhs, rhs)

    @staticmethod
    def int_mod(lhs: Array, rhs: Any) -> Array:
        _no_zero(rhs, "modulo")
        return jnp.remainder(lhs, rhs)

    @staticmethod
    def int_pow(lhs: Array, rhs: Any) -> Array:
        if not isinstance(rhs, Tracer) and np.any(np.less(np.asarray(rhs), 0)):
            raise RangeError("an integer to a negative power is no integer; convert with .float() first")
        return jnp.power(lhs, rhs)

    int_maximum: Binary = simple(jnp.maximum)
    int_minimum: Binary = simple(jnp.minimum)
    int_neg: Unary = simple(lax.neg)
    int_abs: Unary = simple(lax.abs)
    int_sign: Unary = simple(lax.sign)
    int_equal: Binary = simple(jnp.equal)
    int_less: Binary = simple(jnp.less)
    int_less_equal: Binary = simple(jnp.less_equal)
    int_sum = reduction(jnp.sum, dtype=jnp.int32)
    int_prod = reduction(jnp.prod, dtype=jnp.int32)
    int_max = reduction(jnp.max)
    int_min = reduction(jnp.min)
    int_argmax = arg_reduction(lax.argmax)
    int_argmin = arg_reduction(lax.argmin)
    int_cumsum = staticmethod(ops.cumsum)

    def int_into_float(self, x: Array) -> Array:
        return ops.cast(x, self._float)

    @staticmethod
    def int_into_bool(x: Array) -> Array:
        return ops.cast(x, jnp.bool_)

    # --- bool

    def bool_full(self, shape: Shape, value: bool, device: Device) -> Array:
        return self.place(_full(shape, jnp.bool_, value), device)

    bool_and: Binary = simple(jnp.logical_and)
    bool_or: Binary = simple(jnp.logical_or)
    bool_xor: Binary = simple(jnp.logical_xor)
    bool_not: Unary = simple(jnp.logical_not)
    bool_any = reduction(jnp.any)
    bool_all = reduction(jnp.all)

    @staticmethod
    def bool_into_int(x: Array) -> Array:
        return ops.cast(x, jnp.int32)

    def bool_into_float(self, x: Array) -> Array:
        return ops.cast(x, self._float)

    # --- random

    def random_uniform(self, state: Array, shape: Shape, device: Device) -> Array:
        return self.place(random.random_uniform(state, shape, self._float), device)

    def random_normal(self, state: Array, shape: Shape, device: Device) -> Array:
        return self.place(random.random_normal(state, shape, self._float), device)

    def random_bernoulli(self, state: Array, shape: Shape, threshold: int, device: Device) -> Array:
        return self.place(random.random_bernoulli(state, shape, threshold), device)

    def random_integers(self, state: Array, shape: Shape, low: int, high: int, device: Device) -> Array:
        return self.place(random.random_integers(state, shape, low, high), device)

    def random_permutation(self, state: Array, n: int, device: Device) -> Array:
        return self.place(random.random_permutation(state, n), device)


@ops.op(0, 1)
def _full(shape: Shape, dtype: Any, value: Any) -> Array:
    return lax.full(shape, value, dtype)


_where = jax.jit(jnp.where, inline=True)


def _device_name(device: Any) -> str:
    alone = device.platform == "cpu" and len(jax.devices("cpu")) == 1
    return device.platform if alone else f"{device.platform}:{device.id}"
