"""Attention on NumPy, for a few heads and queries at a time, so that the scores stay in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.attention import Mask, Weighting
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.backend.numpy.blocks import LARGE, SMALL, Block, in_blocks, row_maxima, row_sums, scratch

_KEPT = 1 << 24
"""The most weights that are kept for the backward pass. More are computed again, chunk by chunk: they grow with the
square of the length."""


class Attention(Backend):
    """See `phlox.backend.contract.nn.attention`. Inside, arrays are [batch * groups, heads / groups, n, ...]."""

    def attention(
        self, query: Array, key: Array, value: Array, bias: Mask, allowed: Mask, kept: Mask, weighting: Weighting
    ) -> Array:
        return _forward(query, key, value, (bias, allowed), kept, weighting, weights=None)

    def attention_forward(
        self, query: Array, key: Array, value: Array, bias: Mask, allowed: Mask, kept: Mask, weighting: Weighting
    ) -> tuple[Array, Any]:
        shape = _shape_of_weights(query, key)
        keeps = shape[0] * shape[1] * shape[2] * shape[3] <= _KEPT
        weights = _empty_weights(shape, weighting, query.dtype) if keeps else None
        y = _forward(query, key, value, (bias, allowed), kept, weighting, weights)
        return y, (query, key, value, bias, kept, weights, y, allowed)

    def attention_backward(self, saved: Any, g: Array, needed: Needed, weighting: Weighting) -> Gradients:
        query, key, value, bias, kept, weights, y, allowed = saved
        if needed[3] or not query.size or not key.size:
            every: Any = weights
            if every is None:
                every = _empty_weights(_shape_of_weights(query, key), weighting, query.dtype)
                _forward(query, key, value, (bias, allowed), kept, weighting, every)
            every = every.reshape(*query.shape[:3], key.shape[2])
            return super().attention_backward((query, key, value, bias, kept, every, y), g, needed, weighting)
        causal, scale, dropout = weighting
        groups, share, n, m = _shape_of_weights(query, key)
        shape = groups, share, n, m
        is_kept = weights is not None
        compute = None if is_kept else _weigher(query, key, (bias, allowed), weighting, shape)
        q, g, along = (x.reshape(groups, share, n, x.shape[3]) for x in (query, g, _row_dots(g, y)))
        k, v = (x.reshape(groups, m, x.shape[3]) for x in (key, value))
        mask = _grouped(kept, key, share)
        dq = np.empty(q.shape, q.dtype)
        dk: Any = np.zeros(k.shape, k.dtype)
        dv: Any = np.zeros(v.shape, v.dtype)

        def work(start: int, stop: int) -> None:
            for rows, keys in _chunks(stop - start, share, n, m, causal):
                index = (slice(start, stop), slice(None), rows)
                if compute is None:
                    p = weights[(*index, slice(0, keys))]
                else:
                    p = scratch(q, 2, (stop - start, share, rows.stop - rows.start, keys))
                    compute(start, stop, rows, keys, p)
                gs = g[index]
                if needed[2]:
                    dropped = p if mask is None else _dropped(p, _mask_part(mask, start, stop, rows, keys), dropout, 1)
                    dv[start:stop, :keys] += np.add.reduce(np.matmul(dropped.swapaxes(2, 3), gs), 1)
                if not (needed[0] or needed[1]):
                    continue
                ds = scratch(p)
                np.matmul(gs, v[start:stop, None, :keys].swapaxes(2, 3), out=ds)
                if mask is not None:
                    ds = _dropped(ds, _mask_part(mask, start, stop, rows, keys), dropout, 0)
                ds -= along[index]
                ds *= p
                if needed[0]:
                    np.matmul(ds, k[start:stop, None, :keys], out=dq[index])
                if needed[1]:
                    dk[start:stop, :keys] += np.add.reduce(np.matmul(ds.swapaxes(2, 3), q[index]), 1)
            dq[start:stop] *= scale
            dk[start:stop] *= scale

        in_blocks(work, groups, share * n * m)
        gradients: tuple[Any, ...] = dq.reshape(query.shape), dk.reshape(key.shape), dv.reshape(value.shape)
        return *(dx if is_needed else None for dx, is_needed in zip(gradients, needed, strict=False)), None, None, None


def _shape_of_weights(query: Block, key: Block) -> tuple[int, int, int, int]:
    groups = key.shape[1]
    return key.shape[0] * groups, query.shape[1] // max(groups, 1), query.shape[2], key.shape[2]


def _empty_weights(shape: tuple[int, ...], weighting: Weighting, dtype: Any) -> Block:
    """Memory for all attention weights."""
    # Causal chunks leave parts unwritten, which must be zero; the system provides zero pages at no cost.
    return (np.zeros if weighting[0] else np.empty)(shape, dtype)


def _forward(
    query: Block,
    key: Block,
    value: Block,
    masks: tuple[Block | None, Block | None],
    kept: Block | None,
    weighting: Weighting,
    weights: Block | None,
) -> Block:
    """The result; the attention weights are written into `weights`, if it is given."""
    causal, _, dropout = weighting
    groups, share, n, m = _shape_of_weights(query, key)
    v = value.reshape(groups, m, value.shape[3])
    y = np.empty((groups, share, n, value.shape[3]), query.dtype)
    compute = _weigher(query, key, masks, weighting, (groups, share, n, m))
    mask = _grouped(kept, key, share)

    def work(start: int, stop: int) -> None:
        for rows, keys in _chunks(stop - start, share, n, m, causal):
            index = (slice(start, stop), slice(None), rows)
            if weights is None:
                p = scratch(query, 0, (stop - start, share, rows.stop - rows.start, keys))
            else:
                p = weights[(*index, slice(0, keys))]
            compute(start, stop, rows, keys, p)
            if mask is not None:
                p = _dropped(p, _mask_part(mask, start, stop, rows, keys), dropout, 1)
            np.matmul(p, v[start:stop, None, :keys], out=y[index])

    in_blocks(work, groups, share * n * m)
    return y.reshape(*query.shape[:3], value.shape[3])


def _weigher(
    query: Block,
    key: Block,
    masks: tuple[Block | None, Block | None],
    weighting: Weighting,
    shape: tuple[int, int, int, int],
) -> Callable[[int, int, slice, int, Block], None]:
    """A function that writes the weights of a chunk, without dropout: the same bits in every call."""
    causal, scale, _ = weighting
    groups, share, n, m = shape
    q = (query * np.asarray(scale, query.dtype)).reshape(groups, share, n, query.shape[3])
    k = key.reshape(groups, m, key.shape[3])
    bias, allowed = (_grouped(mask, key, share) for mask in masks)
    hidden = None if allowed is None else ~allowed
    later = _later(n, m) if causal and n * m <= SMALL else None
    emptied = bias is not None or hidden is not None

    def compute(start: int, stop: int, rows: slice, keys: int, p: Block) -> None:
        np.matmul(q[start:stop, :, rows], k[start:stop, None, :keys].swapaxes(2, 3), out=p)
        if bias is not None:
            p += _mask_part(bias, start, stop, rows, keys)
        if hidden is not None:
            np.copyto(p, -np.inf, where=_mask_part(hidden, start, stop, rows, keys))
        if later is not None:
            np.copyto(p, -np.inf, where=later[rows, :keys])
        elif causal:
            np.copyto(p, -np.inf, where=_later.__wrapped__(rows.stop - rows.start, keys, rows.start))
        highest = row_maxima(p)
        if emptied:
            highest[highest == -np.inf] = 0.0
        p -= highest
        np.exp(p, out=p)
        total = row_sums(p)
        if emptied:
            total[total == 0.0] = 1.0
        p /= total

    return compute


@lru_cache(8)
def _later(n: int, m: int, start: int = 0) -> Block:
    """[n, m]: does key j come after query i, of queries from `start` on?"""
    return ~np.tri(n, m, start, dtype=np.bool_)


def _chunks(groups: int, share: int, n: int, m: int, causal: bool) -> Iterator[tuple[slice, int]]:
    """Slices of queries whose scores fit the cache, and the number of keys that they see."""
    step = max(16, LARGE // max(groups * share * m, 1))
    if causal:
        step = min(step, 128)
    for start in range(0, n, step):
        stop = min(start + step, n)
        yield slice(start, stop), min(stop, m) if causal else m


def _grouped(mask: Block | None, key: Block, share: int) -> Block | None:
    """A mask [batch or 1, heads or 1, ...] as [batch * groups or 1, heads / groups or 1, ...]."""
    if mask is None:
        return None
    batch, groups = key.shape[:2]
    if mask.shape[:2] == (1, 1):
        return mask
    sizes = mask.shape[2:]
    return np.broadcast_to(mask, (batch, groups * share, *sizes)).reshape(batch * groups, share, *sizes)


def _mask_part(mask: Block, start: int, stop: int, rows: slice, keys: int) -> Block:
    """The part of a mask for these groups, queries and keys."""
    return mask[
        slice(None) if len(mask) == 1 else slice(start, stop),
        :,
        slice(None) if mask.shape[2] == 1 else rows,
        slice(None) if mask.shape[3] == 1 else slice(0, keys),
    ]


def _dropped(p: Block, kept: Block, dropout: float, slot: int) -> Block:
    """The kept weights, divided by their probability, in scratch memory; zeros for the others."""
    out = p if slot == 0 else scratch(p, slot)
    np.multiply(p, 1.0 / (1.0 - dropout) if dropout < 1.0 else 0.0, out=out)
    np.copyto(out, 0.0, where=~kept)
    return out


def _row_dots(g: Block, y: Block) -> Block:
    """The dot products of g and y, for each query."""
    return np.vecdot(g, y)[..., None]
