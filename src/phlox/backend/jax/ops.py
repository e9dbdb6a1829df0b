"""The required operations on JAX arrays, each a module-level jitted function.

Calling a jitted function costs half of what calling the same function of `jax.numpy` does, and under a trace
`inline=True` leaves the program as if it had been written out.
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
    """Jit a function whose arguments at these places are not arrays."""
    return partial(jax.jit, static_argnums=static, inline=True)


def simple(fn: Callable[..., Any]) -> Any:
    """A function of arrays alone, as a backend's attribute."""
    return staticmethod(jax.jit(fn, inline=True))


def several(fn: Callable[..., Any]) -> Any:
    """As `simple`, for a function of several steps, at each of which half precision would round."""
    return staticmethod(composed(jax.jit(fn, inline=True)))


def reduction(fn: Callable[..., Any], **options: Any) -> Any:
    """A reduction over several axes."""

    @op(1, 2)
    def reduce(x: Array, axes: Axes, keepdims: bool) -> Array:
        return fn(x, axis=axes, keepdims=keepdims, **options)

    return staticmethod(reduce)


def extreme(fn: Callable[..., Any]) -> Any:
    """The greatest or the least of floats, NaN if there is one: XLA's kernels for processors do not see it."""

    @op(1, 2)
    def reduce(x: Array, axes: Axes, keepdims: bool) -> Array:
        undefined = jnp.isnan(x).any(axis=axes, keepdims=keepdims)
        return jnp.where(undefined, jnp.nan, fn(x, axis=axes, keepdims=keepdims))

    return staticmethod(reduce)


def whole_reduction(fn: Callable[..., Any]) -> Any:
    """A reduction of integers, which wraps around instead of becoming a wider one."""

    @op(1, 2)
    def reduce(x: Array, axes: Axes, keepdims: bool) -> Array:
        return fn(x, axis=axes, keepdims=keepdims, dtype=x.dtype)

    return staticmethod(reduce)


def arg_reduction(fn: Callable[[Array, int, Any], Array]) -> Any:
    """The place of an extreme value along an axis, as 32-bit integers."""

    @op(1)
    def reduce(x: Array, axis: int) -> Array:
        return fn(x, axis, jnp.int32)

    return staticmethod(reduce)


def divide(x: Array, y: Array) -> Array:
    """x / y, rounded once.

    By a divisor that many elements share, XLA multiplies with its reciprocal: 41 / 41 is less than one then, and where
    the reciprocal is too small for a normal number, 3e38 / 3e38 is zero. What stands behind a barrier it does not look
    at; on a processor barriers are gone before loops are fused.
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
