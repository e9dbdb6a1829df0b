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
    stops: set[str] = set(node.get("stopwords") or ())
    if not sensitive:
        stops = {word.lower() for word in stops}
    rows = x.reshape(-1, x.shape[-1]) if x.ndim == 2 else x[None]
    kept = [[action(str(w)) for w in row if (str(w) if sensitive else str(w).lower()) not in stops] for row in rows]
    width = max(len(row) for row in kept) or 1
    found = np.array([row + [""] * (width - len(row)) for row in kept], dtype=object)
    return found if x.ndim == 2 else found[0]


def _ngrams(node: Node, x: Array) -> Any:
    """How often each phrase of a list occurs in a text, as its words may stand some places apart."""
    words = node.get("pool_strings") or node.get("pool_int64s")
    starts, places = node.get("ngram_counts"), node.get("ngram_indexes")
    least, most = node.get("min_gram_length"), node.get("max_gram_length")
    phrases: dict[tuple[Any, ...], int] = {}
    for number, start in enumerate(starts):
        end = starts[number + 1] if number + 1 < len(starts) else len(words)
        size = number + 1
        for first in range(start, end, size):
            phrases[tuple(words[first : first + size])] = len(phrases)
    weights = np.asarray(node.get("weights") or [1.0] * len(places), np.float64)
    rows = x.reshape(-1, x.shape[-1]) if x.ndim == 2 else x[None]
    found = np.zeros((len(rows), max(places) + 1))
    for number, row in enumerate(rows):
        for size in range(least, most + 1):
            for step in range(1, node.get("max_skip_count") + 2 if size > 1 else 2):
                for first in range(len(row) - (size - 1) * step):
                    phrase = tuple(one if isinstance(one, str) else int(one) for one in row[first::step][:size])
                    if len(phrase) == size and phrase in phrases:
                        found[number, places[phrases[phrase]]] += 1
    by_place = np.ones(found.shape[1])
    by_place[places] = weights
    if node.get("mode") == "IDF":
        found = (found > 0) * by_place
    elif node.get("mode") == "TFIDF":
        found = found * by_place
    return host(found if x.ndim == 2 else found[0])


operators({"TfIdfVectorizer": _ngrams}, static={"TfIdfVectorizer": (0,)}, since=9)
operators({"StringConcat": _concat, "StringSplit": _split, "StringNormalizer": _normalized})
