"""Attention."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from phlox.backend.contract.linalg import LinalgOps
from phlox.backend.contract.reduction import ReductionOps
from phlox.backend.contract.types import Array, Gradients, Needed, Shape

Mask: TypeAlias = Array | None

Weighting: TypeAlias = tuple[bool, float, float]
"""`(causal, scale, dropout)`: may a query see only the keys up to its own position, the factor of the scores, and the
share of the weights that is dropped."""


class AttentionOps(LinalgOps, ReductionOps):
    """Attention: means of values, weighted by how well keys match queries (Vaswani et al. 2017).

    query [batch, heads, n, d], key [batch, groups, m, d], value [batch, groups, m, e]; heads / groups consecutive heads
    share the keys and values of a group (Ainslie et al. 2023). m is not zero. The other operands broadcast to [batch,
    heads, n, m]: `bias` is added to the scores, weights are zero where `allowed` or `kept` is false.
    """

    def attention(
        self, query: Array, key: Array, value: Array, bias: Mask, allowed: Mask, kept: Mask, weighting: Weighting
    ) -> Array:
        """softmax(scale query key' + bias) value: [batch, heads, n, e].

        With `causal`, query i sees keys up to the i-th. A query that sees no key gives zeros. The weights that are
        `kept` are multiplied by 1 / (1 - dropout).
        """
        return self.attention_forward(query, key, value, bias, allowed, kept, weighting)[0]

    def attention_forward(
        self, query: Array, key: Array, value: Array, bias: Mask, allowed: Mask, kept: Mask, weighting: Weighting
    ) -> tuple[Array, Any]:
        """See `attention`."""
        causal, scale, dropout = weighting
        _, heads, n, _ = self.shape(query)
        m = self.shape(key)[2]
        scores = self._per_head(self._products(self._by_group(self.float_mul(query, scale), key), key), heads, n)
        if bias is not None:
            scores = self.float_add(scores, bias)
        if causal:
            earlier = self._causal(query, n, m)
            allowed = earlier if allowed is None else self.bool_and(allowed, earlier)
        if allowed is not None:
            scores = self.where(allowed, scores, -math.inf)
        highest = self.detach(self._max_to_shift(scores, (3,), True))
        # A query that may see no key has only minus infinities, whose differences would be NaN.
        highest = self.where(self.float_equal(highest, -math.inf), 0.0, highest)
        weights = self.float_exp(self.float_sub(scores, highest))
        total = self.float_sum(weights, (3,), True)
        weights = self.float_div(weights, self.where(self.float_equal(total, 0.0), 1.0, total))
        mixed = self.float_matmul(self._by_group(self._dropped(weights, kept, dropout), value), value)
        y = self._per_head(mixed, heads, n)
        return y, (query, key, value, bias, kept, weights, y)

    def attention_backward(self, saved: Any, g: Array, needed: Needed, weighting: Weighting) -> Gradients:
        """For weights P and result y: dS = P (dP - sum(dP P)), where the sum is g y' (Dao et al. 2022).

        The gradients of query, key and bias are linear in dS, the scores' gradient. An engine may save no y.
        """
        query, key, value, bias, kept, weights, y = saved
        _, scale, dropout = weighting
        _, heads, n, _ = self.shape(query)
        by_group = self._by_group(g, value)
        dq = dk = dv = dbias = None
        if needed[2]:
            dropped = self._by_group(self._dropped(weights, kept, dropout), value)
            dv = self.float_matmul(self._transposed(dropped), by_group)
        if needed[0] or needed[1] or needed[3]:
            dp = self._dropped(self._per_head(self._products(by_group, value), heads, n), kept, dropout)
            along = self.float_mul(dp, weights) if y is None else self.float_mul(g, y)
            along = self.float_sum(along, (3,), True)
            ds = self.float_mul(weights, self.float_sub(dp, along))
            folded = self._by_group(ds, key)
            if needed[0]:
                dq = self.float_mul(self._per_head(self.float_matmul(folded, key), heads, n), scale)
            if needed[1]:
                dk = self.float_matmul(self._transposed(folded), self._by_group(self.float_mul(query, scale), key))
            if needed[3]:
                dbias = self._summed_to(ds, self.shape(bias))
        return dq, dk, dv, dbias, None, None

    def _by_group(self, x: Array, key: Array) -> Array:
        """[batch, heads, n, ...] as [batch, groups, heads / groups * n, ...]: heads that share keys are joined."""
        batch, heads, n, width = self.shape(x)
        groups = self.shape(key)[1]
        return x if heads == groups else self.reshape(x, (batch, groups, heads // max(groups, 1) * n, width))

    def _per_head(self, x: Array, heads: int, n: int) -> Array:
        """The inverse of `_by_group`."""
        batch, groups, _, width = self.shape(x)
        return x if heads == groups else self.reshape(x, (batch, heads, n, width))

    def _transposed(self, x: Array) -> Array:
        return self.permute_dims(x, (0, 1, 3, 2))

    def _dropped(self, weights: Array, kept: Array | None, dropout: float) -> Array:
        if kept is None:
            return weights
        return self.where(kept, self.float_mul(weights, 1.0 / (1.0 - dropout) if dropout < 1.0 else 0.0), 0.0)

    def _causal(self, like: Array, n: int, m: int) -> Array:
        """[n, m]: may query i see key j?"""
        device = self.device_of(like)
        queries = self.reshape(self.int_arange(0, n, 1, device), (n, 1))
        return self.int_less_equal(self.reshape(self.int_arange(0, m, 1, device), (1, m)), queries)

    def _summed_to(self, x: Array, shape: Shape) -> Array:
        """x summed over the axes on which `shape`, of the same rank, is 1."""
        axes = tuple(axis for axis, (have, want) in enumerate(zip(self.shape(x), shape, strict=True)) if have != want)
        return self.float_sum(x, axes, True) if axes else x
