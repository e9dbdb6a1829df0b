"""Random numbers on JAX arrays, bit for bit as `phlox.backend.threefry.generator` defines them.

`state` is `uint32[3] = (k0, k1, position)`, traced or not, so that one compiled program draws from any stream. Each
draw is one jitted call that is *not* inlined into the jaxpr: XLA inlines it anyway, but a program with many draws of
one shape is traced eight times faster and has the table of the normal quantile only once. The rounds of Threefry are
unrolled and fuse with later operations: twice the speed of JAX's own primitive, which is a loop on CPUs.

Every element is computed from its own index, with its own rounds of Threefry, although one evaluation gives two words:
so a partitioner can shard a draw like the array that it is combined with, without communication.
"""

# pyright: reportUnknownMemberType=false
# (annotations of JAX are incomplete)

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.dtypes
import jax.numpy as jnp
import numpy as np
from jax import lax

from phlox.backend.jax.sharding import in_shards
from phlox.backend.parallel import Part
from phlox.backend.threefry.generator import (
    DROPPED,
    PARITY,
    RESERVED,
    ROTATIONS,
    check_draw,
    check_permutation,
    check_range,
    check_substream,
    check_threshold,
)
from phlox.backend.threefry.half_normal import NODES, ORIGIN, STEPS
from phlox.errors import BackendError

Array = Any  # a jax.Array, a tracer, or (a state only) a NumPy array
Shape = tuple[int, ...]

_u32, _i32 = np.uint32, np.int32


def _threefry(k0: Array, k1: Array, a: Array, b: Array) -> tuple[Array, Array]:
    key = (k0, k1, k0 ^ k1 ^ _u32(PARITY))
    a, b = a + k0, b + k1
    for group in range(5):
        for r in ROTATIONS[group & 1]:
            a = a + b
            b = ((b << _u32(r)) | (b >> _u32(32 - r))) ^ a
        a, b = a + key[(group + 1) % 3], b + key[(group + 2) % 3] + _u32(group + 1)
    return a, b


def _indices(shape: Shape, part: Part | None) -> Array:
    """The row-major index of each element in the whole draw."""
    first = 0 if part is None else part.start
    index, stride = jnp.full(shape, _u32(first & 0xFFFFFFFF)) if first else jnp.zeros(shape, _u32), 1
    for axis in reversed(range(len(shape))):
        index, stride = (
            index + lax.broadcasted_iota(_u32, shape, axis) * _u32(stride & 0xFFFFFFFF),
            stride * shape[axis],
        )
    return index


def _word(state: Array, n: int, index: Array) -> Array:
    """The words at these indices, among the n words of a draw."""
    half = _u32((n + 1) // 2)
    is_second = index >= half
    a, b = _threefry(state[0], state[1], state[2], lax.select(is_second, index - half, index))
    return lax.select(is_second, b, a)


def _draw_size(shape: Shape, part: Part | None) -> int:
    """The number of elements of the whole draw."""
    return math.prod(shape) if part is None else part.total


def _words(state: Array, shape: Shape, part: Part | None = None) -> Array:
    return _word(state, _draw_size(shape, part), _indices(shape, part))


def _to_dtype(x: Array, dtype: Any) -> Array:
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise BackendError("JAX draws float64 numbers only if jax_enable_x64 is set; set it, or draw float32")
    return lax.convert_element_type(x, dtype)


def _draw(*static: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Jit a function of a state whose arguments at these positions are not arrays."""
    return partial(jax.jit, static_argnums=static)


@_draw(1)
def _bits(state: Array, n: int) -> Array:
    return _words(state, (n,))


@_draw(1, 2, 3)
def _uniform(state: Array, shape: Shape, dtype: Any, part: Part | None) -> Array:
    v = lax.convert_element_type(_words(state, shape, part) >> _u32(8), _i32)
    if dtype.itemsize >= 4:
        return _to_dtype(v, dtype) * dtype.type(2.0**-24)
    bits = lax.bitcast_convert_type(_to_dtype(v, np.dtype(np.float32)), _i32)
    bits &= _i32(-1 << DROPPED[dtype.name])
    x = lax.bitcast_convert_type(bits, np.float32) * np.float32(2.0**-24)
    return _to_dtype(x, dtype)


@_draw(1, 2, 3)
def _normal(state: Array, shape: Shape, dtype: Any, part: Part | None) -> Array:
    words = _words(state, shape, part)
    m = lax.convert_element_type((words >> _u32(8)) + _u32(1), _i32)
    bits = lax.bitcast_convert_type(_to_dtype(m, np.dtype(np.float32)), _i32)
    k = (bits >> _i32(14)) - _i32(ORIGIN)
    node, step = (jnp.asarray(table).at[k].get(mode="promise_in_bounds") for table in (NODES, STEPS))
    r = node - (step * (bits & _i32(0x3FFF)) >> _i32(14))
    r = lax.select((words & _u32(1)) == _u32(1), -r, r)
    wide = dtype if dtype.itemsize >= 4 else np.dtype(np.float32)
    return _to_dtype(_to_dtype(r, wide) * wide.type(2.0**-26), dtype)


@_draw(1, 2)
def _bernoulli(state: Array, shape: Shape, part: Part | None, threshold: Array) -> Array:
    words = (_draw_size(shape, part) + 1) // 2  # their lower halves are the first elements, their upper ones the others
    index, half = _indices(shape, part), _u32(words & 0xFFFFFFFF)
    is_upper = index >= half
    word = _word(state, words, lax.select(is_upper, index - half, index))
    bits = lax.select(is_upper, word >> _u32(16), word & _u32(0xFFFF))
    return bits < lax.convert_element_type(threshold, _u32)


def _high_half(x: Array, y: Array) -> Array:
    """The upper 32 bits of the product of two uint32, from products of 16-bit halves."""
    x0, x1, y0, y1 = x & _u32(0xFFFF), x >> _u32(16), y & _u32(0xFFFF), y >> _u32(16)
    low, mixed = x0 * y0, x0 * y1
    middle = (low >> _u32(16)) + (mixed & _u32(0xFFFF)) + x1 * y0  # at most 2**32 - 1
    return x1 * y1 + (mixed >> _u32(16)) + (middle >> _u32(16))


@_draw(1, 2)
def _integers(state: Array, shape: Shape, part: Part | None, low: Array, span: Array) -> Array:
    a, b = _threefry(state[0], state[1], state[2], _indices(shape, part))  # words i and n + i of 2 n
    carry = _high_half(b, span)
    offset = _high_half(a, span) + lax.convert_element_type(a * span + carry < carry, _u32)
    offset = lax.select(lax.broadcast(span == _u32(0), shape), a, offset)  # a span of 2**32 arrives as 0
    return lax.bitcast_convert_type(offset + low, _i32)


@_draw(1)
def _permutation(state: Array, n: int) -> Array:
    return lax.sort((_words(state, (n,)), lax.iota(_i32, n)), num_keys=1, is_stable=True)[1]


@_draw()
def _fold_in(state: Array, data: Array) -> Array:
    a, b = _threefry(state[0], state[1], _u32(RESERVED), lax.convert_element_type(data, _u32))
    return jnp.stack([a, b, _u32(0)])


def _drawn(fn: Callable[..., Any], state: Array, words: int, out: Any, static: tuple[Any, ...], *arrays: Any) -> Array:
    """`fn(state, *static, *arrays)`, which draws `words` words; with a sharding `out`, each device draws its shard."""
    draw_state: object = state
    check_draw(words, int(state[2]) if isinstance(draw_state, np.ndarray) else 0)
    return fn(state, *static, *arrays) if out is None else in_shards(fn, static, out)(state, *arrays)


def random_bits(state: Array, n: int) -> Array:
    """The n random words of a draw, uint32."""
    return _drawn(_bits, state, n, None, (n,))


def random_uniform(
    state: Array, shape: Shape, dtype: Any = np.float32, out: Any = None, part: Part | None = None
) -> Array:
    """Uniform numbers in [0, 1), multiples of 2**-24; float16 and bfloat16 keep their leading 11 or 8 bits.

    `out`, here and below, is the JAX sharding that the result is made in.

    >>> random_uniform(np.zeros(3, np.uint32), (2,))
    Array([0.4184571 , 0.60049903], dtype=float32)
    """
    return _drawn(_uniform, state, _draw_size(shape, part), out, (shape, np.dtype(dtype), part))


def random_normal(
    state: Array, shape: Shape, dtype: Any = np.float32, out: Any = None, part: Part | None = None
) -> Array:
    """Standard normal numbers, within 3.4e-7 of the exact quantiles, at most 5.54 from 0.

    >>> random_normal(np.zeros(3, np.uint32), (2,))
    Array([-0.80910087,  0.523683  ], dtype=float32)
    """
    return _drawn(_normal, state, _draw_size(shape, part), out, (shape, np.dtype(dtype), part))


def random_bernoulli(
    state: Array, shape: Shape, threshold: int | Array, out: Any = None, part: Part | None = None
) -> Array:
    """True with probability threshold / 65536, from 16 random bits for each element; `threshold` may be traced."""
    if isinstance(threshold, int):
        check_threshold(threshold)
        threshold = _u32(threshold)
    return _drawn(_bernoulli, state, (_draw_size(shape, part) + 1) // 2, out, (shape, part), threshold)


def random_integers(
    state: Array, shape: Shape, low: int, high: int, out: Any = None, part: Part | None = None
) -> Array:
    """Integers in [low, high), int32, practically unbiased: 64 random bits for each element."""
    check_range(low, high)
    bounds = _u32(low & 0xFFFFFFFF), _u32(high - low & 0xFFFFFFFF)
    return _drawn(_integers, state, 2 * _draw_size(shape, part), out, (shape, part), *bounds)


def random_permutation(state: Array, n: int) -> Array:
    """0..n-1 in random order, int32: the stable argsort of n words."""
    check_permutation(n)
    return _drawn(_permutation, state, n, None, (n,))


def state_of_seed(seed: Array) -> Array:
    """The state at the start of the stream of an integer: its 64 bits, high word first, and position 0."""
    if seed.dtype.itemsize == 8:
        with jax.enable_x64(True):
            bits = lax.bitcast_convert_type(lax.convert_element_type(seed, np.int64), _u32)  # the low word first
        return jnp.stack([bits[1], bits[0], _u32(0)])
    negative = seed < 0 if jnp.issubdtype(seed.dtype, jnp.signedinteger) else False
    low = lax.convert_element_type(seed, _u32)
    return jnp.stack([jnp.where(negative, _u32(RESERVED), _u32(0)), low, _u32(0)])


def fold_in(state: Array, data: int | Array) -> Array:
    """The first state, uint32[3], of sub-stream number `data` of a stream; both may be traced."""
    if isinstance(data, int):
        check_substream(data)
        data = _u32(data)
    return _fold_in(state, data)
