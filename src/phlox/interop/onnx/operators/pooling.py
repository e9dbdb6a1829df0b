"""Windows of convolutions and pooling as ONNX describes them, and pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from phlox.interop.onnx.node import Node
from phlox.interop.onnx.registry import Array, operators
from phlox.tensor import Tensor, functional, tensor, zeros

X = Tensor[Any, Any, Any]

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """The options of a window, one entry for each spatial axis."""

    sides: Sizes
    strides: Sizes
    dilations: Sizes
    pads: tuple[tuple[int, int], ...]
    """As the node gives them."""
    ends: Sizes
    """Extra padding at the end of each axis, for the last window if the counts are rounded up."""
    counts: Sizes
    """How many windows there are."""

    @property
    def padded(self) -> tuple[tuple[int, int], ...]:
        """The padding, with the extra padding for rounding up."""
        return tuple((a, max(b + extra, 0)) for (a, b), extra in zip(self.pads, self.ends, strict=True))


def node_window(node: Node, spatial: Sequence[int], sides: Sequence[int]) -> Window:
    """The window of a node over axes of these sizes."""
    rank = len(spatial)
    strides = tuple(node.get("strides") or [1] * rank)
    dilations = tuple(node.get("dilations") or [1] * rank)
    reach = [(side - 1) * step + 1 for side, step in zip(sides, dilations, strict=True)]
    pads = _pads(node, spatial, reach, strides)
    counts: list[int] = []
    ends: list[int] = []
    for size, far, step, (before, after) in zip(spatial, reach, strides, pads, strict=True):
        room = size + before + after - far
        count = room // step + 1
        if node.get("ceil_mode", 0):
            count = -(-room // step) + 1
            if (count - 1) * step >= size + before:
                count -= 1
        counts.append(count)
        ends.append((count - 1) * step + far - (size + before + after))
    return Window(tuple(sides), strides, dilations, pads, tuple(max(end, 0) for end in ends), tuple(counts))


def _pads(
    node: Node, spatial: Sequence[int], reach: Sequence[int], strides: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    auto = node.get("auto_pad", "NOTSET")
    rank = len(spatial)
    if auto == "VALID":
        return ((0, 0),) * rank
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        pads: list[tuple[int, int]] = []
        for size, far, step in zip(spatial, reach, strides, strict=True):
            total = max((-(-size // step) - 1) * step + far - size, 0)
            small, large = total // 2, total - total // 2
            pads.append((small, large) if auto == "SAME_UPPER" else (large, small))
        return tuple(pads)
    sizes = list(node.get("pads") or [0] * 2 * rank)
    return tuple(zip(sizes[:rank], sizes[rank:], strict=True))


def positions(window: Window, axis: int) -> np.ndarray[Any, Any]:
    """The positions [windows, side] along a padded axis."""
    starts = np.arange(window.counts[axis]) * window.strides[axis]
    return starts[:, None] + np.arange(window.sides[axis]) * window.dilations[axis]


def windows_of(x: X, window: Window, value: float) -> X:
    """The windows of x [n, channels, *spatial] as [n, channels, *counts, elements of the window]."""
    rank = len(window.sides)
    x = x.pad(((0, 0), (0, 0), *window.padded), value)
    for axis in range(rank):
        where = tensor(positions(window, axis), device=x.device)
        x = x.take(where, 2 + 2 * axis)
    order = (0, 1, *(2 + 2 * axis for axis in range(rank)), *(3 + 2 * axis for axis in range(rank)))
    x = x.permute_dims(order)
    return x.reshape((*x.shape[: 2 + rank], math.prod(window.sides)))


_MAX: dict[int, Any] = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVG: dict[int, Any] = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


def _is_usual(window: Window) -> bool:
    """Can Phlox's pooling do it: no window of padding alone, and no rounding up?"""
    fits = all(max(pad) < side for pad, side in zip(window.pads, window.sides, strict=True))
    return fits and not any(window.ends) and len(window.sides) in _MAX


def _max_pool(node: Node, x: X) -> Any:
    window = node_window(node, x.shape[2:], node.get("kernel_shape"))
    whole = x.kind.name == "int"
    if not node.wants(1) and _is_usual(window) and not whole:
        return _MAX[x.ndim - 2](x, window.sides, stride=window.strides, padding=window.pads, dilation=window.dilations)
    values = windows_of(x.float() if whole else x, window, -math.inf)
    y = values.max(-1)
    y = y.int() if whole else y
    if not node.wants(1):
        return y
    best = values.argmax(-1, keepdims=True)
    flat = _flat_indices(node, x, window)
    indices = tensor(flat, device=x.device).broadcast_to(values.shape).take_along_axis(best, -1).squeeze(-1)
    return y, indices


def _flat_indices(node: Node, x: X, window: Window) -> np.ndarray[Any, Any]:
    """The indices of each window's elements in the flattened x: [n, channels, *counts, elements]."""
    spatial, rank = x.shape[2:], len(window.sides)
    steps = [math.prod(spatial[axis + 1 :]) for axis in range(rank)]
    if node.get("storage_order", 0):
        steps = [math.prod(spatial[:axis]) for axis in range(rank)]
    total: Any = 0
    for axis in range(rank):
        where = positions(window, axis) - window.pads[axis][0]
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = where.shape
        total = total + (where * steps[axis]).reshape(shape)
    flat = np.broadcast_to(total, (*window.counts, *window.sides)).reshape((*window.counts, -1))
    images = np.arange(x.shape[0] * x.shape[1]).reshape(x.shape[:2] + (1,) * (rank + 1)) * math.prod(spatial)
    return flat + images


def _max_unpool(node: Node, x: X, indices: X, shape: Array | None = None) -> X:
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
    padding = [(0, int(want) - have) for want, have in zip(shape, natural, strict=True)]
    return y.pad(tuple(padding))


def _average_pool(node: Node, x: X) -> X:
    window = node_window(node, x.shape[2:], node.get("kernel_shape"))
    counted = bool(node.get("count_include_pad", 0))
    if _is_usual(window) and all(step == 1 for step in window.dilations):
        return _AVG[x.ndim - 2](x, window.sides, stride=window.strides, padding=window.pads, count_include_pad=counted)
    total = windows_of(x, window, 0.0).sum(-1)
    return total / tensor(_counts(window, x.shape[2:], counted=counted), device=x.device)


def _counts(window: Window, spatial: tuple[int, ...], *, counted: bool) -> np.ndarray[Any, Any]:
    """The number of elements of each window; with `counted`, the padding that the node gives counts too."""
    total: Any = np.ones(())
    for axis, size in enumerate(spatial):
        where = positions(window, axis) - window.pads[axis][0]
        low, high = (-window.pads[axis][0], size + window.pads[axis][1]) if counted else (0, size)
        total = np.multiply.outer(total, ((where >= low) & (where < high)).sum(-1))
    return np.maximum(total, 1.0)


def _lp_pool(node: Node, x: X) -> X:
    window = node_window(node, x.shape[2:], node.get("kernel_shape"))
    p = float(node.get("p", 2))
    return (windows_of(x, window, 0.0).abs() ** p).sum(-1) ** (1.0 / p)


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
    }
)
