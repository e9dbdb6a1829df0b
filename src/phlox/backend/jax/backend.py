"""`Jax`: the contract on JAX arrays, on any device that XLA drives."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from phlox.backend.contract import EngineBackend
from phlox.backend.contract.tiles import ROWS
from phlox.backend.contract.types import Array, Binary, Shape, Unary, native
from phlox.backend.contract.widening import ATTENTION, CONVOLUTIONS, delicate, widen
from phlox.backend.device import Device
from phlox.backend.jax import compat, ops, random, x64
from phlox.backend.jax.arrays import ELEMENTS, Arrays
from phlox.backend.jax.attention import Attention
from phlox.backend.jax.collectives import Collectives
from phlox.backend.jax.conv import Conv
from phlox.backend.jax.elementwise import Elementwise
from phlox.backend.jax.experts import Experts
from phlox.backend.jax.fused import Norm, Sampling, Update
from phlox.backend.jax.indexing import Indexing
from phlox.backend.jax.linalg import Linalg
from phlox.backend.jax.linear import Dense
from phlox.backend.jax.loss import Loss
from phlox.backend.jax.meshes import Meshes
from phlox.backend.jax.ops import arg_reduction, reduction, simple, whole_reduction
from phlox.backend.jax.packed import Packed
from phlox.backend.jax.pooling import Pooling
from phlox.backend.jax.processes import ProcessesOfJax
from phlox.backend.jax.profiling import Profiling
from phlox.backend.jax.recurrent import Recurrent
from phlox.backend.jax.reduction import Reduction
from phlox.backend.jax.shape import Shaping
from phlox.backend.jax.sharding import in_shards
from phlox.backend.jax.signal import Signal
from phlox.backend.jax.sizes import is_symbolic
from phlox.backend.jax.sorting import Sorting
from phlox.backend.jax.tracer import Traces
from phlox.backend.kind import Int
from phlox.backend.parallel import RowGroup, part_of
from phlox.backend.settings import Settings
from phlox.backend.tracing import checks
from phlox.errors import RangeError
from phlox.host.dtypes import HALF_ELEMENTS, INT_RANGES

_SOUND = frozenset({"float_sum", "float_mean", "float_var"})
"""The operations that JAX itself accumulates in f32, and rounds once."""
_SMALL, _WORTH_COMPILING = 1 << 20, 1000
"""The elements of a small constant, and the number of uses from which a program for its shape pays."""
_uses: dict[tuple[Shape, Any], int] = {}
"""How often a small constant of this shape and type was made."""


def _recast(source: Any, target: Any, x: Any) -> Any:
    """An array of the float type `source` as one of `target`; any other value unchanged."""
    return ops.cast(x, target) if getattr(x, "dtype", None) == source else x


@jax.jit
def _tile_products(x: Array, y: Array) -> Array:
    """See `phlox.backend.contract.tiles`."""
    tiles = x.reshape(-1, ROWS, x.shape[1])
    return lax.map(lambda tile: tile @ y, tiles).reshape(len(x), y.shape[1]) if len(tiles) > 1 else x @ y


class Jax(
    Elementwise, Reduction, Shaping, Indexing, Sorting, Linalg, Signal, Dense, Packed, Experts, Norm, Loss, Attention,
    Conv, Pooling, Sampling, Update, Recurrent, Traces, Profiling, Collectives, Meshes, ProcessesOfJax, Arrays,
    EngineBackend,
):  # fmt: skip
    """The backend of JAX, whose programs XLA compiles for a CPU, a GPU or a TPU; f32 by default, or f64, bf16, f16.

    With f64 or i64, JAX's 64-bit types are switched on only inside Phlox's own operations (`phlox.compile` and the tape
    included), on the thread that runs them; JAX does not change for the rest of the process. Raw `jax.jit`, `vmap` and
    `scan` of a model keep f64, too. But raw `jax.grad` computes derivatives outside of Phlox's operations, with 32
    bits: call it within `jax.enable_x64(True)`. At half precision, derived operations are computed in f32.

    Args:
        float: the dtype of floats: "f32", "f64", "bf16" or "f16".
        int: the dtype of integers: "i32" or "i64".

    >>> Jax(float="bf16")
    Jax(float='bf16')
    """

    name = "jax"
    takes_xla_flags = True
    tunings = (
        # They help on some CPUs and hurt on others, where XLA may even assume instructions that the CPU lacks.
        # xla_cpu_experimental_onednn_fusion_type is not tried: it gives wrong numbers on CPUs without AVX-512.
        Settings(xla_flags="--xla_cpu_use_onednn=true"),
        Settings(xla_flags="--xla_cpu_prefer_vector_width=512"),
        Settings(xla_flags="--xla_cpu_enable_concurrency_optimized_scheduler=true"),
    )

    def setup(self) -> None:
        self.jax_float = ELEMENTS[self.float_element]
        self.jax_int = ELEMENTS[self.int_element]
        if self.float_element in HALF_ELEMENTS:
            wide = type(self)(int=self.int_element)
            grow, shrink = (
                partial(_recast, self.jax_float, wide.jax_float),
                partial(_recast, wide.jax_float, self.jax_float),
            )
            widen(self, wide, delicate(self, _SOUND) | ATTENTION, grow, shrink)
            widen(self, wide, CONVOLUTIONS, grow, shrink, unless=lambda *_: jax.default_backend() != "cpu")
        if self.float_element == "f64" or self.int_element == "i64":
            x64.switch_on(self, self.jax_float, self.jax_int)

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
            if_true = jnp.asarray(if_true, self.jax_float)
        return ops.where(condition, if_true, if_false)

    def _filled(self, shape: Shape, dtype: Any, value: Any, device: Device) -> Array:
        out = self.sharded(shape, device)
        if out is None:
            return self.place(_full_array(value, shape, dtype), device)
        return in_shards(_full, (shape, dtype), out)(value)

    # --- float

    def float_full(self, shape: Shape, value: float, device: Device) -> Array:
        return self._filled(shape, self.jax_float, value, device)

    float_add: Binary = simple(jnp.add)
    float_sub: Binary = simple(jnp.subtract)
    float_mul: Binary = simple(jnp.multiply)
    float_div: Binary = simple(ops.divide)

    def float_pow(self, lhs: Any, rhs: Any) -> Array:
        # As on the other engines: a power would differ at minus infinity and minus zero.
        return self.float_sqrt(lhs) if type(rhs) is float and rhs == 0.5 else _power(lhs, rhs)

    float_maximum: Binary = simple(jnp.maximum)
    float_minimum: Binary = simple(jnp.minimum)
    float_neg: Unary = simple(lax.neg)
    float_abs: Unary = simple(lax.abs)
    float_sign: Unary = simple(lambda x: jnp.where(x == 0, jnp.zeros_like(x), lax.sign(x)))  # 0.0 for -0.0 too
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
    float_max = ops.extreme(jnp.max)
    float_min = ops.extreme(jnp.min)
    _max_to_shift = reduction(jnp.max)
    float_argmax = arg_reduction(lax.argmax)
    float_argmin = arg_reduction(lax.argmin)
    float_cumsum = staticmethod(ops.cumsum)
    float_matmul: Binary = staticmethod(ops.matmul)
    tile_products = native(_tile_products)
    stacked_products = native(ops.matmul)

    def is_on_processor(self, x: Array) -> bool:
        return jax.default_backend() == "cpu"

    def float_into_int(self, x: Array) -> Array:
        low, high = INT_RANGES[self.int_element]

        def error(worst: float) -> Exception:
            return RangeError(f"{worst} does not fit {self!r}'s integers ({self.jax_int.name})")

        if not isinstance(x, Tracer):
            host = np.asarray(self.to_host(x), np.float64)
            outside = ~((np.trunc(host) >= low) & (np.trunc(host) < high + 1))
            if outside.any():
                raise error(host[outside].flat[0])
        elif x.size and self.collects_checks(x):
            outside = ~((jnp.trunc(x) >= float(low)) & (jnp.trunc(x) < high + 1.0))
            worst = x.reshape(-1)[jnp.argmax(outside.reshape(-1))]
            checks.add(lambda is_bad, worst: error(worst) if is_bad else None, jnp.any(outside), worst)
        return ops.cast(x, self.jax_int)

    @staticmethod
    def float_into_bool(x: Array) -> Array:
        return ops.cast(x, jnp.bool_)

    # --- int

    def int_full(self, shape: Shape, value: int, device: Device) -> Array:
        return self._filled(shape, self.jax_int, value, device)

    def int_arange(self, start: int, stop: int, step: int, device: Device) -> Array:
        if is_symbolic(stop - start):
            return jnp.arange(start, stop, step, self.jax_int)
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
        """Raise the error if an integer compares so with zero; in a program that collects checks, after the run."""
        if not isinstance(x, Tracer):
            if np.any(compare(self.to_host(x) if isinstance(x, jax.Array) else x, 0)):
                raise error
        elif self.collects_checks(x):
            checks.add(lambda is_bad: error if is_bad else None, jnp.any(compare(x, 0)))

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
        return ops.cast(x, self.jax_float)

    @staticmethod
    def int_into_bool(x: Array) -> Array:
        return ops.cast(x, jnp.bool_)

    # --- bool

    def bool_full(self, shape: Shape, value: bool, device: Device) -> Array:
        return self._filled(shape, ELEMENTS["bool"], value, device)

    bool_and: Binary = simple(jnp.logical_and)
    bool_or: Binary = simple(jnp.logical_or)
    bool_xor: Binary = simple(jnp.logical_xor)
    bool_not: Unary = simple(jnp.logical_not)
    bool_any = reduction(jnp.any)
    bool_all = reduction(jnp.all)

    def bool_into_int(self, x: Array) -> Array:
        return ops.cast(x, self.jax_int)

    def bool_into_float(self, x: Array) -> Array:
        return ops.cast(x, self.jax_float)

    # --- random

    def random_uniform(self, state: Array, shape: Shape, device: Device, rows: RowGroup | None = None) -> Array:
        out, part = self.sharded(shape, device), part_of(rows, shape)
        return self.place(random.random_uniform(state, shape, self.jax_float, out, part), device)

    def random_normal(self, state: Array, shape: Shape, device: Device, rows: RowGroup | None = None) -> Array:
        out, part = self.sharded(shape, device), part_of(rows, shape)
        return self.place(random.random_normal(state, shape, self.jax_float, out, part), device)

    def random_bernoulli(
        self, state: Array, shape: Shape, threshold: int, device: Device, rows: RowGroup | None = None
    ) -> Array:
        out, part = self.sharded(shape, device), part_of(rows, shape)
        return self.place(random.random_bernoulli(state, shape, threshold, out, part), device)

    def random_integers(
        self, state: Array, shape: Shape, low: int, high: int, device: Device, rows: RowGroup | None = None
    ) -> Array:
        out, part = self.sharded(shape, device), part_of(rows, shape)
        return self.place(random.random_integers(state, shape, low, high, out, part), device)

    def random_permutation(self, state: Array, n: int, device: Device) -> Array:
        return self.place(random.random_permutation(state, n), device)


def _full_array(value: Any, shape: Shape, dtype: Any) -> Array:
    # A program for one shape takes as long to compile as a thousand copies of a small array: an optimizer starts with
    # a few arrays of each of a model's shapes.
    if compat.transformation() is None and math.prod(shape) <= _SMALL:
        _uses[shape, dtype] = uses = _uses.get((shape, dtype), 0) + 1
        if uses <= _WORTH_COMPILING:
            return jnp.asarray(np.full(shape, value, dtype))
    return _full(value, shape, dtype)


@ops.op(1, 2)
def _full(value: Any, shape: Shape, dtype: Any) -> Array:
    return lax.full(shape, value, dtype)


_power = jax.jit(jnp.power, inline=True)


@jax.jit
def _int_power(x: Array, exponent: Array) -> Array:
    """The power, by squaring; JAX's own reads only six bits of the exponent."""
    kind = jnp.result_type(x, exponent)
    shape = jnp.broadcast_shapes(jnp.shape(x), jnp.shape(exponent))
    x, exponent = (jnp.broadcast_to(jnp.asarray(operand, kind), shape) for operand in (x, exponent))

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        result, base, remaining = state
        return jnp.where(remaining & 1, result * base, result), base * base, remaining >> 1

    # A negative exponent, which only a program cannot refuse, counts as zero.
    start = (jnp.ones_like(x), x, jnp.maximum(exponent, 0))
    return lax.while_loop(lambda state: jnp.any(state[2] > 0), step, start)[0]


_floor_divide = jax.jit(jnp.floor_divide, inline=True)
_remainder = jax.jit(jnp.remainder, inline=True)
