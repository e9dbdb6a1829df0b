"""Reductions, cumulative sums, sorting."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from phlox.backend import Bool
from phlox.interop.onnx.elements import values_of
from phlox.interop.onnx.node import Node
from phlox.interop.onnx.registry import Array, Compute, operators
from phlox.tensor import Tensor, full, tensor

X = Tensor[Any, Any, Any]
Axes = tuple[int, ...] | None


def _reduction(compute: Callable[[X, Any, bool], X]) -> Compute:
    def computed(node: Node, x: X, axes: Array | None = None) -> X:
        chosen = node.get("axes") if axes is None else axes.tolist()
        if not chosen:
            if node.get("noop_with_empty_axes", 0):
                return compute(x, (), True) if x.ndim else x
            chosen = range(x.ndim)
        return compute(x, tuple(int(axis) for axis in chosen), bool(node.get("keepdims", 1)))

    return computed


def _is_empty(x: X, axes: Axes) -> bool:
    return any(x.shape[axis] == 0 for axis in axes or ())


def _extreme(x: X, axes: Axes, keepdims: bool, *, largest: bool) -> X:
    if x.kind is Bool:
        return x.any(axes, keepdims=keepdims) if largest else x.all(axes, keepdims=keepdims)
    if _is_empty(x, axes):  # Phlox refuses it, ONNX defines it
        reduced = {axis % x.ndim for axis in axes or ()}
        shape = [1 if axis in reduced else size for axis, size in enumerate(x.shape) if keepdims or axis not in reduced]
        return full(tuple(shape), -math.inf if largest else math.inf, device=x.device)
    return x.max(axes, keepdims=keepdims) if largest else x.min(axes, keepdims=keepdims)


def _cumulated(name: str) -> Compute:
    def computed(node: Node, x: X, axis: Array) -> X:
        index = int(axis.reshape(())) if axis.size == 1 else int(axis)
        index = index + x.ndim if index < 0 else index
        if node.get("reverse", 0):
            x = x.flip(index)
        if node.get("exclusive", 0):
            widths = tuple((1, 0) if dim == index else (0, 0) for dim in range(x.ndim))
            first = 1.0 if x.kind.name == "float" else 1
            x = x[tuple(slice(0, size - 1 if dim == index else size) for dim, size in enumerate(x.shape))]
            x = x.pad(widths, first if name == "cumprod" else 0)
        x = getattr(x, name)(index)
        return x.flip(index) if node.get("reverse", 0) else x

    return computed


def _arg(node: Node, x: X, name: str) -> X:
    axis: int = node.get("axis", 0)
    if node.get("select_last_index", 0):
        indices = x.shape[axis] - 1 - getattr(x.flip(axis), name)(axis, keepdims=True)
    else:
        indices = getattr(x, name)(axis, keepdims=True)
    return indices if node.get("keepdims", 1) else indices.squeeze(axis)


def _topk(node: Node, x: X, k: Array | None = None) -> tuple[X, X]:
    count = int(node.get("k") if k is None else k.reshape(-1)[0])
    return x.topk(count, node.get("axis", -1), bool(node.get("largest", 1)))


def _unique(node: Node, x: X) -> tuple[X, ...]:
    values = values_of(x)
    axis = node.get("axis")
    _, first, inverse, counts = np.unique(values, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    inverse = inverse.reshape(-1)
    if not node.get("sorted", 1):
        order = np.argsort(first)
        back = np.argsort(order)
        first, inverse, counts = first[order], back[inverse], counts[order]
    positions = tensor(first.astype(np.int64), device=x.device)
    y = (x.reshape(-1) if axis is None else x).take(positions, 0 if axis is None else axis)
    return y, positions, *(tensor(part.astype(np.int64), device=x.device) for part in (inverse, counts))


_REDUCTIONS = {
    "ReduceSum": _reduction(lambda x, axes, keep: x.sum(axes, keepdims=keep)),
    "ReduceMean": _reduction(lambda x, axes, keep: x.mean(axes, keepdims=keep)),
    "ReduceProd": _reduction(lambda x, axes, keep: x.prod(axes, keepdims=keep)),
    "ReduceMax": _reduction(lambda x, axes, keep: _extreme(x, axes, keep, largest=True)),
    "ReduceMin": _reduction(lambda x, axes, keep: _extreme(x, axes, keep, largest=False)),
    "ReduceL1": _reduction(lambda x, axes, keep: x.abs().sum(axes, keepdims=keep)),
    "ReduceL2": _reduction(lambda x, axes, keep: x.square().sum(axes, keepdims=keep).float().sqrt()),
    "ReduceSumSquare": _reduction(lambda x, axes, keep: x.square().sum(axes, keepdims=keep)),
    "ReduceLogSum": _reduction(lambda x, axes, keep: x.sum(axes, keepdims=keep).log()),
    "ReduceLogSumExp": _reduction(
        lambda x, axes, keep: (
            x.exp().sum(axes, keepdims=keep).log() if _is_empty(x, axes) else x.logsumexp(axes, keepdims=keep)
        )
    ),
}

operators(_REDUCTIONS)
operators(
    {
        "ArgMax": lambda node, x: _arg(node, x, "argmax"),
        "ArgMin": lambda node, x: _arg(node, x, "argmin"),
        "CumSum": _cumulated("cumsum"),
        "CumProd": _cumulated("cumprod"),
        "TopK": _topk,
        "Unique": _unique,
    }
)
