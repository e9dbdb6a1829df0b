"""Attention by PyTorch's own kernel, and its derivative by PyTorch's flash attention or its autograd."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.attention import Mask, Weighting
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.backend.torch import autograd_bridge, compat
from phlox.backend.torch.sizes import is_empty


def _is_supported(query: Array, key: Array, bias: Array | None, kept: Array | None) -> bool:
    """Can the kernel be used? It takes no bias, which may need a gradient, and no mask of dropped weights."""
    alike = bias is None and kept is None and query.shape[1] == key.shape[1] and not is_empty(query)
    return alike and (
        query.device.type != "cpu" or (compat.FLASH_ATTENTION.exists and compat.FLASH_ATTENTION_BACKWARD.exists)
    )


def attends_narrow(*arguments: Any) -> bool:
    """Is there a half-precision kernel that keeps its logits, and the sums of its derivative, in f32?

    Those of a GPU do. The CPU kernel's backward pass uses the rounded output as if it were exact.
    """
    first: Any = arguments[0]
    if isinstance(first, tuple):  # the saved values of a forward pass
        return len(first) != 7 and first[0].device.type != "cpu"
    query, key, _, bias, _, kept, *_ = arguments
    return query.device.type != "cpu" and _is_supported(query, key, bias, kept)


def _flash(query: Array, key: Array, value: Array, allowed: Array | None) -> bool:
    """Is there a kernel whose derivative is a kernel too?"""
    return allowed is None and query.device.type == "cpu" and query.shape[3] == value.shape[3]


def _attend(query: Array, key: Array, value: Array, allowed: Array | None, causal: bool, scale: float) -> Array:
    if allowed is not None and causal:
        allowed, causal = allowed & allowed.new_ones(query.shape[2], key.shape[2]).tril(), False
    y = functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed, is_causal=causal, scale=scale)
    # The kernel's result for a query that sees no key is undefined.
    return y if allowed is None else torch.where(allowed.any(3, keepdim=True), y, 0.0)


class Attention(Backend):
    """See `phlox.backend.contract.nn.attention`."""

    def attention(
        self, query: Array, key: Array, value: Array, bias: Mask, allowed: Mask, kept: Mask, weighting: Weighting
    ) -> Array:
        if not _is_supported(query, key, bias, kept):
            return super().attention(query, key, value, bias, allowed, kept, weighting)
        return _attend(query, key, value, allowed, *weighting[:2])

    def attention_forward(
        self, query: Array, key: Array, value: Array, bias: Mask, allowed: Mask, kept: Mask, weighting: Weighting
    ) -> tuple[Array, Any]:
        if not _is_supported(query, key, bias, kept):
            return super().attention_forward(query, key, value, bias, allowed, kept, weighting)
        causal, scale, _ = weighting
        if _flash(query, key, value, allowed):
            y, sums = compat.FLASH_ATTENTION.value(query, key, value, 0.0, causal, scale=scale)
            return y, (query, key, value, y, sums)
        return autograd_bridge.forward(lambda q, k, v: _attend(q, k, v, allowed, causal, scale), query, key, value)

    def attention_backward(self, saved: Any, g: Array, needed: Needed, weighting: Weighting) -> Gradients:
        if len(saved) == 7:
            return super().attention_backward(saved, g, needed, weighting)
        if len(saved) == 5:
            query, key, value, y, sums = saved
            causal, scale, _ = weighting
            backward = compat.FLASH_ATTENTION_BACKWARD.value
            gradients = backward(g, query, key, value, y, sums, 0.0, causal, scale=scale)
            return *gradients, None, None, None
        return *autograd_bridge.backward(saved, g, needed[:3]), None, None, None
