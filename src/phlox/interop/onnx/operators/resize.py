"""Resizing: every axis by a table of the elements, and their weights, that make each element of the result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from phlox.errors import RangeError
from phlox.interop.onnx.node import Node
from phlox.interop.onnx.operators.shape import checked_size
from phlox.interop.onnx.registry import Array, operators
from phlox.tensor import Tensor, matmul, tensor, where

X = Tensor[Any, Any, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """How one axis is resized."""

    size: int
    out: int
    scale: float
    mode: str
    coordinates: str
    nearest: str
    cubic: float
    exclude: bool
    antialias: bool
    region: tuple[float, float]


def _sources(plan: Plan) -> Array:
    """Where the elements of the result lie in the axis."""
    x = np.arange(plan.out, dtype=np.float64)
    scale, size = plan.scale, plan.size
    length = scale * size  # of the result, before it is rounded down
    match plan.coordinates:
        case "asymmetric":
            return x / scale
        case "align_corners":
            return x * (0.0 if plan.out == 1 else (size - 1) / (length - 1)) if length != 1 else x * 0.0
        case "pytorch_half_pixel":
            return (x + 0.5) / scale - 0.5 if length > 1 else x * 0.0 - 0.5
        case "half_pixel_symmetric":
            centre = size / 2 * (1 - plan.out / length)
            return centre + (x + 0.5) / scale - 0.5
        case "tf_half_pixel_for_nn":
            return (x + 0.5) / scale
        case "tf_crop_and_resize":
            start, end = plan.region
            if plan.out > 1:
                return start * (size - 1) + x * (end - start) * (size - 1) / (length - 1)
            return x * 0.0 + 0.5 * (start + end) * (size - 1)
        case "half_pixel":
            return (x + 0.5) / scale - 0.5
        case other:
            raise RangeError(f"Resize: coordinate_transformation_mode {other!r} is not known")


def _nearest(points: Array, mode: str) -> Array:
    match mode:
        case "round_prefer_floor":
            return np.where(points == np.floor(points) + 0.5, np.floor(points), np.round(points))
        case "round_prefer_ceil":
            return np.where(points == np.floor(points) + 0.5, np.ceil(points), np.round(points))
        case "floor":
            return np.floor(points)
        case "ceil":
            return np.ceil(points)
        case other:
            raise RangeError(f"Resize: nearest_mode {other!r} is not known")


def _kernel(x: Array, mode: str, a: float) -> Array:
    x = np.abs(x)
    if mode == "linear":
        return np.maximum(1.0 - x, 0.0)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = ((x - 5.0) * x + 8.0) * x * a - 4.0 * a
    return np.where(x <= 1.0, near, np.where(x < 2.0, far, 0.0))


def table(plan: Plan) -> tuple[Array, Array, Array]:
    """Indices and weights, both [out, taps], and which elements of the result lie outside of the axis."""
    points = _sources(plan)
    outside = (points < 0) | (points > plan.size - 1)
    if plan.mode == "nearest":
        indices = np.clip(_nearest(points, plan.nearest), 0, plan.size - 1).astype(np.int64)
        return indices[:, None], np.ones((plan.out, 1)), outside
    width = max(1.0 / plan.scale, 1.0) if plan.antialias else 1.0
    reach = (1.0 if plan.mode == "linear" else 2.0) * width
    low = np.floor(points - reach) + 1
    taps = np.arange(math.ceil(2 * reach) + (1 if plan.antialias else 0))
    raw = low[:, None] + taps
    weights = _kernel((raw - points[:, None]) / width, plan.mode, plan.cubic)
    inside = (raw >= 0) & (raw <= plan.size - 1)
    if plan.exclude:
        weights = np.where(inside, weights, 0.0)
    total = weights.sum(1, keepdims=True)
    weights = weights / np.where(total == 0.0, 1.0, total)
    return np.clip(raw, 0, plan.size - 1).astype(np.int64), weights, outside


def _along(x: X, axis: int, plan: Plan) -> X:
    indices, weights, _ = table(plan)
    device = x.device
    if indices.shape[1] > 4:
        dense = np.zeros((plan.out, plan.size))
        np.add.at(dense, (np.arange(plan.out)[:, None], indices), weights)
        return matmul(x.moveaxis(axis, -1), tensor(dense.T, device=device)).moveaxis(-1, axis)
    result = None
    shape = (-1, *(1,) * (x.ndim - 1 - axis))
    for tap in range(indices.shape[1]):
        part = x.take(tensor(indices[:, tap], device=device), axis)
        if plan.mode != "nearest":
            part = part * tensor(weights[:, tap], device=device).reshape(shape)
        result = part if result is None else result + part
    assert result is not None
    return result


def _resize(node: Node, x: X, roi: Array | None = None, scales: Array | None = None, sizes: Array | None = None) -> X:
    axes = [axis % x.ndim for axis in node.get("axes") or range(x.ndim)]
    old_sizes = [x.shape[axis] for axis in axes]
    if sizes is not None and sizes.size:
        new_sizes = [int(size) for size in sizes]
        factors = [new / old for new, old in zip(new_sizes, old_sizes, strict=True)]
        policy = node.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(factors)
            new_sizes = [math.floor(old * factor + 0.5) for old in old_sizes]
    else:
        assert scales is not None
        factors = [float(scale) for scale in scales]
        new_sizes = [math.floor(old * factor) for old, factor in zip(old_sizes, factors, strict=True)]
    return resized(node, x, axes, new_sizes, factors, roi)


def resized(
    node: Node, x: X, axes: Sequence[int], new_sizes: Sequence[int], factors: Sequence[float], roi: Array | None
) -> X:
    """`x` with some axes resized."""
    shape = list(x.shape)
    for axis, new_size in zip(axes, new_sizes, strict=True):
        shape[axis] = new_size
    checked_size(node.operator, shape)
    coordinates = node.get("coordinate_transformation_mode", "half_pixel")
    outside: list[tuple[int, Array]] = []
    for index, (axis, new_size, factor) in enumerate(zip(axes, new_sizes, factors, strict=True)):
        region = (0.0, 1.0)
        if roi is not None and roi.size == 2 * len(axes):
            region = (float(roi[index]), float(roi[index + len(axes)]))
        plan = Plan(
            x.shape[axis], new_size, factor, node.get("mode", "nearest").replace("bilinear", "linear"), coordinates,
            node.get("nearest_mode", "round_prefer_floor"), node.get("cubic_coeff_a", -0.75),
            bool(node.get("exclude_outside", 0)), bool(node.get("antialias", 0)) and factor < 1.0, region,
        )  # fmt: skip
        if new_size == plan.size and factor == 1.0 and coordinates != "tf_crop_and_resize":
            continue
        outside.append((axis, table(plan)[2]))
        x = _along(x, axis, plan)
    if coordinates == "tf_crop_and_resize":
        for axis, beyond in outside:
            mask = tensor(beyond, device=x.device).reshape((-1, *(1,) * (x.ndim - 1 - axis)))
            x = where(mask.broadcast_to(x.shape), node.get("extrapolation_value", 0.0), x)
    return x


def _resize_10(node: Node, x: X, scales: Array) -> X:
    return _simple(node, x, [float(scale) for scale in scales])


def _upsample_7(node: Node, x: X) -> X:
    return _simple(node, x, list(node.get("scales")))


def _simple(node: Node, x: X, factors: list[float]) -> X:
    """Before opset 11."""
    defaults: dict[str, Any] = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    attributes = {**node.attributes, **defaults}
    old = Node(node.operator, node.domain, node.version, node.name, node.inputs, node.outputs, attributes)
    new_sizes = [math.floor(size * factor) for size, factor in zip(x.shape, factors, strict=True)]
    return resized(old, x, range(x.ndim), new_sizes, factors, None)


operators({"Resize": _resize_10}, since=10)
operators({"Resize": _resize}, since=11)
operators({"Upsample": _upsample_7}, since=7)
operators({"Upsample": _resize_10}, since=9)
