"""Composites as XLA does them best.

On a processor XLA's own convolution is slow where images are small: unfolding them and multiplying matrices wins until
the unfolded images outgrow the cache. Channels stand last inside, where a processor's vectors run along them; the
transpositions of neighbours cancel in fusions.
"""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from phlox.backend.contract import Backend
from phlox.backend.contract.nn import Gradients, Needed
from phlox.backend.contract.types import Array, Pair, Shape
from phlox.backend.jax.ops import op

_UNFOLDED_BYTES = 4 << 20  # about the second-level caches of the cores together


def _unfolds(n: int, channels: int, window: Pair, out: Pair, groups: int, size: int) -> bool:
    """Is it faster to unfold the images than to let XLA convolve?"""
    bytes_ = n * channels * math.prod(window) * math.prod(out) * size
    return jax.default_backend() == "cpu" and groups == 1 and bytes_ <= _UNFOLDED_BYTES


def _out(shape: Shape, window: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Pair:
    rows, columns = (
        (shape[2 + i] + 2 * padding[i] - dilation[i] * (window[i] - 1) - 1) // stride[i] + 1 for i in (0, 1)
    )
    return rows, columns


def _rows(x: Array, window: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Array:
    """What each window sees of x [n, height, width, channels], as rows [n * rows * columns, kh * kw * channels]."""
    x = jnp.pad(x, ((0, 0), (padding[0], padding[0]), (padding[1], padding[1]), (0, 0)))
    # First down, then across: kh + kw pieces instead of kh * kw, each of which is a kernel to start.
    for axis in (0, 1):
        last = (x.shape[1 + axis] - dilation[axis] * (window[axis] - 1) - 1) // stride[axis] * stride[axis]
        starts = [place * dilation[axis] for place in range(window[axis])]
        parts = [lax.slice_in_dim(x, at, at + last + 1, stride[axis], 1 + axis) for at in starts]
        x = jnp.stack(parts, 3 + axis)
    return x.reshape(-1, math.prod(window) * x.shape[-1])


def _first(x: Array) -> Array:
    """Channels first."""
    return jnp.transpose(x, (0, 3, 1, 2))


def _last(x: Array) -> Array:
    """Channels last."""
    return jnp.transpose(x, (0, 2, 3, 1))


@op(3, 4, 5, 6)
def conv2d(
    x: Array, weight: Array, bias: Array | None, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Array:
    """See `phlox.backend.contract.nn`."""
    out, channels, *window = weight.shape
    kernel = (window[0], window[1])
    rows, columns = _out(x.shape, kernel, stride, padding, dilation)
    if _unfolds(len(x), channels, kernel, (rows, columns), groups, x.dtype.itemsize):
        y = _rows(_last(x), kernel, stride, padding, dilation) @ _flat(weight)
        y = y if bias is None else y + bias
        return _first(y.reshape(len(x), rows, columns, out))
    y = lax.conv_general_dilated(
        x,
        weight,
        stride,
        [(padding[0], padding[0]), (padding[1], padding[1])],
        rhs_dilation=dilation,
        dimension_numbers=("NCHW", "OIHW", "NCHW"),
        feature_group_count=groups,
    )
    return y if bias is None else y + bias[:, None, None]


def _flat(weight: Array) -> Array:
    """A weight [out, channels, kh, kw] as [kh * kw * channels, out]."""
    return jnp.transpose(weight, (2, 3, 1, 0)).reshape(-1, len(weight))


@op(2, 3, 4, 5, 6)
def conv2d_dx(g: Array, weight: Array, shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Array:
    """The transpose of `conv2d` in x."""
    out, channels, *window = weight.shape
    kernel = (window[0], window[1])
    if _unfolds(len(g), channels, kernel, (g.shape[2], g.shape[3]), groups, g.dtype.itemsize):
        parts = _last(g).reshape(-1, out) @ _flat(weight).T
        parts = parts.reshape(len(g), *g.shape[2:], math.prod(kernel) * channels)
        # Each place in the window adds its part where it looked, in one loop: a padding that may also cut off.
        dx = None
        for place in range(math.prod(kernel)):
            part = parts[..., place * channels : (place + 1) * channels]
            config = [(0, 0, 0)]
            for axis, offset in enumerate(divmod(place, kernel[1])):
                low = offset * dilation[axis] - padding[axis]
                reach = (g.shape[2 + axis] - 1) * stride[axis] + 1
                config.append((low, shape[2 + axis] - low - reach, stride[axis] - 1))
            share = lax.pad(part, jnp.zeros((), g.dtype), [*config, (0, 0, 0)])
            dx = share if dx is None else dx + share
        return _first(dx)
    zeros = jnp.zeros(shape, g.dtype)
    _, pull = jax.vjp(lambda x: conv2d(x, weight, None, stride, padding, dilation, groups), zeros)
    return pull(g)[0]


@op(2, 3, 4, 5, 6)
def conv2d_dw(x: Array, g: Array, shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Array:
    """The transpose of `conv2d` in the weight."""
    out, channels, *window = shape
    kernel = (window[0], window[1])
    if _unfolds(len(x), channels, kernel, (g.shape[2], g.shape[3]), groups, x.dtype.itemsize):
        flat = _rows(_last(x), kernel, stride, padding, dilation)
        dw = _last(g).reshape(-1, out).T @ flat
        return jnp.transpose(dw.reshape(out, *kernel, channels), (0, 3, 1, 2))
    zeros = jnp.zeros(shape, g.dtype)
    _, pull = jax.vjp(lambda weight: conv2d(x, weight, None, stride, padding, dilation, groups), zeros)
    return pull(g)[0]


def _tiled(x: Array, window: Pair) -> Array:
    """x [n, height, width, channels] as [n, rows, kh, columns, kw, channels]."""
    n, height, width, channels = x.shape
    return x.reshape(n, height // window[0], window[0], width // window[1], window[1], channels)


@op(1)
def max_pool_tiles(x: Array, window: Pair) -> Array:
    """The greatest value of each tile."""
    return _first(_tiled(_last(x), window).max((2, 4)))


@op(3)
def max_pool_tiles_backward(x: Array, y: Array, g: Array, window: Pair) -> Array:
    """The gradient at the first greatest value of each tile, in reading order; a NaN counts as greatest."""
    x, y, g = _last(x), _last(y), _last(g)
    tiles = _tiled(x, window)
    taken = jnp.zeros(y.shape, jnp.bool_)
    rows: list[Array] = []
    for i in range(window[0]):
        columns: list[Array] = []
        for j in range(window[1]):
            part = tiles[:, :, i, :, j]
            hit = (part == y) | jnp.isnan(part)
            columns.append(jnp.where(hit & ~taken, g, 0.0))
            taken |= hit
        rows.append(jnp.stack(columns, 3))
    return _first(jnp.stack(rows, 2).reshape(x.shape))


class Composites(Backend):
    """See `phlox.backend.contract.nn`."""

    conv2d = staticmethod(conv2d)
    conv2d_dx = staticmethod(conv2d_dx)
    conv2d_dw = staticmethod(conv2d_dw)

    def max_pool2d_forward(self, x: Array, window: Pair, stride: Pair, padding: Pair) -> tuple[Array, Any]:
        if _tiles(x.shape, window, stride, padding):
            y = max_pool_tiles(x, window)
            return y, (x, y)
        return super().max_pool2d_forward(x, window, stride, padding)

    def max_pool2d_backward(
        self, saved: Any, g: Array, needed: Needed, window: Pair, stride: Pair, padding: Pair
    ) -> Gradients:
        x, y = saved
        if _tiles(x.shape, window, stride, padding):
            return (max_pool_tiles_backward(x, y, g, window),)
        return super().max_pool2d_backward(saved, g, needed, window, stride, padding)


def _tiles(shape: Shape, window: Pair, stride: Pair, padding: Pair) -> bool:
    """Do the windows tile the image?"""
    return stride == window and padding == (0, 0) and shape[2] % window[0] == 0 and shape[3] % window[1] == 0
