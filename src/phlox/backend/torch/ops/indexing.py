"""Reading and writing at integer indices on PyTorch."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
from typing import Any

import torch

from phlox.backend.contract import Backend
from phlox.backend.contract.indexing import Mode
from phlox.backend.contract.types import Array, Index, Shape
from phlox.backend.torch import compat
from phlox.backend.torch.compiler.codegen import is_on
from phlox.backend.torch.compiler.kernels import embedding_grad
from phlox.backend.torch.sizes import is_symbolic
from phlox.backend.torch.tracer import is_tracer
from phlox.backend.tracing.dimension import same_size

_REDUCTIONS = {"mul": "prod", "min": "amin", "max": "amax"}


def _nonnegative(indices: Array, size: int) -> Array:
    """Indices as int64, with negative ones made positive."""
    indices = indices.long()
    return torch.where(indices < 0, indices + size, indices)


# A program cannot raise: at an index out of range it reads NaN, or the least integer, and writes nothing.


def _masked_indices(indices: Array, size: int) -> tuple[Array, Array]:
    """The indices of a program as int64, with zero for those out of range; and which are in range."""
    positions = _nonnegative(indices, size)
    inside = (positions >= 0) & (positions < size)
    return torch.where(inside, positions, 0), inside


def missing(dtype: torch.dtype) -> Any:
    """The value that a program reads at an index out of range."""
    if dtype == torch.bool:
        return True
    return math.nan if dtype.is_floating_point else torch.iinfo(dtype).min


class Indexing(Backend):
    """See `phlox.backend.contract.indexing`."""

    def index(self, x: Array, index: Index) -> Array:
        return x[index]

    def take(self, x: Array, indices: Array, axis: int) -> Array:
        size, flat = x.shape[axis], indices.reshape(-1)
        shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
        if self.check_indices(indices, size, from_end=True):
            if is_tracer(flat):
                if not size:
                    return x.new_full(shape, missing(x.dtype))
                flat, inside = _masked_indices(flat, size)
                rows = torch.where(_broadcast_along(inside, x, axis), x.index_select(axis, flat), missing(x.dtype))
                return rows.reshape(shape)
            flat = torch.remainder(flat, size)
        return x.index_select(axis, flat).reshape(shape)

    def take_along_axis(self, x: Array, indices: Array, axis: int) -> Array:
        size = x.shape[axis]
        self.check_indices(indices, size, from_end=True)
        if not is_tracer(indices):
            return torch.take_along_dim(x, _nonnegative(indices, size), axis)
        if not size:
            shape = (*torch.broadcast_shapes(x.shape[:axis], indices.shape[:axis]), indices.shape[axis])
            after = torch.broadcast_shapes(x.shape[axis + 1 :], indices.shape[axis + 1 :])
            return x.new_full((*shape, *after), missing(x.dtype))
        positions, inside = _masked_indices(indices, size)
        if any(map(is_symbolic, indices.shape)):  # `take_along_dim` would fix these sizes
            sizes = list(torch.broadcast_shapes(x.shape[:axis] + x.shape[axis + 1 :],
                                                positions.shape[:axis] + positions.shape[axis + 1 :]))  # fmt: skip
            x = x.expand(*sizes[:axis], size, *sizes[axis:])
            positions = positions.expand(*sizes[:axis], positions.shape[axis], *sizes[axis:])
            return torch.where(inside, torch.gather(x, axis, positions), missing(x.dtype))
        return torch.where(inside, torch.take_along_dim(x, positions, axis), missing(x.dtype))

    def index_set(self, x: Array, values: Array, index: Index) -> Array:
        if any(map(is_symbolic, x.shape)):  # an assignment would fix which sizes are one or equal
            return _set_values(x, values, index, 0)
        out = x.clone()
        out[index] = values
        return out

    def float_index_adjoint(self, g: Array, shape: Shape, index: Index) -> Array:
        out = torch.zeros(shape, dtype=g.dtype, device=g.device)
        out[index] = g
        return out

    def float_take_adjoint(self, g: Array, indices: Array, axis: int, shape: Shape) -> Array:
        by_kernel = compat.EMBEDDING_BACKWARD.exists and axis == 0 and len(shape) == 2
        of_rows = by_kernel and g.dtype in (torch.float32, torch.float64)
        if is_tracer(indices):
            if not shape[axis]:
                return g.new_zeros(shape)
            if of_rows and g.device.type == "cpu" and is_on("embedding_grad"):
                positions, inside = _masked_indices(indices, shape[0])
                positions = torch.where(inside, positions, embedding_grad.NOWHERE)
                return embedding_grad.operations.add_rows(g.contiguous(), positions, shape[0])
            inside = (indices >= -shape[axis]) & (indices < shape[axis])
            g = torch.where(inside.reshape(*indices.shape, *(1,) * (len(shape) - 1 - axis)), g, 0.0)
            indices = torch.where(inside, indices, 0)
        if of_rows:
            return embedding_grad.add_rows(g, _nonnegative(indices, shape[0]), shape[0])
        out = torch.zeros(shape, dtype=g.dtype, device=g.device)
        flat = indices.reshape(-1)
        rows = g.reshape(*shape[:axis], flat.shape[0], *shape[axis + 1 :])
        add = out.index_add if is_tracer(indices) else out.index_add_
        return add(axis, _nonnegative(flat, shape[axis]), rows)

    def float_take_along_axis_adjoint(self, g: Array, indices: Array, axis: int, shape: Shape) -> Array:
        if is_tracer(indices):
            if not shape[axis]:
                return g.new_zeros(shape)
            indices, inside = _masked_indices(indices, shape[axis])
            g = torch.where(inside, g, 0.0)
            if indices.shape[axis] == 1:  # without a scatter, so that the compiler can fuse it
                numbers = torch.arange(shape[axis], device=g.device).reshape(-1, *(1,) * (len(shape) - 1 - axis))
                return torch.where(numbers == indices, g, 0.0)
            out = torch.zeros(shape, dtype=g.dtype, device=g.device)
            return out.scatter_add(axis, indices, g)
        out = torch.zeros(shape, dtype=g.dtype, device=g.device)
        return out.scatter_add_(axis, _nonnegative(indices, shape[axis]), g)

    def float_scatter(self, x: Array, positions: Array, updates: Array, mode: Mode) -> Array:
        size = x.shape[0]
        self.check_indices(positions, size, from_end=True)
        rows = _nonnegative(positions, size)
        if is_tracer(rows):
            # An additional row receives updates that are out of range.
            rows = torch.where((rows >= 0) & (rows < size), rows, size)
            x = torch.cat((x, x.new_zeros((1, *x.shape[1:]))))
            return _scattered(x, rows, updates, mode)[:size]
        return _scattered(x, rows, updates, mode)

    int_scatter = float_scatter


def _broadcast_along(flat: Array, x: Array, axis: int) -> Array:
    """A value for each position along an axis of x, reshaped to broadcast with x."""
    return flat.reshape(-1, *(1,) * (x.ndim - 1 - axis))


def _scattered(x: Array, positions: Array, updates: Array, mode: Mode) -> Array:
    size = x.shape[0]
    if mode == "add":
        return x.index_add(0, positions, updates)
    if mode == "set":
        # torch does not define which of several updates wins, so all of them get the values of the last one.
        numbers = torch.arange(positions.shape[0], device=x.device)
        last = torch.full((size,), -1, device=x.device).scatter_reduce(0, positions, numbers, "amax")
        return x.index_copy(0, positions, updates[last[positions]])
    grid = positions.reshape(-1, *(1,) * (x.ndim - 1)).expand(updates.shape)
    return x.scatter_reduce(0, grid, updates, _REDUCTIONS[mode])


def _set_values(x: Array, values: Array, index: Index, axis: int) -> Array:
    """x with values at an index that starts at this axis; axes of earlier integer entries are already removed."""
    if not index:
        return values
    entry, later = index[0], index[1:]
    if not isinstance(entry, slice):
        return torch.select_scatter(x, _set_values(x.select(axis, entry), values, later, axis), axis, entry)
    if entry.step == 1 and same_size(entry.start, 0) and same_size(entry.stop, x.shape[axis]):
        return _set_values(x, values, later, axis + 1)
    part = x[(*(slice(None),) * axis, entry)]
    return torch.slice_scatter(x, _set_values(part, values, later, axis + 1), axis, entry.start, entry.stop, entry.step)
