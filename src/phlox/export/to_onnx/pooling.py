"""Pooling, resizing images and reading them at the points of a grid, as operators."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from phlox.backend import Float, Int
from phlox.backend.contract.nn.conv import padded_sizes, window_counts
from phlox.backend.contract.nn.pooling import PoolingOps
from phlox.backend.contract.nn.resampling import Resampling
from phlox.backend.contract.nn.sampling import SamplingOps
from phlox.backend.contract.types import Array, Shape, Widths
from phlox.backend.tracing.dimension import is_open, pads, same_size
from phlox.export.to_onnx.elementwise import combined
from phlox.export.to_onnx.graph import current
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
    """Do runtimes take the padding? Its widths must be known, and smaller than the window."""
    return all(not is_open(width) and width < side for pair, side in zip(padding, sides, strict=True) for width in pair)


def _shape(A: OnnxEngine, x: Array, sides: Shape, stride: Shape, padding: Widths, dilation: Shape) -> Shape:
    n, channels, *sizes = A.shape(x)
    return n, channels, *window_counts(padded_sizes(tuple(sizes), padding), sides, stride, dilation)


def avg_pool(A: OnnxEngine, x: Array, sides: Shape, stride: Shape, padding: Widths, counted: Widths) -> Array:
    """AveragePool if all of the padding counts, or none of it; otherwise the definition."""
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
        order = (*[dim for dim in range(rank) if dim != axis], axis)
        y = A.float_matmul(A.permute_dims(x, order), A.permute_dims(shares, (1, 0)))
        x = A.permute_dims(y, (*range(axis), rank - 1, *range(axis, rank - 1)))
    return x


def _is_open(A: OnnxEngine, x: Array, counts: Shape) -> bool:
    return any(is_open(A.shape(x)[axis]) or is_open(count) for axis, count in _changed(A, x, counts))


def _changed(A: OnnxEngine, x: Array, counts: Shape) -> list[tuple[int, int]]:
    """The axes that get another size."""
    spatial = A.shape(x)[2:]
    return [
        (2 + index, count)
        for index, (count, size) in enumerate(zip(counts, spatial, strict=True))
        if not same_size(count, size)
    ]


def _around(A: OnnxEngine, x: Array, axis: int) -> tuple[Shape, int, Shape]:
    shape = A.shape(x)
    return shape[:axis], shape[axis], shape[axis + 1 :]


def _inside(A: OnnxEngine, like: Array, size: int, count: int) -> Array:
    """[count, size]: is the element in window i, from floor(i size / count) to ceil((i + 1) size / count)?"""
    device = A.device_of(like)
    window_index = A.reshape(A.int_arange(0, count, 1, device), (count, 1))
    element = A.reshape(A.int_arange(0, size, 1, device), (1, size))
    # element >= floor(i size / count), and element < ceil((i + 1) size / count), in whole numbers
    above = A.int_less(A.int_mul(window_index, size), A.int_mul(A.int_add(element, 1), count))
    below = A.int_less(A.int_mul(element, count), A.int_mul(A.int_add(window_index, 1), size))
    return A.bool_and(above, below)


_F64 = 11
"""`TensorProto.DOUBLE`."""
_MODES: dict[str, dict[str, Any]] = {
    "nearest": {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    "nearest-exact": {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
    "linear": {"mode": "linear"},
    "cubic": {"mode": "cubic", "cubic_coeff_a": -0.75},
}


def interpolate(A: OnnxEngine, x: Array, plans: tuple[Resampling, ...]) -> Array:
    """Resize if runtimes compute the same, or if sizes are open; otherwise the definition, a gather per neighbour."""
    shape = (*A.shape(x)[:2], *[plan.out for plan in plans])
    if all(same_size(plan.size, plan.out) and plan.ratio in (None, 1.0) for plan in plans):
        return x
    opened = any(is_open(size) for plan in plans for size in (plan.size, plan.out))
    first = plans[0]
    if first.mode == "area" and opened:
        return adaptive_avg_pool(A, x, shape[2:])
    if not opened and (A.float_element == "f64" or not _is_exact(plans)):  # runtimes have weights in f32
        return SamplingOps.interpolate(A, x, plans)
    if first.mode in ("nearest", "nearest-exact") and not all(map(_is_whole, plans)):
        return _nearest(A, x, plans)
    if first.mode == "cubic" and len(plans) == 1:
        identity = Resampling(1, 1, first.mode, first.align_corners, None, first.antialias)
        return A.squeeze(interpolate(A, A.expand_dims(x, (2,)), (identity, *plans)), (2,))
    options = dict(_MODES[first.mode])
    if first.align_corners:
        options["coordinate_transformation_mode"] = "align_corners"
    if first.antialias:
        options |= {"antialias": 1, "exclude_outside": 1} | ({"cubic_coeff_a": -0.5} if first.mode == "cubic" else {})
    if any(plan.ratio is not None for plan in plans):
        scales = [1.0, 1.0, *[1.0 if plan.ratio is None else 1.0 / plan.ratio for plan in plans]]
        return A.emit("Resize", [x, None, current().constant(np.array(scales, np.float32))], shape, Float, **options)
    return A.emit("Resize", [x, None, None, current().vector(shape)], shape, Float, **options)


def _is_whole(plan: Resampling) -> bool:
    """Is the new size a whole multiple of the old one? For other sizes a runtime may read a neighbouring element."""
    if plan.ratio is not None:
        return (1.0 / plan.ratio).is_integer()
    return same_size(plan.out, plan.out // plan.size * plan.size)


def _nearest(A: OnnxEngine, x: Array, plans: tuple[Resampling, ...]) -> Array:
    """A gather for each axis, at the indices of the definition, computed in whole numbers or in f64."""
    for axis, plan in enumerate(plans, 2):
        if same_size(plan.size, plan.out) and plan.ratio in (None, 1.0):
            continue
        halves = A.int_mul(A.int_arange(0, plan.out, 1, A.device_of(x)), 2)  # counts halves of an element
        halves = A.int_add(halves, 1) if plan.mode == "nearest-exact" else halves
        if plan.ratio is None:
            indices = combined(A, "Div", (A.int_mul(halves, plan.size), 2 * plan.out), Int, Int)
        else:
            wide = A.emit("Cast", [halves], (plan.out,), Float, to=_F64)
            wide = A.emit("Mul", [wide, current().constant(np.array(plan.ratio / 2.0))], (plan.out,), Float)
            indices = A.int_minimum(A.to_kind(wide, Int), plan.size - 1)  # Cast truncates
        x = A.take(x, indices, axis)
    return x


def _is_exact(plans: tuple[Resampling, ...]) -> bool:
    """Does every runtime read the same neighbours with the same weights, for images of fixed size?"""
    if plans[0].mode == "nearest":
        return all(plan.ratio is None and plan.out % max(plan.size, 1) == 0 for plan in plans)
    if plans[0].antialias or any(plan.ratio is not None for plan in plans):
        return False
    return plans[0].mode == "linear" or (plans[0].mode == "cubic" and len(plans) == 2)


_READINGS = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}


def grid_sample(A: OnnxEngine, x: Array, grid: Array, reading: str, beyond: str, align_corners: bool) -> Array:
    """GridSample of images; of volumes the definition."""
    shape = (*A.shape(x)[:2], *A.shape(grid)[1:-1])
    if len(shape) != 4:
        return SamplingOps.grid_sample(A, x, grid, reading, beyond, align_corners)  # pyright: ignore[reportArgumentType]
    mode = reading if current().opset >= 20 else _READINGS[reading]
    options = {"mode": mode, "padding_mode": beyond, "align_corners": int(align_corners)}
    return A.emit("GridSample", [x, grid], shape, Float, **options)
