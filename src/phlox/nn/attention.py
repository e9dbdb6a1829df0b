"""Attention with dropout of its weights."""

from __future__ import annotations

import math
from typing import Any

from phlox import random
from phlox.backend import Float
from phlox.errors import RangeError
from phlox.tensor import Tensor, arange, concat, functional, where
from phlox.tensor.functional.operands import check_kind
from phlox.tensor.functions import at_full_precision


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
    cap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """`phlox.functional.attention` with dropout: each weight is zeroed with probability `dropout`, the others scaled.

    Dropout is always applied: a layer must check `self.is_training(query)` first, as `MultiHeadAttention` does. The
    dropped weights are drawn from the ambient stream. The rate is rounded to a multiple of 1/65536, as in `dropout`.

    Args:
        query, key, value, mask, bias, causal, scale: as there.
        dropout: the rate.
        cap: scores s become cap * tanh(s / cap), before the bias and the mask (Gemma 2).
        sinks: [heads], a score of each head for attending to nothing, in the sum of the softmax (gpt-oss).

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
    if cap is not None or sinks is not None:
        return _by_scores(query, key, value, mask, bias, causal, scale, cap, sinks, kept, keep)
    return functional.attention(
        query, key, value, mask=mask, bias=bias, causal=causal, scale=scale, kept=kept, dropout=1.0 - keep
    )


@at_full_precision
def _by_scores(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor[Any, Any, Any] | None,
    bias: Tensor | None,
    causal: bool,
    scale: float | None,
    cap: float | None,
    sinks: Tensor | None,
    kept: Tensor[Any, Any, Any] | None,
    keep: float,
) -> Tensor:
    """Attention whose scores are changed, operation by operation."""
    *leading, heads, n, d = query.shape
    groups, m = key.shape[-3:-1]
    grouped = query.reshape((*leading, groups, heads // groups, n, d))
    scores = grouped @ key.expand_dims(-3).mT * (1.0 / math.sqrt(d) if scale is None else scale)
    scores = scores.reshape((*leading, heads, n, m))
    if cap is not None:
        scores = (scores * (1.0 / cap)).tanh() * cap
    if mask is not None and mask.kind is Float:
        bias, mask = mask if bias is None else bias + mask, None
    if bias is not None:
        scores = scores + bias
    if causal:
        earlier = arange(m, device=query.device) <= arange(n, device=query.device).expand_dims(-1)
        mask = earlier if mask is None else mask & earlier
    if mask is not None:
        scores = where(mask, scores, -math.inf)
    if sinks is not None:
        sink = sinks.reshape((heads, 1, 1)).broadcast_to((*leading, heads, n, 1))
        weights = concat([scores, sink], -1).softmax(-1)[..., :m]
    else:
        weights = scores.softmax(-1)
        if mask is not None:  # no key is visible: NaN
            weights = where(mask, weights, 0.0)
    if kept is not None:
        weights = where(kept, weights * (1.0 / keep), 0.0)
    weights = weights.reshape((*leading, groups, heads // groups, n, m))
    return (weights @ value.expand_dims(-3)).reshape((*leading, heads, n, value.shape[-1]))
