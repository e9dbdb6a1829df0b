"""Sums of many elements on NumPy, which sums pairwise only along the axis that is contiguous in memory."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from phlox.backend.contract.types import Array, Axes

_FEW = 1 << 8
"""A sum of so few elements is accurate in any order."""
_STEPS = 128
"""The number of elements that are added in sequence."""
_ROW = 256
"""The number of elements after an axis from which a loop over them pays."""
ROWS = 1 << 11
"""The number of rows summed by one product with a vector of ones."""


def total(x: Array, axes: Axes, keepdims: bool = False) -> Array:
    """`np.add.reduce` with an error that hardly grows with the number of elements, whichever the axes."""
    if math.prod(map(x.shape.__getitem__, axes)) <= _FEW:
        return np.add.reduce(x, axis=axes, keepdims=keepdims)
    count = 0
    if x.flags.c_contiguous:  # NumPy sums the last axes pairwise, in one call
        while count < x.ndim and x.ndim - 1 - count in axes:
            count += 1
    if count == len(axes):
        return np.add.reduce(x, axis=axes, keepdims=keepdims)
    y = np.add.reduce(x, axis=tuple(range(x.ndim - count, x.ndim))) if count else x
    left = sorted(axes)[: len(axes) - count]
    if len(left) > 1 and left[-1] - left[0] == len(left) - 1 and y.flags.c_contiguous:  # neighbours become one axis
        y = y.reshape(*y.shape[: left[0]], math.prod(y.shape[left[0] : left[-1] + 1]), *y.shape[left[-1] + 1 :])
        left = left[:1]
    for axis in reversed(left):
        y = _sum_along(y, axis)
    return y.reshape([1 if axis in axes else size for axis, size in enumerate(x.shape)]) if keepdims else y


def _sum_along(x: Array, axis: int) -> Array:
    """The sum along one axis: sums of blocks, which are summed in blocks again."""
    size = x.shape[axis]
    if size <= _FEW:
        return np.add.reduce(x, axis)
    before: Any = (slice(None),) * axis
    blocks = size // _STEPS
    even_part = x[(*before, slice(0, blocks * _STEPS))]
    # A block has neighbouring elements if rows are long, else elements far apart, so that the inner loops are long.
    long = math.prod(x.shape[axis + 1 :]) >= _ROW
    split = (blocks, _STEPS) if long else (_STEPS, blocks)
    parts = even_part.reshape(*x.shape[:axis], *split, *x.shape[axis + 1 :])
    summed = _sum_along(np.add.reduce(parts, axis + 1 if long else axis), axis)
    excess = size - blocks * _STEPS
    return summed + np.add.reduce(x[(*before, slice(size - excess, size))], axis) if excess else summed


def running(x: Array, axis: int) -> Array:
    """`np.cumsum` of floats; many are added in f64, since it adds them one by one."""
    if x.dtype != np.float32 or x.shape[axis] <= _FEW:
        return np.cumsum(x, axis)
    with np.errstate(over="ignore"):
        return np.cumsum(x, axis, dtype=np.float64).astype(np.float32)


@lru_cache(64)
def ones(size: int, dtype: np.dtype[Any]) -> Array:
    """A vector of ones, to sum by a product; it is shared."""
    found = np.ones(size, dtype)
    found.flags.writeable = False
    return found


def column_sums(x: Array) -> Array:
    """The sums of the columns of a matrix [rows, columns], by products with ones: of `ROWS` rows at most."""
    if len(x) <= ROWS:
        return np.matmul(ones(len(x), x.dtype), x)
    blocks = len(x) // ROWS
    parts = x[: blocks * ROWS].reshape(blocks, ROWS, x.shape[1])
    summed = _sum_along(np.matmul(ones(ROWS, x.dtype), parts), 0)
    excess = x[blocks * ROWS :]
    return summed + np.matmul(ones(len(excess), x.dtype), excess) if len(excess) else summed
