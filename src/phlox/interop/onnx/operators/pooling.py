"""Pooling."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from phlox.interop.onnx.node import Node
from phlox.interop.onnx.operators.windows import Window, places, window, windows_of
from phlox.interop.onnx.registry import operators
from phlox.tensor import Tensor, functional, tensor, zeros

X = Tensor[Any, Any, Any]

_MAX: dict[int, Any] = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVG: dict[int, Any] = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


def _is_usual(one: Window) -> bool:
    """Can Phlox's pooling do it: no window of padding alone, and no rounding up?"""
    fits = all(max(pad) < side for pad, side in zip(one.pads, one.sides, strict=True))
    return fits and not any(one.ends) and len(one.sides) in _MAX


def _max_pool(node: Node, x: X) -> Any:
    one = window(node, x.shape[2:], node.get("kernel_shape"))
    whole = x.kind.name == "int"
    if not node.wants(1) and _is_usual(one) and not whole:
        return _MAX[x.ndim - 2](x, one.sides, stride=one.strides, padding=one.pads, dilation=one.dilations)
    values = windows_of(x.float() if whole else x, one, -math.inf)
    y = values.max(-1)
    y = y.int() if whole else y
    if not node.wants(1):
        return y
    best = values.argmax(-1, keepdims=True)
    flat = _flat_places(node, x, one)
    found = tensor(flat, device=x.device).broadcast_to(values.shape).take_along_axis(best, -1).squeeze(-1)
    return y, found


def _flat_places(node: Node, x: X, one: Window) -> np.ndarray[Any, Any]:
    """For each window, where its elements lie in x as a vector: [n, channels, *counts, elements]."""
    spatial, rank = x.shape[2:], len(one.sides)
    steps = [math.prod(spatial[axis + 1 :]) for axis in range(rank)]
    if node.get("storage_order", 0):
        steps = [math.prod(spatial[:axis]) for axis in range(rank)]
    total: Any = 0
    for axis in range(rank):
        where = places(one, axis) - one.pads[axis][0]
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = where.shape
        total = total + (where * steps[axis]).reshape(shape)
    flat = np.broadcast_to(total, (*one.counts, *one.sides)).reshape((*one.counts, -1))
    images = np.arange(x.shape[0] * x.shape[1]).reshape(x.shape[:2] + (1,) * (rank + 1)) * math.prod(spatial)
    return flat + images


def _max_unpool(node: Node, x: X, indices: X, shape: np.ndarray[Any, Any] | None = None) -> X:
    spatial = x.shape[2:]
    sides, rank = node.get("kernel_shape"), len(spatial)
    strides = node.get("strides") or [1] * rank
    pads = node.get("pads") or [0] * 2 * rank
    sizes = [
        (have - 1) * strides[axis] + sides[axis] - pads[axis] - pads[axis + rank] for axis, have in enumerate(spatial)
    ]
    natural = (*x.shape[:2], *sizes)
    y = zeros((math.prod(natural),), device=x.device).scatter(0, indices.reshape(-1), x.reshape(-1)).reshape(natural)
    if shape is None:
        return y
    more = [(0, int(want) - have) for want, have in zip(shape, natural, strict=True)]
    return y.pad(tuple(more))


def _average_pool(node: Node, x: X) -> X:
    one = window(node, x.shape[2:], node.get("kernel_shape"))
    counted = bool(node.get("count_include_pad", 0))
    if _is_usual(one) and all(step == 1 for step in one.dilations):
        return _AVG[x.ndim - 2](x, one.sides, stride=one.strides, padding=one.pads, count_include_pad=counted)
    total = windows_of(x, one, 0.0).sum(-1)
    return total / tensor(_counts(one, x.shape[2:], counted=counted), device=x.device)


def _counts(one: Window, spatial: tuple[int, ...], *, counted: bool) -> np.ndarray[Any, Any]:
    """How many elements each window has, without padding, or with that which the node gives."""
    total: Any = np.ones(())
    for axis, size in enumerate(spatial):
        where = places(one, axis) - one.pads[axis][0]
        low, high = (-one.pads[axis][0], size + one.pads[axis][1]) if counted else (0, size)
        total = np.multiply.outer(total, ((where >= low) & (where < high)).sum(-1))
    return np.maximum(total, 1.0)


def _lp_pool(node: Node, x: X) -> X:
    one = window(node, x.shape[2:], node.get("kernel_shape"))
    p = float(node.get("p", 2))
    return (windows_of(x, one, 0.0).abs() ** p).sum(-1) ** (1.0 / p)


def _spatial(x: X) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


operators(
    {
        "MaxPool": _max_pool,
        "AveragePool": _average_pool,
        "LpPool": _lp_pool,
        "MaxUnpool": _max_unpool,
        "GlobalAveragePool": lambda node, x: x.mean(_spatial(x), keepdims=True),
        "GlobalMaxPool": lambda node, x: x.max(_spatial(x), keepdims=True),
        "GlobalLpPool": lambda node, x: x.norm(float(node.get("p", 2)), _spatial(x), keepdims=True),
    },
    static={"MaxUnpool": (2,)},
)
