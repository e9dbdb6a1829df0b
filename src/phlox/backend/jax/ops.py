"""The required operations on JAX arrays, each a module-level jitted function.

A call of a jitted function takes half the time of the same function of `jax.numpy`, and in a trace, `inline=True` makes
the program the same as without it.
"""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from phlox.backend.contract.types import Array, Axes, Shape
from phlox.backend.contract.widening import composed
from phlox.backend.jax import explicit


def op(*static: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Jit a function whose arguments at these positions are not arrays."""
    return partial(jax.jit, static_argnums=static, inline=True)


def simple(fn: Callable[..., Any]) -> Any:
    """A function of arrays alone, as a backend's attribute."""
    return staticmethod(jax.jit(fn, inline=True))


def several(fn: Callable[..., Any]) -> Any:
    """As `simple`, for a function of several steps, each of which would round at half precision."""
    return staticmethod(composed(jax.jit(fn, inline=True)))


def reduction(fn: Callable[..., Any], **options: Any) -> Any:
    """A reduction over several axes."""

    @op(1, 2)
    def reduce(x: Array, axes: Axes, keepdims: bool) -> Array:
        return fn(x, axis=axes, keepdims=keepdims, **options)

    return staticmethod(reduce)


def extreme(fn: Callable[..., Any]) -> Any:
    """The maximum or minimum of floats; NaN if there is a NaN, which XLA's kernels for CPUs ignore."""

    @op(1, 2)
    def reduce(x: Array, axes: Axes, keepdims: bool) -> Array:
        undefined = jnp.isnan(x).any(axis=axes, keepdims=keepdims)
        return jnp.where(undefined, jnp.nan, fn(x, axis=axes, keepdims=keepdims))

    return staticmethod(reduce)


def whole_reduction(fn: Callable[..., Any]) -> Any:
    """A reduction of integers that wraps around, in their own dtype."""

    @op(1, 2)
    def reduce(x: Array, axes: Axes, keepdims: bool) -> Array:
        return fn(x, axis=axes, keepdims=keepdims, dtype=x.dtype)

    return staticmethod(reduce)


def arg_reduction(fn: Callable[[Array, int, Any], Array]) -> Any:
    """The index of an extreme value along an axis, as 32-bit integers."""

    @op(1)
    def reduce(x: Array, axis: int) -> Array:
        return fn(x, axis, jnp.int32)

    return staticmethod(reduce)


def divide(x: Array, y: Array) -> Array:
    """x / y, rounded once.

    If many elements share a divisor, XLA multiplies by its reciprocal: 41 / 41 is then less than one, and 3e38 / 3e38
    is zero, since the reciprocal is not a normal number. A barrier before the divisor prevents that; on a CPU, barriers
    are removed before loops are fused, so it costs nothing.
    """
    shape = jnp.broadcast_shapes(jnp.shape(x), jnp.shape(y))
    if jax.default_backend() != "cpu" or not jnp.ndim(x):
        return jnp.divide(x, y)
    y = lax.convert_element_type(jnp.broadcast_to(y, shape), jnp.result_type(x, y))
    return jnp.divide(x, lax.optimization_barrier(y))


@op(1)
def reshape(x: Array, shape: Shape) -> Array:
    return explicit.reshape(x, shape)


@partial(jax.jit, inline=True)
def matmul(x: Array, y: Array) -> Array:
    return explicit.matmul(x, y)


@partial(jax.jit, inline=True)
def where(condition: Array, if_true: Any, if_false: Any) -> Array:
    return jnp.where(*explicit.aligned(condition, if_true, if_false))


@op(1)
def permute_dims(x: Array, axes: Axes) -> Array:
    return lax.transpose(x, axes)


@op(1)
def broadcast_to(x: Array, shape: Shape) -> Array:
    return jnp.broadcast_to(x, shape)


@op(1)
def flip(x: Array, axes: Axes) -> Array:
    return lax.rev(x, axes)


@op(1)
def _concat(arrays: tuple[Array, ...], axis: int) -> Array:
    return lax.concatenate(explicit.aligned(*arrays), axis)


def concat(arrays: Any, axis: int) -> Array:
    return _concat(tuple(arrays), axis)


@op(1, 2)
def pad(x: Array, widths: tuple[tuple[int, int], ...], value: float) -> Array:
    return lax.pad(x, jnp.asarray(value, x.dtype), [(before, after, 0) for before, after in widths])


@op(1)
def cumsum(x: Array, axis: int) -> Array:
    return jnp.cumsum(x, axis, dtype=x.dtype)


@op(1)
def cast(x: Array, dtype: Any) -> Array:
    return x.astype(dtype)
