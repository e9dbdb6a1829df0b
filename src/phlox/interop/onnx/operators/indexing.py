"""Reading and writing at indices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from phlox.interop.onnx.elements import cast, known_to_numpy, values_of
from phlox.interop.onnx.node import Node
from phlox.interop.onnx.registry import Array, operators
from phlox.tensor import Tensor, arange, one_hot, stack, tensor, where

X = Tensor[Any, Any, Any]
_MODES: dict[str, Any] = {"none": "set", "add": "add", "mul": "mul", "min": "min", "max": "max"}


def from_start(indices: X, size: int) -> X:
    """Indices counted from the start; negative ones count from the end."""
    return where(indices < 0, indices + size, indices)


def _gather(node: Node, x: X, indices: X) -> X:
    axis: int = node.get("axis", 0)
    return x.take(from_start(indices, x.shape[axis]), axis)


def _gather_elements(node: Node, x: X, indices: X) -> X:
    axis: int = node.get("axis", 0)
    return x.gather(axis, from_start(indices, x.shape[axis]))


def _flat_index(indices: X, sizes: tuple[int, ...]) -> X:
    """Index tuples in the last axis as flat indices in row-major order."""
    flat_index = None
    for axis, size in enumerate(sizes):
        index = from_start(indices[..., axis], size)
        flat_index = index if flat_index is None else flat_index * size + index
    assert flat_index is not None
    return flat_index


def _gather_nd(node: Node, x: X, indices: X) -> X:
    batch, depth = node.get("batch_dims", 0), indices.shape[-1]
    sizes = x.shape[batch : batch + depth]
    trailing, lead = x.shape[batch + depth :], x.shape[:batch]
    rows = math.prod(lead)
    flat = x.reshape((rows * math.prod(sizes), *trailing))
    flat_indices = _flat_index(indices, sizes).reshape((rows, -1))
    offset = arange(rows, device=x.device).reshape((rows, 1)) * math.prod(sizes)
    slices = flat.take((flat_indices + offset).reshape(-1), 0)
    return slices.reshape((*lead, *indices.shape[batch:-1], *trailing))


def _scatter_elements(node: Node, x: X, indices: X, updates: X) -> X:
    axis: int = node.get("axis", 0)
    return x.scatter(axis, from_start(indices, x.shape[axis]), updates, _MODES[node.get("reduction", "none")])


def _scatter_nd(node: Node, x: X, indices: X, updates: X) -> X:
    depth = indices.shape[-1]
    sizes, trailing = x.shape[:depth], x.shape[depth:]
    flat_indices, width = _flat_index(indices, sizes).reshape(-1), math.prod(trailing)
    flat = x.reshape((math.prod(sizes), width))
    rows = flat_indices.expand_dims(-1).broadcast_to((flat_indices.size, width))
    mode = _MODES[node.get("reduction", "none")]
    return flat.scatter(0, rows, updates.reshape((flat_indices.size, width)), mode).reshape(x.shape)


def _one_hot(node: Node, indices: X, depth: Array, values: X) -> X:
    count = int(depth.reshape(-1)[0])
    classes = indices if indices.kind.name == "int" else indices.int()
    classes = from_start(classes, count)
    inside = (classes >= 0) & (classes < count)
    hot = one_hot(where(inside, classes, 0), count).bool() & inside.expand_dims(-1)
    off, on = values[0], values[1]
    axis = node.get("axis", -1)
    return where(hot, on, off).moveaxis(-1, axis)


def _compress(node: Node, x: X, condition: Array) -> X:
    axis = node.get("axis")
    indices = tensor(np.nonzero(condition)[0], device=x.device)
    return x.reshape(-1).take(indices, 0) if axis is None else x.take(indices, axis)


def _non_zero(node: Node, x: X) -> X:
    return stack(list(x.nonzero()), 0) if x.ndim else x.reshape(1).bool().nonzero()[0].expand_dims(0)[:0]


def _tensor_scatter(node: Node, past: X, update: X, starts: X | None = None) -> X:
    axis: int = node.get("axis", -2) % past.ndim
    length = update.shape[axis]
    batch = past.shape[0]
    first = arange(batch, device=past.device) * 0 if starts is None else starts
    positions = first.reshape((batch, 1)) + arange(length, device=past.device)
    if node.get("mode", "linear") == "circular":
        positions = positions % past.shape[axis]
    shape = [batch] + [1] * (past.ndim - 1)
    shape[axis] = length
    return past.scatter(axis, positions.reshape(tuple(shape)).broadcast_to(update.shape), update)


def _bit_cast(node: Node, x: X) -> X:
    from phlox.interop.onnx.reading import onnx

    helper = onnx().helper
    before, after = (helper.tensor_dtype_to_np_dtype(element) for element in (node.type_of(0), node.element))
    seen = values_of(x).astype(before).view(after)
    return cast(tensor(known_to_numpy(seen), device=x.device), node.element)


operators(
    {
        "Gather": _gather,
        "GatherElements": _gather_elements,
        "GatherND": _gather_nd,
        "Scatter": _scatter_elements,
        "ScatterElements": _scatter_elements,
        "ScatterND": _scatter_nd,
        "OneHot": _one_hot,
        "Compress": _compress,
        "NonZero": _non_zero,
        "TensorScatter": _tensor_scatter,
        "BitCast": _bit_cast,
    }
)
