"""Resizing images and reading them at the points of a grid, as operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from phlox.backend import Float, Int
from phlox.backend.contract.nn.resampling import Resampling
from phlox.backend.contract.nn.sampling import SamplingOps
from phlox.backend.contract.types import Array
from phlox.backend.tracing.dimension import is_open, same_size
from phlox.export.to_onnx.elementwise import combined
from phlox.export.to_onnx.graph import current

if TYPE_CHECKING:
    from phlox.export.to_onnx.engine import OnnxEngine

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
        from phlox.export.to_onnx.pooling import adaptive_avg_pool

        return adaptive_avg_pool(A, x, shape[2:])
    if not opened and (A.float_element == "f64" or not _is_exact(plans)):  # whose weights are f32 in runtimes
        return SamplingOps.interpolate(A, x, plans)
    if first.mode in ("nearest", "nearest-exact") and not all(map(_is_whole, plans)):
        return _nearest(A, x, plans)
    if first.mode == "cubic" and len(plans) == 1:
        one = Resampling(1, 1, first.mode, first.align_corners, None, first.antialias)
        return A.squeeze(interpolate(A, A.expand_dims(x, (2,)), (one, *plans)), (2,))
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
    """Is it a size that stays, or a whole multiple of it? Of others a runtime may read the neighbour."""
    if plan.ratio is not None:
        return (1.0 / plan.ratio).is_integer()
    return same_size(plan.out, plan.out // plan.size * plan.size)


def _nearest(A: OnnxEngine, x: Array, plans: tuple[Resampling, ...]) -> Array:
    """A gather an axis, of places as the definition has them: in whole numbers, or in f64."""
    for axis, plan in enumerate(plans, 2):
        if same_size(plan.size, plan.out) and plan.ratio in (None, 1.0):
            continue
        number = A.int_mul(A.int_arange(0, plan.out, 1, A.device_of(x)), 2)  # of halves of an element
        number = A.int_add(number, 1) if plan.mode == "nearest-exact" else number
        if plan.ratio is None:
            places = combined(A, "Div", (A.int_mul(number, plan.size), 2 * plan.out), Int, Int)
        else:
            wide = A.emit("Cast", [number], (plan.out,), Float, to=_F64)
            wide = A.emit("Mul", [wide, current().constant(np.array(plan.ratio / 2.0))], (plan.out,), Float)
            places = A.int_minimum(A.to_kind(wide, Int), plan.size - 1)  # Cast cuts off what is behind the point
        x = A.take(x, places, axis)
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
