"""Sequences, which are lists of tensors here, and optional values, which are None or a value."""

from __future__ import annotations

from typing import Any

import numpy as np

from phlox.interop.onnx.elements import host
from phlox.interop.onnx.graph import Run
from phlox.interop.onnx.node import Node
from phlox.interop.onnx.registry import operators
from phlox.tensor import Tensor, concat, stack

X = Tensor[Any, Any, Any]
Items = list[Any]
Array = np.ndarray[Any, Any]


def _place(position: Array | None) -> int:
    return -1 if position is None else int(position.reshape(()))


def _construct(node: Node, *items: Any) -> Items:
    return list(items)


def _insert(node: Node, items: Items, item: Any, position: Array | None = None) -> Items:
    place = len(items) if position is None else int(position.reshape(()))
    place = place + len(items) if place < 0 else place
    return [*items[:place], item, *items[place:]]


def _erase(node: Node, items: Items, position: Array | None = None) -> Items:
    place = _place(position) % len(items)
    return [*items[:place], *items[place + 1 :]]


def _split(node: Node, x: X, split: Array | None = None) -> Items:
    axis: int = node.get("axis", 0)
    if split is None:
        parts = x.split(1, axis)
        return parts if node.get("keepdims", 1) else [part.squeeze(axis) for part in parts]
    if split.ndim == 0:
        size, whole = int(split), x.shape[axis]
        return x.split([min(size, whole - start) for start in range(0, whole, size)], axis)
    return x.split([int(size) for size in split], axis)


def _joined(node: Node, items: Items) -> X:
    axis = node.get("axis")
    return stack(items, axis) if node.get("new_axis", 0) else concat(items, axis=axis)


def _map(node: Node, run: Run, values: dict[str, Any], items: Items, *others: Any) -> tuple[Any, ...]:
    body = node.graphs["body"]
    rows = [
        body.run(run, [item, *(other[number] if isinstance(other, list) else other for other in others)], values)
        for number, item in enumerate(items)
    ]
    return tuple([row[place] for row in rows] for place in range(len(body.outputs)))


def _flag(value: bool) -> X:
    return host(np.asarray(value))


operators(
    {
        "SequenceConstruct": _construct,
        "SequenceEmpty": _construct,
        "SequenceAt": lambda node, items, position: items[int(position.reshape(()))],
        "SequenceInsert": _insert,
        "SequenceErase": _erase,
        "SequenceLength": lambda node, items: host(np.asarray(len(items), np.int64)),
        "SplitToSequence": _split,
        "ConcatFromSequence": _joined,
        "Optional": lambda node, value=None: value,
        "OptionalGetElement": lambda node, value: value,
        "OptionalHasElement": lambda node, value=None: _flag(value is not None),
    },
    static={"SequenceAt": (1,), "SequenceInsert": (2,), "SequenceErase": (1,), "SplitToSequence": (1,)},
)
operators({"SequenceMap": _map}, own=True)
