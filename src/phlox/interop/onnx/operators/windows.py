"""Windows of convolutions and pooling as ONNX describes them: padding by name, rounding, and the windows themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from phlox.interop.onnx.node import Node
from phlox.tensor import Tensor, tensor

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
    """More padding at the end, so that rounding up has all of its windows; negative where one is left out."""
    counts: Sizes
    """How many windows there are."""

    @property
    def padded(self) -> tuple[tuple[int, int], ...]:
        """The padding with what rounding up adds."""
        return tuple((a, max(b + more, 0)) for (a, b), more in zip(self.pads, self.ends, strict=True))


def window(node: Node, spatial: Sequence[int], sides: Sequence[int]) -> Window:
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
        found: list[tuple[int, int]] = []
        for size, far, step in zip(spatial, reach, strides, strict=True):
            total = max((-(-size // step) - 1) * step + far - size, 0)
            small, large = total // 2, total - total // 2
            found.append((small, large) if auto == "SAME_UPPER" else (large, small))
        return tuple(found)
    given = list(node.get("pads") or [0] * 2 * rank)
    return tuple(zip(given[:rank], given[rank:], strict=True))


def places(one: Window, axis: int) -> np.ndarray[Any, Any]:
    """The places [windows, side] along a padded axis."""
    starts = np.arange(one.counts[axis]) * one.strides[axis]
    return starts[:, None] + np.arange(one.sides[axis]) * one.dilations[axis]


def windows_of(x: X, one: Window, value: float) -> X:
    """The windows of x [n, channels, *spatial] as [n, channels, *counts, elements of the window]."""
    rank = len(one.sides)
    x = x.pad(((0, 0), (0, 0), *one.padded), value)
    for axis in range(rank):
        where = tensor(places(one, axis), device=x.device)
        x = x.take(where, 2 + 2 * axis)
    order = (0, 1, *(2 + 2 * axis for axis in range(rank)), *(3 + 2 * axis for axis in range(rank)))
    x = x.permute_dims(order)
    return x.reshape((*x.shape[: 2 + rank], math.prod(one.sides)))
