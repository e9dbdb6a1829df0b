"""Sequences, which are lists of tensors here; optional values, which are None or a value; and text.

Text is NumPy arrays of Python strings, and never on a device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from phlox.interop.onnx.elements import host
from phlox.interop.onnx.graph import Run
from phlox.interop.onnx.node import Node
from phlox.interop.onnx.registry import Array, operators
from phlox.tensor import Tensor, concat, stack

X = Tensor[Any, Any, Any]
Items = list[Any]
Text = np.ndarray[Any, Any]


def _index_of(position: Array | None) -> int:
    return -1 if position is None else int(position.reshape(()))


def _construct(node: Node, *items: Any) -> Items:
    return list(items)


def _at(node: Node, items: Items, position: Array) -> Any:
    return items[int(position.reshape(()))]


def _insert(node: Node, items: Items, item: Any, position: Array | None = None) -> Items:
    index = len(items) if position is None else int(position.reshape(()))
    index = index + len(items) if index < 0 else index
    return [*items[:index], item, *items[index:]]


def _erase(node: Node, items: Items, position: Array | None = None) -> Items:
    index = _index_of(position) % len(items)
    return [*items[:index], *items[index + 1 :]]


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
        body.run(run, [item, *(other[index] if isinstance(other, list) else other for other in others)], values)
        for index, item in enumerate(items)
    ]
    return tuple([row[output] for row in rows] for output in range(len(body.outputs)))


def _flag(value: bool) -> X:
    return host(np.asarray(value))


operators(
    {
        "SequenceConstruct": _construct,
        "SequenceEmpty": _construct,
        "SequenceAt": _at,
        "SequenceInsert": _insert,
        "SequenceErase": _erase,
        "SequenceLength": lambda node, items: host(np.asarray(len(items), np.int64)),
        "SplitToSequence": _split,
        "ConcatFromSequence": _joined,
        "Optional": lambda node, value=None: value,
        "OptionalGetElement": lambda node, value: value,
        "OptionalHasElement": lambda node, value=None: _flag(value is not None),
    }
)
operators({"SequenceMap": _map}, own=True)


def _concat_text(node: Node, x: Text, y: Text) -> Text:
    return np.asarray(np.add(x.astype(object), y.astype(object)), dtype=object)


def _split_text(node: Node, x: Text) -> tuple[Text, Any]:
    separator, most = node.get("delimiter") or None, node.get("maxsplit")
    rows = [str(text).split(separator, -1 if most is None else most) for text in x.reshape(-1)]
    width = max((len(row) for row in rows), default=0)
    table = np.full((len(rows), width), "", dtype=object)
    for row_index, row in enumerate(rows):
        table[row_index, : len(row)] = row
    counts = np.array([len(row) for row in rows], np.int64).reshape(x.shape)
    return table.reshape((*x.shape, width)), host(counts)


def _normalized(node: Node, x: Text) -> Text:
    action = {"UPPER": str.upper, "LOWER": str.lower}.get(node.get("case_change_action", "NONE"), str)
    sensitive = node.get("is_case_sensitive", 0)
    stops: set[str] = set(node.get("stopwords") or ())
    if not sensitive:
        stops = {word.lower() for word in stops}
    rows = x.reshape(-1, x.shape[-1]) if x.ndim == 2 else x[None]
    kept = [[action(str(w)) for w in row if (str(w) if sensitive else str(w).lower()) not in stops] for row in rows]
    width = max(len(row) for row in kept) or 1
    table = np.array([row + [""] * (width - len(row)) for row in kept], dtype=object)
    return table if x.ndim == 2 else table[0]


def _ngrams(node: Node, x: Array) -> Any:
    """How often each phrase of a list occurs in a text; its words may be some positions apart."""
    words = node.get("pool_strings") or node.get("pool_int64s")
    starts, columns = node.get("ngram_counts"), node.get("ngram_indexes")
    least, most = node.get("min_gram_length"), node.get("max_gram_length")
    phrases: dict[tuple[Any, ...], int] = {}
    for index, start in enumerate(starts):
        end = starts[index + 1] if index + 1 < len(starts) else len(words)
        size = index + 1
        for first in range(start, end, size):
            phrases[tuple(words[first : first + size])] = len(phrases)
    weights = np.asarray(node.get("weights") or [1.0] * len(columns), np.float64)
    rows = x.reshape(-1, x.shape[-1]) if x.ndim == 2 else x[None]
    counts = np.zeros((len(rows), max(columns) + 1))
    for row_index, row in enumerate(rows):
        for size in range(least, most + 1):
            for step in range(1, node.get("max_skip_count") + 2 if size > 1 else 2):
                for first in range(len(row) - (size - 1) * step):
                    phrase = tuple(word if isinstance(word, str) else int(word) for word in row[first::step][:size])
                    if len(phrase) == size and phrase in phrases:
                        counts[row_index, columns[phrases[phrase]]] += 1
    weight_by_column = np.ones(counts.shape[1])
    weight_by_column[columns] = weights
    if node.get("mode") == "IDF":
        counts = (counts > 0) * weight_by_column
    elif node.get("mode") == "TFIDF":
        counts = counts * weight_by_column
    return host(counts if x.ndim == 2 else counts[0])


operators({"TfIdfVectorizer": _ngrams}, since=9)
operators({"StringConcat": _concat_text, "StringSplit": _split_text, "StringNormalizer": _normalized})
