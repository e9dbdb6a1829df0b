"""Sampling of images at points between the pixels, and choosing among boxes."""

from __future__ import annotations

from typing import Any

import numpy as np

from phlox.interop.onnx.elements import host
from phlox.interop.onnx.node import Node
from phlox.interop.onnx.operators.convolution import bilinear
from phlox.interop.onnx.registry import Array, operators
from phlox.tensor import Tensor, functional, stack, tensor, zeros

X = Tensor[Any, Any, Any]

_MODES: dict[str, Any] = {
    "bilinear": "bilinear", "linear": "bilinear", "nearest": "nearest", "bicubic": "bicubic", "cubic": "bicubic",
}  # fmt: skip


def _grid_sample(node: Node, x: X, grid: X) -> X:
    return functional.grid_sample(
        x,
        grid,
        mode=_MODES[node.get("mode", "bilinear")],
        padding_mode=node.get("padding_mode", "zeros"),
        align_corners=bool(node.get("align_corners", 0)),
    )


def _affine_grid(node: Node, theta: X, size: Array) -> X:
    sizes = [int(length) for length in size]
    return functional.affine_grid(theta, sizes, align_corners=bool(node.get("align_corners", 0)))


def _roi_align(node: Node, x: X, rois: Array, batch: Array) -> X:
    """He et al. 2017: each region as a grid of cells, each the mean (or largest) of points in it."""
    rows: int = node.get("output_height", 1)
    columns: int = node.get("output_width", 1)
    ratio: int = node.get("sampling_ratio", 0)
    scale: float = node.get("spatial_scale", 1.0)
    mode = node.get("coordinate_transformation_mode", "half_pixel" if node.version >= 16 else "output_half_pixel")
    shift = 0.5 if mode == "half_pixel" else 0.0
    height, width = x.shape[2:]
    results: list[X] = []
    for roi, image in zip(rois.astype(np.float64), batch.astype(np.int64), strict=True):
        left, top, right, bottom = (float(edge) * scale - shift for edge in roi)
        tall, wide = bottom - top, right - left
        if shift == 0.0:
            tall, wide = max(tall, 1.0), max(wide, 1.0)
        down = ratio or int(np.ceil(tall / rows))
        across = ratio or int(np.ceil(wide / columns))
        y = top + (np.arange(rows * down) + 0.5) * tall / (rows * down)
        z = left + (np.arange(columns * across) + 0.5) * wide / (columns * across)
        image_batch = x[int(image)].expand_dims(0)
        inside = ((y >= -1) & (y <= height))[:, None] & ((z >= -1) & (z <= width))[None, :]
        grid = np.meshgrid(np.clip(y, 0, height - 1), np.clip(z, 0, width - 1), indexing="ij")
        at_y, at_x = (tensor(part[None], device=x.device) for part in grid)
        if node.get("mode", "avg") == "max":
            read = _largest_corner(image_batch, *grid) * tensor(inside.astype(np.float64), device=x.device)
        else:
            read = bilinear(image_batch, at_y, at_x) * tensor(inside.astype(np.float64), device=x.device)
        cells = read.reshape((x.shape[1], rows, down, columns, across))
        results.append(cells.max((2, 4)) if node.get("mode", "avg") == "max" else cells.mean((2, 4)))

    return stack(results) if results else zeros((0, x.shape[1], rows, columns), device=x.device)


def _largest_corner(x: X, y: Array, z: Array) -> X:
    """The largest of the four weighted corners of each point."""
    height, width = x.shape[2:]
    flat = x.reshape((x.shape[1], height * width))
    result = None
    for down in (0, 1):
        for right in (0, 1):
            r, c = np.minimum(np.floor(y) + down, height - 1), np.minimum(np.floor(z) + right, width - 1)
            share = np.abs(1 - down - (y - np.floor(y))) * np.abs(1 - right - (z - np.floor(z)))
            where = tensor((r * width + c).astype(np.int64).reshape(-1), device=x.device)
            part = flat.take(where, 1).reshape((1, x.shape[1], *y.shape)) * tensor(share, device=x.device)
            result = part if result is None else result.maximum(part)
    assert result is not None
    return result


def _max_roi_pool(node: Node, x: X, rois: Array) -> X:
    rows, columns = node.get("pooled_shape")
    scale = node.get("spatial_scale", 1.0)
    height, width = x.shape[2:]
    results: list[X] = []

    for roi in rois:
        left, top, right, bottom = (round(float(v) * scale) for v in roi[1:])
        tall, wide = max(bottom - top + 1, 1), max(right - left + 1, 1)
        image = x[int(roi[0])]
        cells: list[X] = []
        for row in range(rows):
            for column in range(columns):
                y0, y1 = (int(np.floor(row * tall / rows)) + top, int(np.ceil((row + 1) * tall / rows)) + top)
                x0, x1 = (
                    int(np.floor(column * wide / columns)) + left,
                    int(np.ceil((column + 1) * wide / columns)) + left,
                )
                y0, y1 = (min(max(v, 0), height) for v in (y0, y1))
                x0, x1 = (min(max(v, 0), width) for v in (x0, x1))
                empty = y1 <= y0 or x1 <= x0
                cells.append(image[:, 0, 0] * 0.0 if empty else image[:, y0:y1, x0:x1].max((1, 2)))
        results.append(stack(cells, -1).reshape((x.shape[1], rows, columns)))
    return stack(results) if results else zeros((0, x.shape[1], rows, columns), device=x.device)


operators(
    {"GridSample": _grid_sample, "AffineGrid": _affine_grid, "RoiAlign": _roi_align, "MaxRoiPool": _max_roi_pool},
)


def _box_corners(boxes: Array, centred: bool) -> Array:
    """Boxes as [y1, x1, y2, x2] with y1 <= y2 and x1 <= x2."""
    if centred:
        x, y, width, height = boxes.T
        return np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], 1)
    y1, x1, y2, x2 = boxes.T
    return np.stack([np.minimum(y1, y2), np.minimum(x1, x2), np.maximum(y1, y2), np.maximum(x1, x2)], 1)


def _overlap(box: Array, others: Array) -> Array:
    """The intersection of a box with others over their union."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    common = np.prod(np.maximum(high - low, 0.0), 1)
    area = np.prod(box[2:] - box[:2]) + np.prod(others[:, 2:] - others[:, :2], 1) - common
    return np.where(area > 0, common / np.where(area > 0, area, 1.0), 0.0)


def _suppressed(
    node: Node,
    boxes: Array,
    scores: Array,
    most: Array | None = None,
    iou: Array | None = None,
    low: Array | None = None,
) -> Any:
    count = 0 if most is None else int(most.reshape(-1)[0])
    limit = 0.0 if iou is None else float(iou.reshape(-1)[0])
    selected: list[tuple[int, int, int]] = []
    for image in range(scores.shape[0]):
        corners = _box_corners(boxes[image].astype(np.float64), bool(node.get("center_point_box", 0)))
        for group in range(scores.shape[1]):
            class_scores = scores[image, group]
            order = np.argsort(-class_scores, kind="stable")
            if low is not None:
                order = order[class_scores[order] > float(low.reshape(-1)[0])]
            chosen: list[int] = []
            while order.size and len(chosen) < count:
                best, order = int(order[0]), order[1:]
                chosen.append(best)
                order = order[_overlap(corners[best], corners[order]) <= limit]
            selected += [(image, group, box) for box in chosen]
    return host(np.array(selected, np.int64).reshape(-1, 3))


operators({"NonMaxSuppression": _suppressed}, since=10)
