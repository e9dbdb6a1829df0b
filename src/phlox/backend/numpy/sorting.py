"""Order: sorting, searching, counting on NumPy."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.contract.sorting import stable_argsort, with_indices
from phlox.backend.contract.types import Array


class Sorting(Backend):
    """See `phlox.backend.contract.sorting`."""

    def float_argsort(self, x: Array, axis: int, descending: bool) -> Array:
        return stable_argsort(x, axis, descending).astype(self.host_int_dtype, copy=False)

    int_argsort = float_argsort

    def float_sort(self, x: Array, axis: int, descending: bool) -> Array:
        if np.signbit(x[x == 0]).any():
            return super().float_sort(x, axis, descending)  # zeros of both signs keep their order
        return self.int_sort(x, axis, descending)

    def int_sort(self, x: Array, axis: int, descending: bool) -> Array:
        ordered = np.sort(x, axis)
        return np.flip(ordered, axis) if descending else ordered

    def float_argtopk(self, x: Array, k: int, axis: int, largest: bool) -> Array:
        rows = np.moveaxis(x, axis, -1)
        if not (x.dtype.itemsize == 4 and 0 < k < rows.shape[-1] // 4):
            return self._leading(self.float_argsort(x, axis, largest), k, axis)
        best = np.partition(with_indices(rows, largest), k - 1, axis=-1)[..., :k]
        best.sort(axis=-1)
        return np.moveaxis(best.astype(np.int32), -1, axis).astype(self.host_int_dtype, copy=False)

    int_argtopk = float_argtopk

    def float_searchsorted(self, x: Array, values: Array, right: bool) -> Array:
        if x.ndim > 1:
            return super().float_searchsorted(x, values, right)
        return _searchsorted(x, values, right).astype(self.host_int_dtype)

    def int_searchsorted(self, x: Array, values: Array, right: bool) -> Array:
        if x.ndim > 1:
            return super().int_searchsorted(x, values, right)
        return _searchsorted(x, values, right).astype(self.host_int_dtype)


def _searchsorted(x: Array, values: Array, right: bool) -> Array:
    return cast("Any", np.searchsorted)(x, values, "right" if right else "left")
