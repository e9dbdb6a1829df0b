"""Normalisation on NumPy: rows at a time while they are in the cache, in private buffers."""

from __future__ import annotations

from typing import Any

import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.backend.numpy.blocks import Block, dot, in_blocks, row_sums, rows_of, scratch
from phlox.backend.numpy.sums import column_sums, total


class Norm(Backend):
    """See `phlox.backend.contract.nn.norm`."""

    def layer_norm_forward(
        self, x: Array, gamma: Array | None, beta: Array | None, epsilon: float
    ) -> tuple[Array, Any]:
        if not x.size:
            return super().layer_norm_forward(x, gamma, beta, epsilon)
        rows = rows_of(x)
        y, mean, rstd = _buffers(rows)

        def work(start: int, stop: int) -> None:
            out, m, r = y[start:stop], mean[start:stop], rstd[start:stop]
            np.multiply(row_sums(rows[start:stop]), 1.0 / rows.shape[1], out=m)
            np.subtract(rows[start:stop], m, out=out)
            _root_of_mean_square(out, epsilon, r)
            out *= r
            if gamma is not None:
                out *= gamma
            if beta is not None:
                out += beta

        in_blocks(work, *rows.shape)
        return y.reshape(x.shape), (rows, mean, rstd, gamma)

    def layer_norm_backward(self, saved: Any, g: Array, needed: Needed, epsilon: float) -> Gradients:
        if len(saved) == 3:
            return super().layer_norm_backward(saved, g, needed, epsilon)
        rows, mean, rstd, gamma = saved
        return _backward(rows, mean, rstd, gamma, g, needed)

    def rms_norm_forward(self, x: Array, gamma: Array | None, epsilon: float) -> tuple[Array, Any]:
        if not x.size:
            return super().rms_norm_forward(x, gamma, epsilon)
        rows = rows_of(x)
        y, _, rrms = _buffers(rows)

        def work(start: int, stop: int) -> None:
            out, r = y[start:stop], rrms[start:stop]
            _root_of_mean_square(rows[start:stop], epsilon, r)
            np.multiply(rows[start:stop], r, out=out)
            if gamma is not None:
                out *= gamma

        in_blocks(work, *rows.shape)
        return y.reshape(x.shape), (rows, None, rrms, gamma)

    def rms_norm_backward(self, saved: Any, g: Array, needed: Needed, epsilon: float) -> Gradients:
        if len(saved) == 3:
            return super().rms_norm_backward(saved, g, needed, epsilon)
        rows, _, rrms, gamma = saved
        return _backward(rows, None, rrms, gamma, g, (*needed, False))[:2]


def _buffers(rows: Block) -> tuple[Block, Block, Block]:
    """Memory for the result, and for two scalars for each row."""
    return np.empty_like(rows), np.empty((len(rows), 1), rows.dtype), np.empty((len(rows), 1), rows.dtype)


def _root_of_mean_square(x: Block, epsilon: float, out: Block) -> None:
    """1 / sqrt(mean(x^2) + epsilon) of each row."""
    np.multiply(dot(x, x), 1.0 / x.shape[1], out=out)
    out += epsilon
    np.sqrt(out, out=out)
    np.divide(1.0, out, out=out)


def _backward(
    rows: Block, mean: Block | None, rstd: Block, gamma: Block | None, g: Block, needed: Needed
) -> tuple[Block | None, Block | None, Block | None]:
    """The gradients of layer norm, or, without a mean, of RMS norm; sums over rows are sums of each block's sum."""
    width = rows.shape[1]
    flat = rows_of(g)
    dx = np.empty_like(rows) if needed[0] else None
    dgammas: dict[int, Block] = {}
    dbetas: dict[int, Block] = {}

    def work(start: int, stop: int) -> None:
        x, u, r = rows[start:stop], flat[start:stop], rstd[start:stop]
        normed = scratch(x)
        np.multiply(x if mean is None else np.subtract(x, mean[start:stop], out=normed), r, out=normed)
        if needed[1]:
            dgammas[start] = column_sums(np.multiply(u, normed, out=scratch(x, 1)))
        if needed[2]:
            dbetas[start] = column_sums(u)
        if dx is None:
            return
        out = dx[start:stop]
        if gamma is not None:
            u = np.multiply(u, gamma, out=out)
        along = dot(u, normed)
        along *= 1.0 / width
        normed *= along
        if mean is None:
            np.subtract(u, normed, out=out)
        else:
            across = row_sums(u)
            across *= 1.0 / width
            np.subtract(u, across, out=out)
            out -= normed
        out *= r

    in_blocks(work, *rows.shape)
    return (
        None if dx is None else dx.reshape(g.shape),
        _sum_in_order(dgammas, rows) if needed[1] else None,
        _sum_in_order(dbetas, rows) if needed[2] else None,
    )


def _sum_in_order(parts: dict[int, Block], rows: Block) -> Block:
    """The sum of parts, in the order of their blocks."""
    if len(parts) <= 1:
        return parts[0] if parts else np.zeros(rows.shape[1], rows.dtype)
    return total(np.stack([parts[start] for start in sorted(parts)]), (0,))
