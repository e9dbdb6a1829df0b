"""Sums of many elements on NumPy, which sums pairwise only along the axis that is contiguous in memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from phlox.backend.contract.types import Array, Axes

_FEW = 1 << 8
"""A sum of so few elements is accurate in any order."""
_STEPS = 128
"""The number of elements that are added in sequence."""
_ROW = 256
"""Elements after an axis that are worth a loop of their own."""
ROWS = 1 << 11
"""Rows that one product with a vector of ones sums."""


def total(x: Array, axes: Axes, keepdims: bool = False) -> Array:
    """`np.add.reduce` with an error that hardly grows with the number of elements, whichever the axes."""
    if math.prod(map(x.shape.__getitem__, axes)) <= _FEW:
        return np.add.reduce(x, axis=axes, keepdims=keepdims)
    count = 0
    if x.flags.c_contiguous:  # the last axes are added up in pairs, all at once
        while count < x.ndim and x.ndim - 1 - count in axes:
            count += 1
    if count == len(axes):
        return np.add.reduce(x, axis=axes, keepdims=keepdims)
    y = np.add.reduce(x, axis=tuple(range(x.ndim - count, x.ndim))) if count else x
    rest = sorted(axes)[: len(axes) - count]
    if len(rest) > 1 and rest[-1] - rest[0] == len(rest) - 1 and y.flags.c_contiguous:  # neighbours become one axis
        y = y.reshape(*y.shape[: rest[0]], math.prod(y.shape[rest[0] : rest[-1] + 1]), *y.shape[rest[-1] + 1 :])
        rest = rest[:1]
    for axis in reversed(rest):
        y = _along(y, axis)
    return y.reshape([1 if axis in axes else size for axis, size in enumerate(x.shape)]) if keepdims else y


def _along(x: Array, axis: int) -> Array:
    """The sum along one axis, in blocks, and of their sums in blocks again."""
    size = x.shape[axis]
    if size <= _FEW:
        return np.add.reduce(x, axis)
    before: Any = (slice(None),) * axis
    blocks = size // _STEPS
    whole = x[(*before, slice(0, blocks * _STEPS))]
    # A block is of neighbours where rows are long, and else of elements far apart, whose loops are long then.
    long = math.prod(x.shape[axis + 1 :]) >= _ROW
    split = (blocks, _STEPS) if long else (_STEPS, blocks)
    parts = whole.reshape(*x.shape[:axis], *split, *x.shape[axis + 1 :])
    found = _along(np.add.reduce(parts, axis + 1 if long else axis), axis)
    rest = size - blocks * _STEPS
    return found + np.add.reduce(x[(*before, slice(size - rest, size))], axis) if rest else found


def running(x: Array, axis: int) -> Array:
    """`np.cumsum` of floats; of many they are added up in f64, for it is one by one that they are."""
    if x.dtype != np.float32 or x.shape[axis] <= _FEW:
        return np.cumsum(x, axis)
    with np.errstate(over="ignore"):
        return np.cumsum(x, axis, dtype=np.float64).astype(np.float32)


def column_sums(x: Array) -> Array:
    """The sums of the columns of a matrix [rows, columns] of more than `ROWS` rows, by products with ones."""
    blocks = len(x) // ROWS
    parts = x[: blocks * ROWS].reshape(blocks, ROWS, x.shape[1])
    found = _along(np.matmul(np.ones(ROWS, x.dtype), parts), 0)
    rest = x[blocks * ROWS :]
    return found + np.matmul(np.ones(len(rest), x.dtype), rest) if len(rest) else found
