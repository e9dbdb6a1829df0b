"""Reading and writing at places given by integers on PyTorch."""

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


def _long(indices: Array, size: int) -> Array:
    """Indices as torch wants them, negative ones counted from the end."""
    indices = indices.long()
    return torch.where(indices < 0, indices + size, indices)


# A program cannot raise: out of range it reads NaN, or the least integer, and writes nothing.


def _inside(indices: Array, size: int) -> tuple[Array, Array]:
    """Indices of a program as torch wants them, zero for those that are out of range; and which are not."""
    places = _long(indices, size)
    inside = (places >= 0) & (places < size)
    return torch.where(inside, places, 0), inside


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
                flat, inside = _inside(flat, size)
                rows = torch.where(_along(inside, x, axis), x.index_select(axis, flat), missing(x.dtype))
                return rows.reshape(shape)
            flat = torch.remainder(flat, size)
        return x.index_select(axis, flat).reshape(shape)

    def take_along_axis(self, x: Array, indices: Array, axis: int) -> Array:
        size = x.shape[axis]
        self.check_indices(indices, size, from_end=True)
        if not is_tracer(indices):
            return torch.take_along_dim(x, _long(indices, size), axis)
        if not size:
            shape = (*torch.broadcast_shapes(x.shape[:axis], indices.shape[:axis]), indices.shape[axis])
            after = torch.broadcast_shapes(x.shape[axis + 1 :], indices.shape[axis + 1 :])
            return x.new_full((*shape, *after), missing(x.dtype))
        places, inside = _inside(indices, size)
        if any(map(is_symbolic, indices.shape)):  # which `take_along_dim` would fix
            sizes = list(torch.broadcast_shapes(x.shape[:axis] + x.shape[axis + 1 :],
                                                places.shape[:axis] + places.shape[axis + 1 :]))  # fmt: skip
            x = x.expand(*sizes[:axis], size, *sizes[axis:])
            places = places.expand(*sizes[:axis], places.shape[axis], *sizes[axis:])
            return torch.where(inside, torch.gather(x, axis, places), missing(x.dtype))
        return torch.where(inside, torch.take_along_dim(x, places, axis), missing(x.dtype))

    def index_set(self, x: Array, values: Array, index: Index) -> Array:
        if any(map(is_symbolic, x.shape)):  # of which an assignment would fix whether they are one, and equal
            return _placed(x, values, index, 0)
        out = x.clone()
        out[index] = values
        return out

    def float_index_adjoint(self, g: Array, shape: Shape, index: Index) -> Array:
        out = torch.zeros(shape, dtype=g.dtype, device=g.device)
        out[index] = g
        return out

    def float_take_adjoint(self, g: Array, indices: Array, axis: int, shape: Shape) -> Array:
        by_kernel = compat.EMBEDDING_BACKWARD.here and axis == 0 and len(shape) == 2
        of_rows = by_kernel and g.dtype in (torch.float32, torch.float64)
        if is_tracer(indices):
            if not shape[axis]:
                return g.new_zeros(shape)
            if of_rows and g.device.type == "cpu" and is_on("embedding_grad"):
                places, inside = _inside(indices, shape[0])
                places = torch.where(inside, places, embedding_grad.NOWHERE)
                return embedding_grad.operations.add_rows(g.contiguous(), places, shape[0])
            inside = (indices >= -shape[axis]) & (indices < shape[axis])
            g = torch.where(inside.reshape(*indices.shape, *(1,) * (len(shape) - 1 - axis)), g, 0.0)
            indices = torch.where(inside, indices, 0)
        if of_rows:
            return embedding_grad.add_rows(g, _long(indices, shape[0]), shape[0])
        out = torch.zeros(shape, dtype=g.dtype, device=g.device)
        flat = indices.reshape(-1)
        rows = g.reshape(*shape[:axis], flat.shape[0], *shape[axis + 1 :])
        add = out.index_add if is_tracer(indices) else out.index_add_
        return add(axis, _long(flat, shape[axis]), rows)

    def float_take_along_axis_adjoint(self, g: Array, indices: Array, axis: int, shape: Shape) -> Array:
        if is_tracer(indices):
            if not shape[axis]:
                return g.new_zeros(shape)
            indices, inside = _inside(indices, shape[axis])
            g = torch.where(inside, g, 0.0)
            if indices.shape[axis] == 1:  # without a scatter, so that it can be fused
                numbers = torch.arange(shape[axis], device=g.device).reshape(-1, *(1,) * (len(shape) - 1 - axis))
                return torch.where(numbers == indices, g, 0.0)
            out = torch.zeros(shape, dtype=g.dtype, device=g.device)
            return out.scatter_add(axis, indices, g)
        out = torch.zeros(shape, dtype=g.dtype, device=g.device)
        return out.scatter_add_(axis, _long(indices, shape[axis]), g)

    def float_scatter(self, x: Array, positions: Array, updates: Array, mode: Mode) -> Array:
        size = x.shape[0]
        self.check_indices(positions, size, from_end=True)
        places = _long(positions, size)
        if is_tracer(places):
            # One row more takes what is out of range.
            places = torch.where((places >= 0) & (places < size), places, size)
            x = torch.cat((x, x.new_zeros((1, *x.shape[1:]))))
            return _scattered(x, places, updates, mode)[:size]
        return _scattered(x, places, updates, mode)

    int_scatter = float_scatter


def _along(flat: Array, x: Array, axis: int) -> Array:
    """One for each place along an axis of x, as an array that meets x."""
    return flat.reshape(-1, *(1,) * (x.ndim - 1 - axis))


def _scattered(x: Array, places: Array, updates: Array, mode: Mode) -> Array:
    size = x.shape[0]
    if mode == "add":
        return x.index_add(0, places, updates)
    if mode == "set":
        # torch does not say which of several comes last, so each of them brings what the last one does.
        numbers = torch.arange(places.shape[0], device=x.device)
        last = torch.full((size,), -1, device=x.device).scatter_reduce(0, places, numbers, "amax")
        return x.index_copy(0, places, updates[last[places]])
    grid = places.reshape(-1, *(1,) * (x.ndim - 1)).expand(updates.shape)
    return x.scatter_reduce(0, grid, updates, _REDUCTIONS[mode])


def _placed(x: Array, values: Array, index: Index, axis: int) -> Array:
    """x with values where an index is, from this axis on; the axes of the integers before it are gone."""
    if not index:
        return values
    entry, rest = index[0], index[1:]
    if not isinstance(entry, slice):
        return torch.select_scatter(x, _placed(x.select(axis, entry), values, rest, axis), axis, entry)
    if entry.step == 1 and same_size(entry.start, 0) and same_size(entry.stop, x.shape[axis]):
        return _placed(x, values, rest, axis + 1)
    part = x[(*(slice(None),) * axis, entry)]
    return torch.slice_scatter(x, _placed(part, values, rest, axis + 1), axis, entry.start, entry.stop, entry.step)
