"""Attention."""

from __future__ import annotations

import math
from typing import Any

from phlox.backend import Bool, Float
from phlox.errors import KindError, RangeError, ShapeError
from phlox.tensor.functional.operands import check_kind, compute
from phlox.tensor.functions import where
from phlox.tensor.tensor import Tensor


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor[Any, Any, Any] | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    kept: Tensor[Any, Any, Bool] | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Scaled dot-product attention: softmax(scale query key' + bias) value (Vaswani et al. 2017).

    Args:
        query: [..., heads, n, d]. Rank 2, [n, d], is a single head.
        key: [..., groups, m, d]. Grouped-query attention (Ainslie et al. 2023): heads / groups consecutive heads share
            keys and values. groups = heads is the usual case, groups = 1 is multi-query attention.
        value: [..., groups, m, e].
        mask: Bool, true where a query may attend to a key; or Float, added to the scores. Broadcasts to
            [..., heads, n, m]. Keys and values that no query may attend to may hold any values, even NaN.
        bias: Float, added to the scores; can be combined with a Bool mask. Broadcasts like the mask.
        causal: query i attends to keys 0 to i only. If n and m differ, both are counted from the start (as in PyTorch).
        scale: 1 / sqrt(d) by default.
        kept: with `dropout`, a Bool tensor that is true where a weight is kept. It broadcasts like the mask.
            `phlox.nn.attention` draws it.
        dropout: the rate at which weights were dropped. The kept weights are scaled by 1 / (1 - dropout).

    Returns [..., heads, n, e]. A query with no visible key gives zeros and has no gradient. Leading axes must be equal.

    >>> import phlox as px
    >>> x = px.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> px.functional.attention(x, x, x, causal=True)[0].tolist()
    [1.0, 0.0]
    """
    check_kind("attention", Float, query=query, key=key, value=value, bias=bias)
    check_kind("attention", Bool, kept=kept)
    if mask is not None and (not isinstance(mask, Tensor) or mask.kind not in (Bool, Float)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KindError(
            f"attention: mask must be a Bool tensor (true: attend) or a Float tensor (added to the scores), "
            f"got {mask.kind.__name__ if isinstance(mask, Tensor) else type(mask).__name__}"  # pyright: ignore[reportUnnecessaryIsInstance]
        )
    *leading, n, d = query.shape if query.ndim > 1 else (0, 0)
    _check_shapes(query, key, value)
    if not 0.0 <= dropout <= 1.0:
        raise RangeError(f"attention: dropout must be between 0 and 1, got {dropout}")
    if (kept is None) != (dropout == 0.0):
        raise RangeError(
            "attention: dropout needs both a rate and `kept`, the mask of kept weights; phlox.nn.attention draws it"
        )
    batch, heads = math.prod(leading[:-1]), leading[-1] if leading else 1
    m, e = value.shape[-2:]
    groups = key.shape[-3] if leading else 1
    shape = (*leading, n, e)
    if not m or not batch * heads * n * e:
        return _empty_result(query, key, value, shape)
    if mask is not None:
        key, value = _zero_masked(mask, key, value)
    if mask is not None and mask.kind is Float:
        mask, bias = None, mask if bias is None else mask + bias
    scores = (*leading, n, m)
    masks = [_of_rank_4(role, x, scores, batch, heads) for role, x in (("bias", bias), ("mask", mask), ("kept", kept))]
    y = compute(
        "attention",
        query.reshape((batch, heads, n, d)),
        key.reshape((batch, groups, m, d)),
        value.reshape((batch, groups, m, e)),
        *masks,
        (causal, 1.0 / math.sqrt(max(d, 1)) if scale is None else scale, dropout),
    )
    return y.reshape(shape)


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    q, k, v = query.shape, key.shape, value.shape
    fits = len(q) == len(k) == len(v) >= 2 and q[-1] == k[-1] and k[:-1] == v[:-1] and q[:-3] == k[:-3]
    if not fits or (len(q) > 2 and q[-3] and (not k[-3] or q[-3] % k[-3])):
        raise ShapeError(
            f"attention: query {q}, key {k} and value {v} do not fit; they must be [..., heads, n, d], "
            f"[..., groups, m, d] and [..., groups, m, e], and the heads must divide into the groups"
        )


def _zero_masked(mask: Tensor[Any, Any, Any], key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values, zeroed where no query may attend: a weight of zero times NaN would be NaN."""
    if mask.ndim == 0 or mask.ndim > key.ndim:
        return key, value  # a mask that does not broadcast is rejected elsewhere
    visible = mask if mask.kind is Bool else mask != -math.inf
    if visible.ndim > 1:
        visible = visible[..., 0, :] if visible.shape[-2] == 1 else visible.any(-2)
    if visible.ndim > 1 and visible.shape[-2] not in (1, key.shape[-3]):
        if not key.shape[-3] or visible.shape[-2] % key.shape[-3]:
            return key, value
        # Heads of one group share keys: any of them may attend.
        visible = visible.reshape((*visible.shape[:-2], key.shape[-3], -1, visible.shape[-1])).any(-2)
    if visible.shape[-1] not in (1, key.shape[-2]):
        return key, value
    visible = visible.expand_dims(-1)
    return where(visible, key, 0.0), where(visible, value, 0.0)


def _empty_result(query: Tensor, key: Tensor, value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Zeros that depend on the operands formally, so that all get a (zero) gradient."""
    from phlox.tensor.creation import zeros

    return zeros(shape, device=query.device) + (query.sum() + key.sum() + value.sum()) * 0.0


def _of_rank_4(
    role: str, x: Tensor[Any, Any, Any] | None, scores: tuple[int, ...], batch: int, heads: int
) -> Tensor[Any, Any, Any] | None:
    """Reshape a mask to broadcast to [batch, heads, n, m]."""
    if x is None:
        return None
    rank = len(scores)
    shape = (*(1 for _ in range(rank - x.ndim)), *x.shape)
    if x.ndim > rank or any(size not in (1, full_size) for size, full_size in zip(shape, scores, strict=True)):
        raise ShapeError(f"attention: {role} of shape {x.shape} does not broadcast to the scores, {scores}")
    leading = shape[:-3]
    if any(size != 1 for size in leading) and leading != scores[:-3]:
        shape = (*scores[:-3], *shape[-3:])
        x = x.broadcast_to(shape)
        leading = shape[:-3]
    head = shape[-3] if rank > 2 else 1
    return x.reshape((math.prod(leading), head, *shape[-2:]))
