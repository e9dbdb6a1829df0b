"""Text, which is NumPy arrays of Python strings here and never on a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from phlox.interop.onnx.elements import host
from phlox.interop.onnx.node import Node
from phlox.interop.onnx.registry import operators

Array = np.ndarray[Any, Any]


def _concat(node: Node, x: Array, y: Array) -> Array:
    return np.asarray(np.add(x.astype(object), y.astype(object)), dtype=object)


def _split(node: Node, x: Array) -> tuple[Array, Any]:
    separator, most = node.get("delimiter") or None, node.get("maxsplit")
    rows = [str(text).split(separator, -1 if most is None else most) for text in x.reshape(-1)]
    width = max((len(row) for row in rows), default=0)
    found = np.full((len(rows), width), "", dtype=object)
    for number, row in enumerate(rows):
        found[number, : len(row)] = row
    counts = np.array([len(row) for row in rows], np.int64).reshape(x.shape)
    return found.reshape((*x.shape, width)), host(counts)


def _normalized(node: Node, x: Array) -> Array:
    action = {"UPPER": str.upper, "LOWER": str.lower}.get(node.get("case_change_action", "NONE"), str)
    sensitive = node.get("is_case_sensitive", 0)
    stops = set(node.get("stopwords") or ())
    if not sensitive:
        stops = {word.lower() for word in stops}
    rows = x.reshape(-1, x.shape[-1]) if x.ndim == 2 else x[None]
    kept = [[action(str(w)) for w in row if (str(w) if sensitive else str(w).lower()) not in stops] for row in rows]
    width = max(len(row) for row in kept) or 1
    found = np.array([row + [""] * (width - len(row)) for row in kept], dtype=object)
    return found if x.ndim == 2 else found[0]


operators({"StringConcat": _concat, "StringSplit": _split, "StringNormalizer": _normalized})
