"""Reading and writing at places given by integers on PyTorch."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any

import torch

from phlox.backend.contract import Backend
from phlox.backend.contract.indexing import Mode
from phlox.backend.contract.types import Array, Index, Shape

_aten: Any = torch.ops.aten

_REDUCTIONS = {"mul": "prod", "min": "amin", "max": "amax"}


def _long(indices: Array, size: int) -> Array:
    """Indices as torch wants them, negative ones counted from the end."""
    indices = indices.long()
    return torch.where(indices < 0, indices + size, indices)


class Indexing(Backend):
    """See `phlox.backend.contract.indexing`."""

    def index(self, x: Array, index: Index) -> Array:
        return x[index]

    def take(self, x: Array, indices: Array, axis: int) -> Array:
        flat = indices.reshape(-1)
        if self.check_indices(indices, x.shape[axis], from_end=True):
            flat = torch.remainder(flat, x.shape[axis])
        rows = x.index_select(axis, flat)
        return rows.reshape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    def take_along_axis(self, x: Array, indices: Array, axis: int) -> Array:
        self.check_indices(indices, x.shape[axis], from_end=True)
        return torch.take_along_dim(x, _long(indices, x.shape[axis]), axis)

    def index_set(self, x: Array, values: Array, index: Index) -> Array:
        out = x.clone()
        out[index] = values
        return out

    def float_index_adjoint(self, g: Array, shape: Shape, index: Index) -> Array:
        out = torch.zeros(shape, dtype=g.dtype, device=g.device)
        out[index] = g
        return out

    def float_take_adjoint(self, g: Array, indices: Array, axis: int, shape: Shape) -> Array:
        if axis == 0 and len(shape) == 2 and g.dtype in (torch.float32, torch.float64):
            return _aten.embedding_dense_backward(g, _long(indices, shape[0]), shape[0], -1, False)
        out = torch.zeros(shape, dtype=g.dtype, device=g.device)
        flat = indices.reshape(-1)
        rows = g.reshape(*shape[:axis], flat.shape[0], *shape[axis + 1 :])
        return out.index_add_(axis, _long(flat, shape[axis]), rows)

    def float_take_along_axis_adjoint(self, g: Array, indices: Array, axis: int, shape: Shape) -> Array:
        out = torch.zeros(shape, dtype=g.dtype, device=g.device)
        return out.scatter_add_(axis, _long(indices, shape[axis]), g)

    def float_scatter(self, x: Array, positions: Array, updates: Array, mode: Mode) -> Array:
        size = x.shape[0]
        self.check_indices(positions, size, from_end=True)
        places = _long(positions, size)
        if mode == "add":
            return x.index_add(0, places, updates)
        if mode == "set":
            # torch does not say which of several comes last, so each of them brings what the last one does.
            numbers = torch.arange(places.shape[0], device=x.device)
            last = torch.full((size,), -1, device=x.device).scatter_reduce(0, places, numbers, "amax")
            return x.index_copy(0, places, updates[last[places]])
        grid = places.reshape(-1, *(1,) * (x.ndim - 1)).expand(updates.shape)
        return x.scatter_reduce(0, grid, updates, _REDUCTIONS[mode])

    int_scatter = float_scatter
