"""Reading and writing at places given by integers on NumPy."""

from __future__ import annotations

import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.contract.indexing import Mode, scatter
from phlox.backend.contract.types import Array, Index, Shape


class Indexing(Backend):
    """See `phlox.backend.contract.indexing`."""

    def index_set(self, x: Array, values: Array, index: Index) -> Array:
        out = np.array(x)
        out[index] = values
        return out

    def float_index_adjoint(self, g: Array, shape: Shape, index: Index) -> Array:
        out = np.zeros(shape, g.dtype)
        out[index] = g
        return out

    def float_scatter(self, x: Array, positions: Array, updates: Array, mode: Mode) -> Array:
        return scatter(x, positions, updates, mode)

    int_scatter = float_scatter
