"""Pooling as operators."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from phlox.backend import Float
from phlox.backend.contract.nn.conv import padded_sizes, window_counts
from phlox.backend.contract.nn.pooling import PoolingOps
from phlox.backend.contract.types import Array, Shape, Widths
from phlox.backend.tracing.dimension import is_open, pads, same_size
from phlox.export.to_onnx.products import window

if TYPE_CHECKING:
    from phlox.export.to_onnx.engine import OnnxEngine


def max_pool(A: OnnxEngine, x: Array, sides: Shape, stride: Shape, padding: Widths, dilation: Shape) -> Array:
    """MaxPool."""
    if not 1 <= len(sides) <= 3:
        return PoolingOps.max_pool(A, x, sides, stride, padding, dilation)
    if not _fits(padding, sides):
        x, padding = A.pad(x, ((0, 0), (0, 0), *padding), -math.inf), ((0, 0),) * len(sides)
    shape = _shape(A, x, sides, stride, padding, dilation)
    return A.emit("MaxPool", [x], shape, Float, **window(sides, stride, padding, dilation))


def _fits(padding: Widths, sides: Shape) -> bool:
    """Runtimes take padding of a width that is known, and less than the window."""
    return all(not is_open(width) and width < side for pair, side in zip(padding, sides, strict=True) for width in pair)


def _shape(A: OnnxEngine, x: Array, sides: Shape, stride: Shape, padding: Widths, dilation: Shape) -> Shape:
    n, channels, *sizes = A.shape(x)
    return n, channels, *window_counts(padded_sizes(tuple(sizes), padding), sides, stride, dilation)


def avg_pool(A: OnnxEngine, x: Array, sides: Shape, stride: Shape, padding: Widths, counted: Widths) -> Array:
    """AveragePool if all of the padding counts, or none; otherwise the definition."""
    all_counts = all(all(map(same_size, *pairs)) for pairs in zip(padding, counted, strict=True))
    none_counts = not pads(counted)
    if not 1 <= len(sides) <= 3 or not (all_counts or none_counts) or not _fits(padding, sides):
        return PoolingOps.avg_pool(A, x, sides, stride, padding, counted)
    ones = (1,) * len(sides)
    options = window(sides, stride, padding, ones)
    options |= {"count_include_pad": 1} if all_counts and pads(padding) else {}
    return A.emit("AveragePool", [x], _shape(A, x, sides, stride, padding, ones), Float, **options)


def adaptive_max_pool(A: OnnxEngine, x: Array, counts: Shape) -> Array:
    """GlobalMaxPool for one window; for an open axis the maximum over the positions of each window."""
    if all(count == 1 for count in counts):
        return A.emit("GlobalMaxPool", [x], (*A.shape(x)[:2], *counts), Float)
    if not _is_open(A, x, counts):
        return PoolingOps.adaptive_max_pool(A, x, counts)
    for axis, count in _changed(A, x, counts):
        before, size, after = _around(A, x, axis)
        inside = A.reshape(_inside(A, x, size, count), (*(1 for _ in before), count, size, *(1 for _ in after)))
        x = A.float_max(A.where(inside, A.expand_dims(x, (axis,)), -math.inf), (axis + 1,), False)
    return x


def adaptive_avg_pool(A: OnnxEngine, x: Array, counts: Shape) -> Array:
    """GlobalAveragePool for one window; for an open axis a product with each element's weight in each window."""
    if all(count == 1 for count in counts):
        return A.emit("GlobalAveragePool", [x], (*A.shape(x)[:2], *counts), Float)
    if not _is_open(A, x, counts):
        return PoolingOps.adaptive_avg_pool(A, x, counts)
    for axis, count in _changed(A, x, counts):
        _, size, _ = _around(A, x, axis)
        inside = A.bool_into_float(_inside(A, x, size, count))
        shares = A.float_div(inside, A.float_sum(inside, (1,), True))
        rank = len(A.shape(x))
        order = (*[one for one in range(rank) if one != axis], axis)
        y = A.float_matmul(A.permute_dims(x, order), A.permute_dims(shares, (1, 0)))
        x = A.permute_dims(y, (*range(axis), rank - 1, *range(axis, rank - 1)))
    return x


def _is_open(A: OnnxEngine, x: Array, counts: Shape) -> bool:
    return any(is_open(A.shape(x)[axis]) or is_open(count) for axis, count in _changed(A, x, counts))


def _changed(A: OnnxEngine, x: Array, counts: Shape) -> list[tuple[int, int]]:
    """The axes that get another size."""
    spatial = A.shape(x)[2:]
    return [
        (2 + place, count)
        for place, (count, size) in enumerate(zip(counts, spatial, strict=True))
        if not same_size(count, size)
    ]


def _around(A: OnnxEngine, x: Array, axis: int) -> tuple[Shape, int, Shape]:
    shape = A.shape(x)
    return shape[:axis], shape[axis], shape[axis + 1 :]


def _inside(A: OnnxEngine, like: Array, size: int, count: int) -> Array:
    """[count, size]: is an element in a window, which goes from floor(i size / count) to ceil((i + 1) size / count)?"""
    place = A.device_of(like)
    number = A.reshape(A.int_arange(0, count, 1, place), (count, 1))
    element = A.reshape(A.int_arange(0, size, 1, place), (1, size))
    # element >= floor(i size / count), and element < ceil((i + 1) size / count), in whole numbers
    above = A.int_less(A.int_mul(number, size), A.int_mul(A.int_add(element, 1), count))
    below = A.int_less(A.int_mul(element, count), A.int_mul(A.int_add(number, 1), size))
    return A.bool_and(above, below)
