"""Reductions, scans and orders along axes, as operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from phlox.backend import Bool, Float, Int
from phlox.backend.contract.types import Array, Axes
from phlox.backend.tracing.dimension import is_open
from phlox.export.to_onnx.graph import current
from phlox.transform.abstract.rules import without

if TYPE_CHECKING:
    from phlox.export.to_onnx.engine import OnnxEngine, Value


def reduction(op: str) -> Callable[..., Array]:
    """A reduction over axes."""

    def rule(A: OnnxEngine, x: Value, axes: Axes, keepdims: bool) -> Array:
        if not axes:
            return x
        operands = [x, current().integers(axes)]
        return A.emit(op, operands, without(x.shape, axes, keepdims), x.kind, keepdims=int(keepdims))

    return rule


def mean(A: OnnxEngine, x: Value, axes: Axes, keepdims: bool) -> Array:
    """ReduceMean, which gives zero for no elements: for an open count n, 0 / n is added, which is NaN for n = 0."""
    y = reduction("ReduceMean")(A, x, axes, keepdims)
    count = math.prod([x.shape[axis] for axis in axes])
    return A.float_add(y, count * 0.0 / count) if is_open(count) else y


def any_of(A: OnnxEngine, x: Value, axes: Axes, keepdims: bool) -> Array:
    """Is the number of true elements not zero?"""
    return A.to_kind(A.int_sum(A.to_kind(x, Int), axes, keepdims), Bool)


def all_of(A: OnnxEngine, x: Value, axes: Axes, keepdims: bool) -> Array:
    """Is no element false?"""
    return A.bool_not(any_of(A, A.bool_not(x), axes, keepdims))


def arg_reduction(op: str) -> Callable[..., Array]:
    """ArgMax and ArgMin: the index of the first of equal elements."""

    def rule(A: OnnxEngine, x: Value, axis: int) -> Array:
        (name,) = current().add(op, [x.name], axis=axis, keepdims=0)
        return _index(A, name, without(x.shape, (axis,), False))

    return rule


def _index(A: OnnxEngine, name: str, shape: tuple[int, ...]) -> Array:
    """64-bit integers, converted to this engine's integers."""
    if A.int_element == "i64":
        return A.named(name, shape, Int)
    return A.emit("Cast", [name], shape, Int, to=A.type_of(Int))


def cumsum(A: OnnxEngine, x: Value, axis: int) -> Array:
    """CumSum."""
    return A.emit("CumSum", [x, current().constant(np.array(axis, np.int64))], x.shape, x.kind)


def along(op: str) -> Callable[..., Array]:
    """An operator along one axis."""

    def rule(A: OnnxEngine, x: Value, axis: int) -> Array:
        return A.emit(op, [x], x.shape, Float, axis=axis)

    return rule


def _topk(A: OnnxEngine, x: Value, k: int, axis: int, largest: bool) -> tuple[str, Any]:
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    names = current().add("TopK", [x.name, current().size(k)], 2, axis=axis, largest=int(largest), sorted=1)
    return names[1], shape


def argsort(A: OnnxEngine, x: Value, axis: int, descending: bool) -> Array:
    """TopK of all elements: equal elements keep their order, in either direction."""
    return _index(A, *_topk(A, x, x.shape[axis], axis, descending))


def argtopk(A: OnnxEngine, x: Value, k: int, axis: int, largest: bool) -> Array:
    """TopK."""
    return _index(A, *_topk(A, x, k, axis, largest))
