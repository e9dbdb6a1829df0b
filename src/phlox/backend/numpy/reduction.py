"""Reductions and scans on NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Axes, Shape, native

_quiet = np.errstate(all="ignore")


class Reduction(Backend):
    """See `phlox.backend.contract.reduction`."""

    def float_order_statistics(self, x: Array, axes: Axes, ranks: tuple[int, ...], keepdims: bool) -> Array:
        rows = self._rows(x, axes)
        last = rows.shape[-1] - 1
        order = np.partition(rows, (*ranks, last), axis=-1)  # NaN is put last
        picked = np.where(np.isnan(order[..., -1:]), np.nan, order[..., list(ranks)]).astype(x.dtype, copy=False)
        return self._ranked(picked, x.shape, axes, keepdims)

    def bool_count_nonzero(self, x: Array, axes: Axes, keepdims: bool) -> Array:
        if self._counts_too_many(x, axes):
            return super().bool_count_nonzero(x, axes, keepdims)
        return np.add.reduce(x, axis=axes, keepdims=keepdims, dtype=self.host_int_dtype)

    float_cumprod = native(_quiet(np.cumprod))
    float_cummax = native(np.maximum.accumulate)
    float_cummin = native(np.minimum.accumulate)
    int_cummax = native(np.maximum.accumulate)
    int_cummin = native(np.minimum.accumulate)
    float_logcumsumexp = native(_quiet(np.logaddexp.accumulate))

    def int_cumprod(self, x: Array, axis: int) -> Array:
        return np.cumprod(x, axis, dtype=self.host_int_dtype)

    def float_windows_adjoint(self, g: Array, axis: int, size: int, step: int, shape: Shape) -> Array:
        out = np.zeros(shape, g.dtype)
        into: Any = np.moveaxis(out, axis, -1)
        windows = np.moveaxis(g, axis, -2)  # [..., count, size]
        count = windows.shape[-2]
        if size <= count:
            for i in range(size):
                into[..., i : i + (count - 1) * step + 1 : step] += windows[..., i]
        else:
            for i in range(count):
                into[..., i * step : i * step + size] += windows[..., i, :]
        return out
