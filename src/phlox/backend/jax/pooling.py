"""Pooling in the fastest way for XLA: a reduction over tiles, if the windows are tiles."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import itertools
from functools import reduce
from typing import Any

import jax.numpy as jnp

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.pooling import PoolingOps
from phlox.backend.contract.types import Array, Gradients, Needed, Shape, Widths
from phlox.backend.jax.conv import channels_first, channels_last
from phlox.backend.jax.explicit import aligned, reshape, zeros
from phlox.backend.jax.ops import op
from phlox.backend.jax.sizes import is_symbolic
from phlox.backend.tracing.dimension import pads


def _tiled(x: Array, window: Shape) -> Array:
    """x [n, *spatial, channels] with every spatial axis as two: tiles, and positions in a tile."""
    split = [part for size, side in zip(x.shape[1:], window, strict=False) for part in (size // side, side)]
    return reshape(x, (x.shape[0], *split, x.shape[-1]))


@op(1)
def max_pool_tiles(x: Array, window: Shape) -> Array:
    """The greatest value of each tile."""
    # By `maximum` of elements: a reduction takes up to four times as long, and on a CPU, XLA's ignores NaN.
    return channels_first(reduce(jnp.maximum, _parts_of_tiles(_tiled(channels_last(x), window), window)))


def _parts_of_tiles(tiles: Array, window: Shape) -> list[Array]:
    """For each position in a tile, in row-major order, the elements of all tiles at it."""
    indices = (itertools.chain(*((slice(None), i) for i in index)) for index in itertools.product(*map(range, window)))
    return [tiles[(slice(None), *index)] for index in indices]


@op(3)
def max_pool_tiles_backward(x: Array, y: Array, g: Array, window: Shape) -> Array:
    """The gradient at the first maximum of each tile, in row-major order; NaN counts as the maximum."""
    x, (y, g) = channels_last(x), map(channels_last, aligned(y, g))
    done = zeros(y.shape, jnp.bool_, y, {0: 0, y.ndim - 1: y.ndim - 1})
    parts: list[Array] = []
    for part in _parts_of_tiles(_tiled(x, window), window):
        hit = (part == y) | jnp.isnan(part)
        parts.append(jnp.where(hit & ~done, g, 0.0))
        done |= hit
    for axis in range(len(window), 0, -1):  # the last axis of the positions runs fastest
        side = window[axis - 1]
        parts = [jnp.stack(parts[start : start + side], 1 + axis) for start in range(0, len(parts), side)]
    return channels_first(reshape(parts[0], x.shape))


_max_pool_forward = op(0, 2, 3, 4, 5)(PoolingOps.max_pool_forward)
_max_pool_backward = op(0, 3, 4, 5, 6, 7)(PoolingOps.max_pool_backward)


class Pooling(Backend):
    """See `phlox.backend.contract.nn.pooling`."""

    def max_pool_forward(
        self, x: Array, window: Shape, stride: Shape, padding: Widths, dilation: Shape
    ) -> tuple[Array, Any]:
        if _tiles(x.shape, window, stride, padding, dilation):
            y = max_pool_tiles(x, window)
            return y, (x, y)
        return _max_pool_forward(self, x, window, stride, padding, dilation)

    def max_pool_backward(
        self, saved: Any, g: Array, needed: Needed, window: Shape, stride: Shape, padding: Widths, dilation: Shape
    ) -> Gradients:
        if _tiles(saved[0].shape, window, stride, padding, dilation):
            return (max_pool_tiles_backward(*saved, g, window),)
        return _max_pool_backward(self, saved, g, needed, window, stride, padding, dilation)

    avg_pool = op(0, 2, 3, 4, 5)(PoolingOps.avg_pool)
    avg_pool_backward = op(0, 1, 3, 4, 5, 6, 7)(PoolingOps.avg_pool_backward)
    adaptive_avg_pool = op(0, 2)(PoolingOps.adaptive_avg_pool)
    adaptive_sum_pool = op(0, 2)(PoolingOps.adaptive_sum_pool)
    adaptive_max_pool = op(0, 2)(PoolingOps.adaptive_max_pool)


def _tiles(shape: Shape, window: Shape, stride: Shape, padding: Widths, dilation: Shape) -> bool:
    """Do the windows tile the image?"""
    return (
        stride == window
        and not pads(padding)
        and set(dilation) == {1}
        and not any(is_symbolic(size) or size % side for size, side in zip(shape[2:], window, strict=True))
    )
