"""Diagonals and triangles of batches of matrices, and `dot_general` as a matmul, in operations of the contract."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from phlox.backend.contract.types import Array, Axes, Index, Shape
from phlox.backend.tracing.dimension import is_open, larger, smaller

if TYPE_CHECKING:
    from phlox.backend.contract.shape import ShapingOps


def transposed(B: ShapingOps, x: Array) -> Array:
    """The last two axes exchanged."""
    rank = len(B.shape(x))
    return B.permute_dims(x, (*range(rank - 2), rank - 1, rank - 2))


def last(shape: Shape, *entries: int | slice) -> Index:
    """The index that takes `entries` of the last axes, and everything of the other axes."""
    return (*(slice(0, size, 1) for size in shape[: len(shape) - len(entries)]), *entries)


def diagonal(B: ShapingOps, x: Array, offset: int = 0) -> Array:
    """The diagonals of matrices [..., m, n] along a last axis: in reading order, every (n + 1)-th element."""
    *batch, m, n = B.shape(x)
    count = larger(smaller(m, n - offset) if offset >= 0 else smaller(m + offset, n), 0)
    flat = (*batch, m * n)
    if not is_open(count) and count == 0:
        return B.index(B.reshape(x, flat), last(flat, slice(0, 0, 1)))
    start = offset if offset >= 0 else -offset * n
    if is_open(n):  # the step of a slice is a number; each row of n + 1 elements begins with one of the diagonal
        line = B.pad(B.reshape(x, flat), (*((0, 0),) * len(batch), (0, start + count)), 0)
        line = B.index(line, last((*batch, m * n + start + count), slice(start, start + count * (n + 1), 1)))
        return B.index(B.reshape(line, (*batch, count, n + 1)), last((*batch, count, n + 1), slice(0, count, 1), 0))
    return B.index(B.reshape(x, flat), last(flat, slice(start, start + (count - 1) * (n + 1) + 1, n + 1)))


def diagonal_matrix(B: ShapingOps, x: Array, offset: int = 0, zero: float = 0.0) -> Array:
    """Square matrices with the vectors [..., n] on a diagonal, and zeros elsewhere."""
    *batch, n = B.shape(x)
    size = n + abs(offset)
    start = offset if offset >= 0 else -offset * size
    # One element in each row of size + 1, read as rows of `size`, moves right by one from row to row.
    untouched = ((0, 0),) * len(batch)
    rows = B.pad(B.reshape(x, (*batch, n, 1)), (*untouched, (0, 0), (0, size)), zero)
    flat = (*batch, n * (size + 1))
    excess = start + n * (size + 1) - size * size
    line = B.reshape(rows, flat)
    if excess > 0:
        line = B.index(line, last(flat, slice(0, flat[-1] - excess, 1)))
    line = B.pad(line, (*untouched, (start, max(0, -excess))), zero) if start or excess < 0 else line
    return B.reshape(line, (*batch, size, size))


def triangle(B: ShapingOps, x: Array, lower: bool, *, strict: bool = False) -> Array:
    """Float matrices with zeros above the diagonal, or below it, and also on it if `strict`."""
    *_, m, n = B.shape(x)
    device = B.device_of(x)
    rows = B.reshape(B.int_arange(0, m, 1, device), (m, 1))
    columns = B.reshape(B.int_arange(0, n, 1, device), (1, n))
    first, second = (columns, rows) if lower else (rows, columns)
    return B.where((B.int_less if strict else B.int_less_equal)(first, second), x, 0.0)


def identity(B: ShapingOps, n: int, like: Array) -> Array:
    """The identity matrix, on the device of `like`."""
    return diagonal_matrix(B, B.float_full((n,), 1.0, B.device_of(like)))


def products_without(B: ShapingOps, x: Array, count: int) -> Array:
    """For vectors [..., n], the products of all elements except one, [..., n], or except any two, [..., n, n]."""
    *batch, n = B.shape(x)
    device = B.device_of(x)
    numbers = B.int_arange(0, n, 1, device)
    left_out = B.int_equal(B.reshape(numbers, (n, 1)), B.reshape(numbers, (1, n)))
    if count == 2:
        left_out = B.bool_or(B.reshape(left_out, (n, 1, n)), B.reshape(left_out, (1, n, n)))
    factors = B.where(left_out, 1.0, B.reshape(x, (*batch, *(1,) * count, n)))
    return B.float_prod(factors, (len(batch) + count,), False)


class MatmulPlan(NamedTuple):
    """How `dot_general` becomes a batched matmul of [..., m, k] and [..., k, n]; None for a step that is not needed."""

    m: int
    n: int
    order_x: Axes | None
    matrices_x: Shape | None
    order_y: Axes | None
    matrices_y: Shape | None
    result: Shape | None
    sums: bool
    """Is there an axis to sum over? Without, it is an elementwise product."""


def matmul_plan(shape_x: Shape, shape_y: Shape, batch: tuple[Axes, Axes], summed: tuple[Axes, Axes]) -> MatmulPlan:
    """See `dot_general` in the contract."""
    try:
        return _matmul_plan(shape_x, shape_y, batch, summed)
    except TypeError:  # symbolic dimensions cannot be keys
        return _matmul_plan.__wrapped__(shape_x, shape_y, batch, summed)


@lru_cache(4096)
def _matmul_plan(shape_x: Shape, shape_y: Shape, batch: tuple[Axes, Axes], summed: tuple[Axes, Axes]) -> MatmulPlan:
    (bx, by), (sx, sy) = batch, summed
    fx = tuple(axis for axis in range(len(shape_x)) if axis not in bx and axis not in sx)
    fy = tuple(axis for axis in range(len(shape_y)) if axis not in by and axis not in sy)
    stack = tuple(shape_x[axis] for axis in bx)
    rows, columns = tuple(shape_x[axis] for axis in fx), tuple(shape_y[axis] for axis in fy)
    m, n, k = math.prod(rows), math.prod(columns), math.prod(shape_x[axis] for axis in sx)
    # The batch axes are not merged: engines would have to copy arrays that are only permuted.
    plan_x = _arrangement(shape_x, (*bx, *fx, *sx), (*stack, m, k))
    plan_y = _arrangement(shape_y, (*by, *sy, *fy), (*stack, k, n))
    result = (*stack, *rows, *columns)
    return MatmulPlan(m, n, *plan_x, *plan_y, None if result == (*stack, m, n) else result, bool(sx))


def _arrangement(shape: Shape, order: Axes, matrices: Shape) -> tuple[Axes | None, Shape | None]:
    permuted = tuple(shape[axis] for axis in order)
    return None if order == tuple(range(len(order))) else order, None if permuted == matrices else matrices


def arranged(B: ShapingOps, x: Array, order: Axes | None, shape: Shape | None) -> Array:
    """The axes in another order, then another shape."""
    if order is not None:
        x = B.permute_dims(x, order)
    return x if shape is None else B.reshape(x, shape)
