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

from phlox.backend.contract.types import Array, Axes, Index, Shape


def op(*static: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Jit a function whose arguments at these places are not arrays."""
    return partial(jax.jit, static_argnums=static, inline=True)


def simple(fn: Callable[..., Any]) -> Any:
    """A function of arrays alone, as a backend's attribute."""
    return staticmethod(jax.jit(fn, inline=True))


def reduction(fn: Callable[..., Any], **options: Any) -> Any:
    """A reduction over several axes."""

    @op(1, 2)
    def reduce(x: Array, axes: Axes, keepdims: bool) -> Array:
        return fn(x, axis=axes, keepdims=keepdims, **options)

    return staticmethod(reduce)


def arg_reduction(fn: Callable[[Array, int, Any], Array]) -> Any:
    """The place of an extreme value along an axis, as 32-bit integers."""

    @op(1)
    def reduce(x: Array, axis: int) -> Array:
        return fn(x, axis, jnp.int32)

    return staticmethod(reduce)


@op(1)
def reshape(x: Array, shape: Shape) -> Array:
    return lax.reshape(x, shape) if -1 not in shape else jnp.reshape(x, shape)


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
    return lax.concatenate(arrays, axis)


def concat(arrays: Any, axis: int) -> Array:
    return _concat(tuple(arrays), axis)


@op(1, 2)
def pad(x: Array, widths: tuple[tuple[int, int], ...], value: float) -> Array:
    return lax.pad(x, jnp.asarray(value, x.dtype), [(before, after, 0) for before, after in widths])


def _static(index: Index) -> tuple[Any, ...]:
    """Slices as hashable triples, which is what a static argument has to be."""
    return tuple((entry.start, entry.stop, entry.step or 1) if isinstance(entry, slice) else entry for entry in index)


def _kept(entries: tuple[Any, ...]) -> list[tuple[int, int, int]]:
    """Every entry as (start, stop, step), an integer as a slice of one."""
    return [entry if isinstance(entry, tuple) else (entry, entry + 1, 1) for entry in entries]


@op(1)
def _index(x: Array, entries: tuple[Any, ...]) -> Array:
    if not entries:
        return x
    starts, stops, steps = zip(*_kept(entries), strict=True)
    part = lax.slice(x, starts, stops, steps)
    dropped = tuple(axis for axis, entry in enumerate(entries) if not isinstance(entry, tuple))
    return lax.squeeze(part, dropped) if dropped else part


def index(x: Array, index: Index) -> Array:
    return _index(x, _static(index))


@op(1, 2)
def _index_adjoint(g: Array, shape: Shape, entries: tuple[Any, ...]) -> Array:
    # As a padding, which XLA fuses with its neighbours, where a scatter would stand alone.
    dropped = tuple(axis for axis, entry in enumerate(entries) if not isinstance(entry, tuple))
    g = lax.expand_dims(g, dropped) if dropped else g
    config = [
        (start, size - start - (count - 1) * step - 1, step - 1) if count else (size, 0, 0)
        for (start, _, step), size, count in zip(_kept(entries), shape, g.shape, strict=True)
    ]
    return lax.pad(g, jnp.zeros((), g.dtype), config)


def index_adjoint(g: Array, shape: Shape, index: Index) -> Array:
    return _index_adjoint(g, shape, _static(index))


# Out of range under a trace: NaN for floats, the least integer for ints; eager calls have been checked before.


@op(2)
def take(x: Array, indices: Array, axis: int) -> Array:
    return jnp.take(x, indices, axis, mode="fill")


@op(2)
def take_along_axis(x: Array, indices: Array, axis: int) -> Array:
    return jnp.take_along_axis(x, indices, axis, mode="fill")


@op(2, 3)
def take_adjoint(g: Array, indices: Array, axis: int, shape: Shape) -> Array:
    place = (*(slice(None),) * axis, indices)
    return jnp.zeros(shape, g.dtype).at[place].add(g, mode="drop")


@op(2, 3)
def take_along_axis_adjoint(g: Array, indices: Array, axis: int, shape: Shape) -> Array:
    grid = list(jnp.ogrid[tuple(slice(size) for size in indices.shape)])
    grid[axis] = indices
    return jnp.zeros(shape, g.dtype).at[tuple(grid)].add(g, mode="drop")


@op(1)
def cumsum(x: Array, axis: int) -> Array:
    return jnp.cumsum(x, axis)


@op(1)
def cast(x: Array, dtype: Any) -> Array:
    return x.astype(dtype)
