"""Reading and writing at integer indices on JAX."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import PartitionSpec

from phlox.backend.contract import Backend
from phlox.backend.contract.indexing import Mode
from phlox.backend.contract.types import Array, Index, Shape, native
from phlox.backend.jax import explicit
from phlox.backend.jax.ops import op
from phlox.backend.jax.sizes import InconclusiveDimensionOperation, is_symbolic


def _hashable(index: Index) -> tuple[Any, ...]:
    """The index with slices as triples, which are hashable, as a static argument must be."""
    return tuple((entry.start, entry.stop, entry.step or 1) if isinstance(entry, slice) else entry for entry in index)


def _as_slices(entries: tuple[Any, ...]) -> list[tuple[int, int, int]]:
    """Every entry as (start, stop, step); an integer is a slice of one element."""
    return [entry if isinstance(entry, tuple) else (entry, entry + 1, 1) for entry in entries]


def _gathered(x: Array, starts: Any, stops: Any, steps: Any) -> Array:
    """As `lax.slice`, for symbolic sizes too; beyond the end, it repeats the last element."""
    for axis, (start, stop, step) in enumerate(zip(starts, stops, steps, strict=True)):
        if is_symbolic(start) or is_symbolic(stop) or is_symbolic(x.shape[axis]):
            if start == 0 and stop == x.shape[axis] and step == 1:
                continue
            count = -((start - stop) // step)
            x = jnp.take(x, lax.iota(jnp.int32, count) * step + start, axis=axis, mode="clip")
        else:
            x = lax.slice_in_dim(x, start, stop, step, axis)
    return x


@op(1)
def _index(x: Array, entries: tuple[Any, ...]) -> Array:
    if not entries:
        return x
    starts, stops, steps = zip(*_as_slices(entries), strict=True)
    try:
        part = lax.slice(x, starts, stops, steps)
    except InconclusiveDimensionOperation:  # a symbolic dimension may be shorter than the slice
        part = _gathered(x, starts, stops, steps)
    dropped = tuple(axis for axis, entry in enumerate(entries) if not isinstance(entry, tuple))
    return lax.squeeze(part, dropped) if dropped else part


def _shared_starts(entries: tuple[Any, ...]) -> Array | None:
    """The starts of the slices, unless all are zero or a slice has gaps.

    With starts as an array, slices share a program: eager code that walks over an axis would compile one for each step.
    """
    slices = _as_slices(entries)
    starts = np.array([start for start, _, _ in slices], np.int32)
    return starts if starts.any() and all(step == 1 for _, _, step in slices) else None


@op(2)
def _index_from(x: Array, starts: Array, entries: tuple[Any, ...]) -> Array:
    """As `_index`, but `entries` have only the sizes, as slices from zero."""
    part = lax.dynamic_slice(x, starts, [stop for _, stop, _ in _as_slices(entries)])
    dropped = tuple(axis for axis, entry in enumerate(entries) if not isinstance(entry, tuple))
    return lax.squeeze(part, dropped) if dropped else part


def _sizes(entries: tuple[Any, ...]) -> tuple[Any, ...]:
    """The entries, moved to start at zero."""
    return tuple((0, max(e[1] - e[0], 0), 1) if isinstance(e, tuple) else 0 for e in entries)


def _read(x: Array, index: Index) -> Array:
    entries = _hashable(index)
    starts = None if isinstance(x, Tracer) else _shared_starts(entries)
    return _index(x, entries) if starts is None else _index_from(x, starts, _sizes(entries))


@op(1, 2)
def _index_adjoint(g: Array, shape: Shape, entries: tuple[Any, ...]) -> Array:
    # A padding, since XLA fuses it with other operations, but not a scatter.
    dropped = tuple(axis for axis, entry in enumerate(entries) if not isinstance(entry, tuple))
    g = lax.expand_dims(g, dropped) if dropped else g
    config = [
        (start, size - start - (count - 1) * step - 1, step - 1) if count else (size, 0, 0)
        for (start, _, step), size, count in zip(_as_slices(entries), shape, g.shape, strict=True)
    ]
    return lax.pad(g, jnp.zeros((), g.dtype), config)


@op(3)
def _index_set_from(x: Array, values: Array, starts: Array, entries: tuple[Any, ...]) -> Array:
    dropped = tuple(axis for axis, entry in enumerate(entries) if not isinstance(entry, tuple))
    return lax.dynamic_update_slice(x, lax.expand_dims(values, dropped), starts)


@op(2)
def _index_set(x: Array, values: Array, entries: tuple[Any, ...]) -> Array:
    position = tuple(slice(*entry) if isinstance(entry, tuple) else entry for entry in entries)
    return x.at[position].set(values)


@op(1)
def _zeros_like(g: Array, shape: Shape) -> Array:
    return jnp.zeros(shape, g.dtype)


def _adjoint(g: Array, shape: Shape, index: Index) -> Array:
    entries = _hashable(index)
    starts = None if isinstance(g, Tracer) or not g.size else _shared_starts(entries)
    if starts is None:
        return _index_adjoint(g, shape, entries)
    return _index_set_from(_zeros_like(g, shape), g, starts, _sizes(entries))


def _write(x: Array, values: Array, index: Index) -> Array:
    entries = _hashable(index)
    starts = None if isinstance(x, Tracer) or isinstance(values, Tracer) or not values.size else _shared_starts(entries)
    if starts is None:
        return _index_set(x, values, entries)
    return _index_set_from(x, values, starts, _sizes(entries))


# In a trace, an index out of range reads NaN, or the least integer; eager calls check indices before.


@op(2)
def _take(x: Array, indices: Array, axis: int) -> Array:
    if not x.shape[axis]:  # JAX would return a wrong shape
        fill = jnp.nan if jnp.issubdtype(x.dtype, jnp.floating) else 0
        return jnp.full((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]), fill, x.dtype)
    if (spec := explicit.take_spec(x, indices, axis)) is None:
        return jnp.take(x, indices, axis=axis, mode="fill")
    position = (*(slice(None),) * axis, indices)
    return x.at[position].get(mode="fill", out_sharding=PartitionSpec(*spec))


@op(2)
def _take_along_axis(x: Array, indices: Array, axis: int) -> Array:
    return jnp.take_along_axis(x, indices, axis=axis, mode="fill")


@op(2, 3)
def _take_adjoint(g: Array, indices: Array, axis: int, shape: Shape) -> Array:
    if explicit.spec_of(g) is not None or explicit.spec_of(indices) is not None:
        after = indices.ndim - 1
        axes = {i: i if i < axis else i + after for i in range(len(shape)) if i != axis}
        return explicit.transposed(lambda x: _take(x, indices, axis), shape, g, axes)
    position = (*(slice(None),) * axis, indices)
    return jnp.zeros(shape, g.dtype).at[position].add(g, mode="drop")


@op(2, 3)
def _take_along_axis_adjoint(g: Array, indices: Array, axis: int, shape: Shape) -> Array:
    g, indices = explicit.aligned(g, indices)
    if explicit.spec_of(g) is not None:
        axes = {i: i for i in range(len(shape)) if i != axis}
        return explicit.transposed(lambda x: _take_along_axis(x, indices, axis), shape, g, axes)
    grid = list(jnp.ogrid[tuple(slice(size) for size in indices.shape)])
    grid[axis] = indices
    return jnp.zeros(shape, g.dtype).at[tuple(grid)].add(g, mode="drop")


_WRITES = {"add": "add", "mul": "multiply", "min": "min", "max": "max"}


@op(3)
def _scatter(x: Array, positions: Array, updates: Array, mode: Mode) -> Array:
    if not updates.size:
        return x
    if mode != "set":
        return getattr(x.at[positions], _WRITES[mode])(updates, mode="drop")
    # XLA does not define which of several updates wins, so all of them get the values of the last one.
    numbers = jnp.arange(positions.shape[0], dtype=jnp.int32)
    last = jnp.full(x.shape[:1], -1, jnp.int32).at[positions].max(numbers, mode="drop")
    winners = jnp.take(last, positions, mode="fill", fill_value=0)
    return x.at[positions].set(jnp.take(updates, winners, axis=0, mode="clip"), mode="drop")


class Indexing(Backend):
    """See `phlox.backend.contract.indexing`."""

    index = native(_read)
    float_index_adjoint = native(_adjoint)
    index_set = native(_write)
    float_take_adjoint = native(_take_adjoint)
    float_take_along_axis_adjoint = native(_take_along_axis_adjoint)

    def take(self, x: Array, indices: Array, axis: int) -> Array:
        self.check_indices(indices, x.shape[axis], from_end=True)
        return _take(x, indices, axis)

    def take_along_axis(self, x: Array, indices: Array, axis: int) -> Array:
        self.check_indices(indices, x.shape[axis], from_end=True)
        return _take_along_axis(x, indices, axis)

    def float_scatter(self, x: Array, positions: Array, updates: Array, mode: Mode) -> Array:
        self.check_indices(positions, x.shape[0], from_end=True)
        return _scatter(x, positions, updates, mode)

    int_scatter = float_scatter
