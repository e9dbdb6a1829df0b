"""Gathering and scattering; if indices differ between examples, the examples are concatenated along one long axis."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from phlox.backend.contract.types import Array, Index, Shape
from phlox.batching.build import GeneralRule, Rule, fold, unfold
from phlox.batching.mapped import MappedOps

if TYPE_CHECKING:
    from phlox.backend.contract.indexing import Mode


def _with_batch(M: MappedOps, size: int, index: Index) -> Index:
    return (slice(0, size, 1), *index)


def _index(M: MappedOps, x: Array, index: Index) -> Array:
    return M.boxed(M.inner.index(x.value, _with_batch(M, M.size([x]), index)))


def _index_set(M: MappedOps, x: Array, values: Array, index: Index) -> Array:
    size = M.size([x, values])
    return M.boxed(M.inner.index_set(M.spread(x, size), M.spread(values, size), _with_batch(M, size, index)))


def _index_adjoint(M: MappedOps, g: Array, shape: Shape, index: Index) -> Array:
    size = M.size([g])
    return M.boxed(M.inner.float_index_adjoint(g.value, (size, *shape), _with_batch(M, size, index)))


def _flat_indices(M: MappedOps, indices: Array, count: int, size: int) -> Array:
    """Indices [size, ...] into an axis of size `count` of each example, as indices into these axes concatenated."""
    B = M.inner
    example = B.int_arange(0, size, 1, B.device_of(indices))
    example = B.reshape(example, (size, *(1 for _ in B.shape(indices)[1:])))
    return B.int_ravel_index([example, indices], (size, count))


def _take(M: MappedOps, x: Array, indices: Array, axis: int) -> Array:
    B = M.inner
    if type(indices) is not M.box:
        return M.boxed(B.take(x.value, indices, axis + 1))
    M.check_indices(indices, M.shape(x)[axis], from_end=True)
    if type(x) is not M.box:
        return M.boxed(M.moved(B.take(x, indices.value, axis), axis, 0))
    size = M.size([x])
    _, count, *sizes = B.shape(rows := M.moved(x.value, axis + 1, 1))
    flat = B.reshape(rows, (size * count, *sizes))
    result = B.take(flat, _flat_indices(M, indices.value, count, size), 0)  # [size, *indices, *sizes]
    return M.boxed(_swap_blocks(M, result, len(M.shape(indices)), axis))


def _take_adjoint(M: MappedOps, g: Array, indices: Array, axis: int, shape: Shape) -> Array:
    B = M.inner
    size = M.size([g, indices])
    if type(indices) is not M.box:
        return M.boxed(B.float_take_adjoint(g.value, indices, axis + 1, (size, *shape)))
    count, sizes = shape[axis], (*shape[:axis], *shape[axis + 1 :])
    rows = _swap_blocks(M, M.spread(g, size), axis, len(M.shape(indices)))
    result = B.float_take_adjoint(rows, _flat_indices(M, indices.value, count, size), 0, (size * count, *sizes))
    return M.boxed(M.moved(B.reshape(result, (size, count, *sizes)), 1, axis + 1))


def _swap_blocks(M: MappedOps, value: Array, first: int, second: int) -> Array:
    """Swap the `first` axes after the batch axis with the `second` axes after them."""
    rank = len(M.inner.shape(value))
    middle, end = 1 + first, 1 + first + second
    order = (0, *range(middle, end), *range(1, middle), *range(end, rank))
    return M.inner.permute_dims(value, order) if first and second else value


def _take_along_axis(M: MappedOps, x: Array, indices: Array, axis: int) -> Array:
    size = M.size([x, indices])
    return M.boxed(M.inner.take_along_axis(M.spread(x, size), M.spread(indices, size), axis + 1))


def _take_along_axis_adjoint(M: MappedOps, g: Array, indices: Array, axis: int, shape: Shape) -> Array:
    size = M.size([g, indices])
    values = M.spread(g, size), M.spread(indices, size)
    return M.boxed(M.inner.float_take_along_axis_adjoint(*values, axis + 1, (size, *shape)))


def _scatter(name: str) -> Rule:
    def rule(M: MappedOps, x: Array, positions: Array, updates: Array, mode: Mode) -> Array:
        size = M.size([x, positions, updates])
        count = M.shape(x)[0]
        M.check_indices(positions, count, from_end=True)
        indices = _flat_indices(M, M.spread(positions, size), count, size)
        flat = M.inner.reshape(indices, (math.prod(M.inner.shape(indices)),))
        scatter: Callable[..., Any] = getattr(M.inner, name)
        return unfold(M, scatter(fold(M, x, size), flat, fold(M, updates, size), mode), size)

    return GeneralRule(3, rule)


INDEXING: dict[str, Rule] = {
    "index": GeneralRule(1, _index),
    "index_set": GeneralRule(2, _index_set),
    "float_index_adjoint": GeneralRule(1, _index_adjoint),
    "take": GeneralRule(2, _take),
    "float_take_adjoint": GeneralRule(2, _take_adjoint),
    "take_along_axis": GeneralRule(2, _take_along_axis),
    "float_take_along_axis_adjoint": GeneralRule(2, _take_along_axis_adjoint),
    "float_scatter": _scatter("float_scatter"),
    "int_scatter": _scatter("int_scatter"),
}
