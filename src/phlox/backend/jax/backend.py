"""`Jax`: the contract on JAX arrays, on any device that XLA drives."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.interpreters.partial_eval import DynamicJaxprTracer
from jax.sharding import NamedSharding, PartitionSpec

from phlox.backend import checks
from phlox.backend.contract import Backend, EngineBackend
from phlox.backend.contract.backend import engine_of
from phlox.backend.contract.types import Array, Binary, Shape, Unary, native
from phlox.backend.contract.widening import delicate, widen
from phlox.backend.device import Device
from phlox.backend.element import HALF_ELEMENTS, HOST_DTYPES, INT_RANGES
from phlox.backend.jax import ops, random, x64
from phlox.backend.jax.attention import Attention
from phlox.backend.jax.conv import Conv
from phlox.backend.jax.dense import Dense
from phlox.backend.jax.elementwise import Elementwise
from phlox.backend.jax.indexing import Indexing
from phlox.backend.jax.left_over import has_ended, is_outside
from phlox.backend.jax.linalg import Linalg
from phlox.backend.jax.loss import Loss
from phlox.backend.jax.norm import Norm
from phlox.backend.jax.ops import arg_reduction, reduction, simple, whole_reduction
from phlox.backend.jax.pooling import Pooling
from phlox.backend.jax.processor import is_shared
from phlox.backend.jax.recurrent import Recurrent
from phlox.backend.jax.reduction import Reduction
from phlox.backend.jax.sampling import Sampling
from phlox.backend.jax.shape import Shaping
from phlox.backend.jax.signal import Signal
from phlox.backend.jax.sorting import Sorting
from phlox.backend.kind import Int, Kind, kind_of_dtype
from phlox.backend.mapped import taken_over
from phlox.errors import DeviceError, RangeError

_ELEMENTS: dict[str, Any] = {name: jnp.dtype(dtype) for name, dtype in HOST_DTYPES.items()}
_PROBE = np.zeros((), np.float32)
_number_of = operator.attrgetter("id")
_NEEDS_VALUES = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


def _recast(source: Any, target: Any, x: Any) -> Any:
    """An array of one float type as one of another, anything else as it is."""
    return ops.cast(x, target) if getattr(x, "dtype", None) == source else x


_LARGE = 1 << 20
"""Bytes of a host array that is worth another way to the device."""


class Jax(
    Elementwise, Reduction, Shaping, Indexing, Sorting, Linalg, Signal, Dense, Norm, Loss, Attention, Conv, Pooling,
    Sampling, Recurrent, EngineBackend,
):  # fmt: skip
    """JAX arrays: compiled by XLA, on a processor, a GPU or a TPU; f32 by default, or f64, bf16, f16.

    With f64 or i64, JAX's 64-bit types are switched on only inside Phlox's own operations (`phlox.compile` and the tape
    included), on the thread that runs them; the rest of the process sees JAX as it was. Raw `jax.jit`, `vmap` and
    `scan` of a model hold f64 too, but in raw `jax.grad` JAX writes the derivatives outside of our operations, at 32
    bits: call it within `jax.enable_x64(True)`. At half precision, what the contract derives is computed in f32.
    """

    name = "jax"

    def setup(self) -> None:
        self._float = _ELEMENTS[self.float_element]
        self._int = _ELEMENTS[self.int_element]
        if self.float_element in HALF_ELEMENTS:
            wide = type(self)(int=self.int_element)
            grow, shrink = partial(_recast, self._float, wide._float), partial(_recast, wide._float, self._float)
            widen(self, wide, delicate(self), grow, shrink)
        if self.float_element == "f64" or self.int_element == "i64":
            x64.switch_on(self, self._float, self._int)

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
        devices = x.devices()
        if len(devices) == 1:
            return Device(self, _device_name(next(iter(devices))))
        # Of an array in shards, the first stands for all.
        mesh = x.sharding.mesh if isinstance(x.sharding, NamedSharding) else None
        return Device(self, _device_name(min(devices, key=_number_of)), mesh)

    def others(self, device: Device) -> str:
        return "".join(f",{number}" for number in sorted(map(_number_of, device.spread.devices.flat))[1:])

    def to_device(self, x: Array, device: Device) -> Array:
        if device.spread is None:
            return jax.device_put(x, self.native_device(device))
        return x if isinstance(x, Tracer) else jax.device_put(x, NamedSharding(device.spread, PartitionSpec()))

    def from_host(self, array: np.ndarray[Any, Any], kind: type[Kind], device: Device) -> Array:
        fitted, native = self.fit(array, kind), self.native_device(device)
        if fitted.nbytes < _LARGE or native.platform != "cpu" or self.bakes_constants() or device.spread:
            return self.place(jnp.asarray(fitted), device)
        # One copy, where jnp.asarray makes two, and none of pages that may be taken over; it is waited for, since
        # afterwards the array is the caller's again. As `place` has it, nothing is held to the only device: programs
        # would be made anew for arrays that are.
        alone = native if len(jax.devices()) > 1 else None
        placed = jax.device_put(fitted, alone, may_alias=taken_over(fitted) is not None)
        self.await_array(placed)
        return placed

    def cast(self, x: Array, target: Backend, device: Device) -> Array:
        engine = engine_of(target)
        if not isinstance(engine, Jax):
            return super().cast(x, target, device)
        kind = self.kind_of(x)
        dtype = engine.element(kind)
        if x.dtype != dtype:
            if kind is Int:
                self.check_fits(x, engine)
            x = x64.in_x64(ops.cast)(x, dtype)
        here = device.on(engine)
        return x if isinstance(x, Tracer) or here.holds(engine.device_of(x)) else engine.to_device(x, here)

    def element(self, kind: type[Kind]) -> Any:
        """JAX's type of the elements of a kind."""
        return {"float": self._float, "int": self._int, "bool": _ELEMENTS["bool"]}[kind.name]

    def from_dlpack(self, x: Any, device: Device) -> Array:
        if isinstance(x, Tracer):
            return x
        # With 64-bit types on, or they would be cut down on the way.
        return self.place(x64.in_x64(jnp.from_dlpack)(x), device)

    def place(self, x: Array, device: Device) -> Array:
        """On the device asked for, and held to it, so that arrays on two devices cannot meet."""
        if isinstance(x, Tracer):
            return x
        devices = jax.devices()
        if len(devices) == 1 and device.name == _device_name(devices[0]):
            return x
        return self.to_device(x, device)

    def beside(self, x: Array, like: Array) -> Array:
        if isinstance(x, Tracer) or isinstance(like, Tracer) or len(like.devices()) == 1:
            return x
        sharding = like.sharding
        if x.shape != like.shape:
            if not isinstance(sharding, NamedSharding):
                return x
            sharding = NamedSharding(sharding.mesh, PartitionSpec())
        return x if x.sharding == sharding else jax.device_put(x, sharding)

    def joins_products(self) -> bool:
        return is_shared() and self.bakes_constants()

    def duplicate(self, x: Array) -> Array:
        return jnp.array(x, copy=True)

    def to_host(self, x: Array) -> np.ndarray[Any, Any]:
        return np.asarray(x)

    def await_array(self, x: Array) -> None:
        if not isinstance(x, Tracer):
            x.block_until_ready()

    def kind_of(self, x: Array) -> type[Kind]:
        return kind_of_dtype(x.dtype)

    def is_number(self, value: object) -> bool:
        return isinstance(value, (Tracer, jax.Array)) and value.ndim == 0

    def is_traced(self, x: Array) -> bool:
        return isinstance(x, Tracer)

    def gathers_checks(self, x: Array) -> bool:
        anchor = checks.placeholder()
        # What belongs to a trace within the program's (of a scan's body) cannot leave it.
        return anchor is not None and getattr(x, "_trace", None) is getattr(anchor, "_trace", self)

    def barrier(self, x: Array, after: Array) -> Array:
        return lax.optimization_barrier((x, after))[0] if isinstance(x, Tracer) else x

    def program(self) -> object | None:
        # Under jit, scan and checkpoint, an operation on constants is recorded; under grad and vmap, it is done.
        return self.program_of(lax.neg(_PROBE))

    def program_of(self, x: Array) -> object | None:
        while isinstance(x, Tracer) and not isinstance(x, DynamicJaxprTracer):
            x = getattr(x, "primal", getattr(x, "val", None))  # one of grad or jvp, or of vmap
        trace: object | None = getattr(x, "_trace", None)
        return trace

    def bakes_constants(self) -> bool:
        return isinstance(lax.neg(_PROBE), Tracer)

    records_loops = bakes_constants

    def is_left_over(self, x: Array, *, surely: bool = False) -> bool:
        return isinstance(x, Tracer) and (has_ended(x) or (not surely and is_outside()))

    def is_left_over_error(self, error: Exception) -> bool:
        return isinstance(error, jax.errors.UnexpectedTracerError)

    def is_gone(self, x: Array) -> bool:
        return not isinstance(x, Tracer) and x.is_deleted()

    def native_vjp(self, fn: Callable[..., Any], arrays: Sequence[Array], g: Any) -> tuple[Array, ...]:
        return jax.vjp(fn, *arrays)[1](g)

    def number_expm1(self, x: Any) -> Any:
        return jnp.expm1(x) if self.is_number(x) else math.expm1(x)

    def held_number(self, value: float) -> Any:
        wide = self.float_element == "f64" or self.int_element == "i64"  # of which JAX has a switch of its own
        return value if wide else jnp.asarray(value)

    def python_number(self, x: Any) -> Any:
        return x if isinstance(x, Tracer) else x.item()

    compiles = True

    def compile(self, fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return jax.jit(fn, donate_argnums=0)

    def record_only(self, fn: Callable[[Any, Any], Any], donated: Any, kept: Any) -> None:
        jax.eval_shape(fn, donated, kept)

    def blank(self, shape: Shape, kind: type[Kind], device: Device) -> Any:
        return jax.ShapeDtypeStruct(shape, self.element(kind))

    def is_record_error(self, error: Exception) -> bool:
        return isinstance(error, _NEEDS_VALUES)

    def scan(
        self,
        body: Callable[[tuple[Array, ...], tuple[Array, ...]], tuple[Sequence[Array], Sequence[Array]]],
        carry: Sequence[Array],
        xs: Sequence[Array],
        length: int,
        *,
        reverse: bool = False,
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        if not self.records_loops():
            return super().scan(body, carry, xs, length, reverse=reverse)

        def step(state: tuple[Array, ...], one: tuple[Array, ...]) -> Any:
            after, y = body(state, one)
            return tuple(after), tuple(y)

        # Numbers stay weakly typed in an array that is made of nothing else: they take the type of what they meet.
        arrays = tuple([jnp.stack([jnp.asarray(n) for n in x]) if isinstance(x, tuple) else x for x in xs])
        return lax.scan(step, tuple(carry), arrays, length, reverse=reverse)

    # --- shape

    shape = native(np.shape)
    reshape = staticmethod(ops.reshape)
    permute_dims = staticmethod(ops.permute_dims)
    broadcast_to = staticmethod(ops.broadcast_to)
    flip = staticmethod(ops.flip)
    concat = staticmethod(ops.concat)
    pad = staticmethod(ops.pad)

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

    def float_pow(self, lhs: Any, rhs: Any) -> Array:
        # As the other engines have it: at minus infinity and minus zero a power would differ.
        return self.float_sqrt(lhs) if type(rhs) is float and rhs == 0.5 else _power(lhs, rhs)

    float_maximum: Binary = simple(jnp.maximum)
    float_minimum: Binary = simple(jnp.minimum)
    float_neg: Unary = simple(lax.neg)
    float_abs: Unary = simple(lax.abs)
    float_sign: Unary = simple(lambda x: jnp.where(x == 0, jnp.zeros_like(x), lax.sign(x)))  # of -0.0, too, it is 0.0
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
        low, high = INT_RANGES[self.int_element]

        def error(worst: float) -> Exception:
            return RangeError(f"{worst} does not fit {self!r}'s integers ({self._int.name})")

        if not isinstance(x, Tracer):
            host = np.asarray(x, np.float64)
            outside = ~((np.trunc(host) >= low) & (np.trunc(host) < high + 1))
            if outside.any():
                raise error(host[outside].flat[0])
        elif x.size and self.gathers_checks(x):
            outside = ~((jnp.trunc(x) >= float(low)) & (jnp.trunc(x) < high + 1.0))
            worst = x.reshape(-1)[jnp.argmax(outside.reshape(-1))]
            checks.leave(lambda some, worst: error(worst) if some else None, jnp.any(outside), worst)
        return ops.cast(x, self._int)

    @staticmethod
    def float_into_bool(x: Array) -> Array:
        return ops.cast(x, jnp.bool_)

    # --- int

    def int_full(self, shape: Shape, value: int, device: Device) -> Array:
        return self.place(_full(shape, self._int, value), device)

    def int_arange(self, start: int, stop: int, step: int, device: Device) -> Array:
        return self.from_host(np.arange(start, stop, step, dtype=np.int64), Int, device)

    int_add: Binary = simple(jnp.add)
    int_sub: Binary = simple(jnp.subtract)
    int_mul: Binary = simple(jnp.multiply)

    def int_floordiv(self, lhs: Array, rhs: Any) -> Array:
        self._forbid(operator.eq, rhs, ZeroDivisionError("integer division by zero"))
        return _floor_divide(lhs, rhs)

    def int_mod(self, lhs: Array, rhs: Any) -> Array:
        self._forbid(operator.eq, rhs, ZeroDivisionError("integer modulo by zero"))
        return _remainder(lhs, rhs)

    def int_pow(self, lhs: Array, rhs: Any) -> Array:
        negative = RangeError("an integer to a negative power is no integer; convert with .float() first")
        self._forbid(operator.lt, rhs, negative)
        return _int_power(lhs, rhs)

    def _forbid(self, compare: Callable[[Any, int], Any], x: Any, error: Exception) -> None:
        """Raise the error where an integer compares so with zero; in a program that gathers checks, after the run."""
        if not isinstance(x, Tracer):
            if np.any(compare(np.asarray(x), 0)):
                raise error
        elif self.gathers_checks(x):
            checks.leave(lambda some: error if some else None, jnp.any(compare(x, 0)))

    int_maximum: Binary = simple(jnp.maximum)
    int_minimum: Binary = simple(jnp.minimum)
    int_neg: Unary = simple(lax.neg)
    int_abs: Unary = simple(lax.abs)
    int_sign: Unary = simple(lax.sign)
    int_equal: Binary = simple(jnp.equal)
    int_less: Binary = simple(jnp.less)
    int_less_equal: Binary = simple(jnp.less_equal)
    int_sum = whole_reduction(jnp.sum)
    int_prod = whole_reduction(jnp.prod)
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

    def bool_into_int(self, x: Array) -> Array:
        return ops.cast(x, self._int)

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
_power = jax.jit(jnp.power, inline=True)


@jax.jit
def _int_power(x: Array, exponent: Array) -> Array:
    """By squaring; JAX's own sees no more than six bits of the exponent."""
    kind = jnp.result_type(x, exponent)
    shape = jnp.broadcast_shapes(jnp.shape(x), jnp.shape(exponent))
    x, exponent = (jnp.broadcast_to(jnp.asarray(one, kind), shape) for one in (x, exponent))

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        result, base, left = state
        return jnp.where(left & 1, result * base, result), base * base, left >> 1

    # A negative exponent, which only a program lets pass, counts as none.
    start = (jnp.ones_like(x), x, jnp.maximum(exponent, 0))
    return lax.while_loop(lambda state: jnp.any(state[2] > 0), step, start)[0]


_floor_divide = jax.jit(jnp.floor_divide, inline=True)
_remainder = jax.jit(jnp.remainder, inline=True)


def _device_name(device: Any) -> str:
    alone = device.platform == "cpu" and len(jax.devices("cpu")) == 1
    return device.platform if alone else f"{device.platform}:{device.id}"
