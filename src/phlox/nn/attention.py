"""Attention with dropout of its weights."""

from __future__ import annotations

from typing import Any

from phlox import random
from phlox.backend import Float
from phlox.errors import RangeError
from phlox.tensor import Tensor, functional
from phlox.tensor.functional.operands import check_kind


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
    """`phlox.functional.attention` with dropout: each weight is zeroed with probability `dropout`, the others scaled.

    Dropout is always applied: a layer must check `self.is_training(query)` first, as `MultiHeadAttention` does. The
    dropped weights are drawn from the ambient stream. The rate is rounded to a multiple of 1/65536, as in `dropout`.

    >>> import phlox as px
    >>> x = px.ones((2, 4, 8))
    >>> attention(x, x, x, causal=True, dropout=0.1).shape
    (2, 4, 8)
    """
    check_kind("attention", Float, query=query, key=key)
    if not 0.0 <= dropout <= 1.0:
        raise RangeError(f"attention: dropout must be between 0 and 1, got {dropout}")
    keep = round((1.0 - dropout) * 65536) / 65536
    kept = None
    if keep < 1.0:
        kept = random.bernoulli((*query.shape[:-1], *key.shape[-2:-1]), keep, device=query.device)
    return functional.attention(
        query, key, value, mask=mask, bias=bias, causal=causal, scale=scale, kept=kept, dropout=1.0 - keep
    )
