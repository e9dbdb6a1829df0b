"""Attention as operators."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from phlox.backend import Float
from phlox.backend.contract.nn.attention import AttentionOps
from phlox.backend.contract.types import Array
from phlox.export.to_onnx.graph import current

if TYPE_CHECKING:
    from phlox.export.to_onnx.engine import OnnxEngine


def attention(
    A: OnnxEngine,
    query: Array,
    key: Array,
    value: Array,
    bias: Array | None,
    allowed: Array | None,
    kept: Array | None,
    causal: bool,
    scale: float,
    dropout: float,
) -> Array:
    """Attention, which operator sets have from 23 on; else its products around a Softmax."""
    if kept is not None:
        return AttentionOps.attention(A, query, key, value, bias, allowed, kept, causal, scale, dropout)
    batch, heads, n, _ = A.shape(query)
    m, width = A.shape(value)[2:]
    shape = (batch, heads, n, width)
    if current().opset >= 23 and allowed is None and bias is None:
        options = {"is_causal": 1} if causal else {}
        return A.emit("Attention", [query, key, value], shape, Float, scale=float(scale), **options)
    scores = _products(A, A.float_mul(query, scale), key, heads, n)
    scores = scores if bias is None else A.float_add(scores, bias)
    seen = allowed
    if causal:
        earlier = A._causal(query, n, m)  # pyright: ignore[reportPrivateUsage]
        seen = earlier if seen is None else A.bool_and(seen, earlier)
    if seen is not None:
        scores = A.where(seen, scores, -math.inf)
    weights = A.softmax(scores, 3)
    # What sees nothing at all, of which Softmax makes NaN, gets zeros.
    if bias is not None:
        weights = A.where(A.float_equal(A.float_max(scores, (3,), True), -math.inf), 0.0, weights)
    elif allowed is not None:
        weights = A.where(seen, weights, 0.0)
    mixed = A.float_matmul(A._by_group(weights, value), value)  # pyright: ignore[reportPrivateUsage]
    return A._per_head(mixed, heads, n)  # pyright: ignore[reportPrivateUsage]


def _products(A: OnnxEngine, query: Array, key: Array, heads: int, n: int) -> Array:
    """[batch, heads, n, m]: of each query with each key of its group."""
    folded = A._by_group(query, key)  # pyright: ignore[reportPrivateUsage]
    return A._per_head(A.float_matmul(folded, A.permute_dims(key, (0, 1, 3, 2))), heads, n)  # pyright: ignore[reportPrivateUsage]
