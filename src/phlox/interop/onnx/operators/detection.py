"""Choosing among boxes."""

from __future__ import annotations

from typing import Any

import numpy as np

from phlox.interop.onnx.elements import host
from phlox.interop.onnx.node import Node
from phlox.interop.onnx.registry import operators

Array = np.ndarray[Any, Any]


def _corners(boxes: Array, centred: bool) -> Array:
    """Boxes as [y1, x1, y2, x2] with y1 <= y2 and x1 <= x2."""
    if centred:
        x, y, width, height = boxes.T
        return np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], 1)
    y1, x1, y2, x2 = boxes.T
    return np.stack([np.minimum(y1, y2), np.minimum(x1, x2), np.maximum(y1, y2), np.maximum(x1, x2)], 1)


def _overlap(one: Array, others: Array) -> Array:
    """The intersection of a box with others over their union."""
    low, high = np.maximum(one[:2], others[:, :2]), np.minimum(one[2:], others[:, 2:])
    common = np.prod(np.maximum(high - low, 0.0), 1)
    area = np.prod(one[2:] - one[:2]) + np.prod(others[:, 2:] - others[:, :2], 1) - common
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
    found: list[tuple[int, int, int]] = []
    for image in range(scores.shape[0]):
        corners = _corners(boxes[image].astype(np.float64), bool(node.get("center_point_box", 0)))
        for group in range(scores.shape[1]):
            mine = scores[image, group]
            order = np.argsort(-mine, kind="stable")
            if low is not None:
                order = order[mine[order] > float(low.reshape(-1)[0])]
            chosen: list[int] = []
            while order.size and len(chosen) < count:
                best, order = int(order[0]), order[1:]
                chosen.append(best)
                order = order[_overlap(corners[best], corners[order]) <= limit]
            found += [(image, group, one) for one in chosen]
    return host(np.array(found, np.int64).reshape(-1, 3))


operators({"NonMaxSuppression": _suppressed}, static={"NonMaxSuppression": (0, 1, 2, 3, 4)}, since=10)
