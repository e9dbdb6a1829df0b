"""Attention that drops some of its weights."""

from __future__ import annotations

from typing import Any

from phlox import random
from phlox.backend import Float
from phlox.errors import RangeError
from phlox.tensor import Tensor, functional
from phlox.tensor.functional.operands import expect


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor[Any, Any, Any] | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """`phlox.functional.attention`, of which each weight is zero with probability `dropout`, and the others grow.

    It drops wherever it is called; a layer asks `self.is_training(query)` first, as `MultiHeadAttention` does. The mask
    is drawn from the ambient stream, and the rate counts to the nearest 1/65536, as for `dropout`.
    """
    expect("attention", Float, query=query, key=key)
    if not 0.0 <= dropout <= 1.0:
        raise RangeError(f"attention: dropout lies between 0 and 1, got {dropout}")
    keep = round((1.0 - dropout) * 65536) / 65536
    kept = None
    if keep < 1.0:
        kept = random.bernoulli((*query.shape[:-1], *key.shape[-2:-1]), keep, device=query.device)
    return functional.attention(
        query, key, value, mask=mask, bias=bias, causal=causal, scale=scale, kept=kept, dropout=1.0 - keep
    )
