"""Convolution as XLA does it best.

On a processor XLA's own convolution is slow where images are small: unfolding them and multiplying matrices wins until
the unfolded images outgrow the cache. Channels stand last inside, where a processor's vectors run along them; the
transpositions of neighbours cancel in fusions.
"""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
from jax import lax

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.conv import ConvOps, padded_sizes, window_counts
from phlox.backend.contract.types import Array, Shape, Widths
from phlox.backend.jax.ops import op

_UNFOLDED_BYTES = {1: 16 << 20, 2: 4 << 20, 3: 64 << 20}
"""The most that images are unfolded to, by the number of spatial axes: XLA has an eye for two only."""


def _unfolds(n: int, weight: Shape, counts: Shape, groups: int, size: int) -> bool:
    """Is it faster to unfold the images than to let XLA convolve?"""
    bytes_ = n * math.prod(weight[1:]) * math.prod(counts) * size
    return jax.default_backend() == "cpu" and groups == 1 and bytes_ <= _UNFOLDED_BYTES.get(len(counts), 0)


def _rows(x: Array, window: Shape, stride: Shape, padding: Widths, dilation: Shape) -> Array:
    """What each window sees of x [n, *spatial, channels], as rows [windows of all images, places * channels]."""
    x = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    # Axis by axis: as many pieces as the window's sides are long together, each of which is a kernel to start.
    for axis, side in enumerate(window):
        last = (x.shape[1 + axis] - dilation[axis] * (side - 1) - 1) // stride[axis] * stride[axis]
        starts = [place * dilation[axis] for place in range(side)]
        parts = [lax.slice_in_dim(x, at, at + last + 1, stride[axis], 1 + axis) for at in starts]
        x = jnp.stack(parts, 1 + len(window) + axis)
    axes = 1 + len(window)
    return x.reshape(math.prod(x.shape[:axes]), math.prod(x.shape[axes:]))


def channels_first(x: Array) -> Array:
    """Channels first."""
    return jnp.moveaxis(x, -1, 1)


def channels_last(x: Array) -> Array:
    """Channels last."""
    return jnp.moveaxis(x, 1, -1)


@op(3, 4, 5, 6)
def conv(
    x: Array, weight: Array, bias: Array | None, stride: Shape, padding: Widths, dilation: Shape, groups: int
) -> Array:
    """See `phlox.backend.contract.nn.conv`."""
    out, _, *window = weight.shape
    counts = window_counts(padded_sizes(x.shape[2:], padding), tuple(window), stride, dilation)
    if _unfolds(len(x), weight.shape, counts, groups, x.dtype.itemsize):
        y = _rows(channels_last(x), tuple(window), stride, padding, dilation) @ _flat(weight)
        y = y if bias is None else y + bias
        return channels_first(y.reshape(len(x), *counts, out))
    if groups == x.shape[1] == out and jax.default_backend() == "cpu":
        y = _depthwise(x, weight, stride, padding, dilation)
    else:
        y = lax.conv_general_dilated(x, weight, stride, padding, rhs_dilation=dilation, feature_group_count=groups)
    return y if bias is None else y + bias.reshape(out, *(1 for _ in window))


def _depthwise(x: Array, weight: Array, stride: Shape, padding: Widths, dilation: Shape) -> Array:
    """Every channel by itself: one loop over all places, where XLA convolves channel by channel."""
    x = jnp.pad(x, ((0, 0), (0, 0), *padding))
    counts = window_counts(x.shape[2:], weight.shape[2:], stride, dilation)
    y = jnp.zeros((*x.shape[:2], *counts), x.dtype)
    for place in itertools.product(*map(range, weight.shape[2:])):
        starts = [at * gap for at, gap in zip(place, dilation, strict=True)]
        ends = [at + step * (count - 1) + 1 for at, step, count in zip(starts, stride, counts, strict=True)]
        part = lax.slice(x, (0, 0, *starts), (*x.shape[:2], *ends), (1, 1, *stride))
        y += part * weight[:, 0, *place].reshape(len(weight), *(1 for _ in stride))
    return y


def _flat(weight: Array) -> Array:
    """A weight [out, channels, *window] as [places * channels, out]."""
    return jnp.moveaxis(weight, (0, 1), (-1, -2)).reshape(math.prod(weight.shape[1:]), len(weight))


@op(2, 3, 4, 5, 6)
def conv_dx(
    g: Array, weight: Array, shape: Shape, stride: Shape, padding: Widths, dilation: Shape, groups: int
) -> Array:
    """The transpose of `conv` in x."""
    out, channels, *window = weight.shape
    n, _, *counts = g.shape
    if not _unfolds(n, weight.shape, tuple(counts), groups, g.dtype.itemsize):
        zeros = jnp.zeros(shape, g.dtype)
        _, pull = jax.vjp(lambda x: conv(x, weight, None, stride, padding, dilation, groups), zeros)
        return pull(g)[0]
    parts = channels_last(g).reshape(n * math.prod(counts), out) @ _flat(weight).T
    parts = parts.reshape(n, *counts, math.prod(window) * channels)
    # Each place in the window adds its part where it looked, in one loop: a padding that may also cut off.
    dx = jnp.zeros((n, *shape[2:], channels), g.dtype)
    for number, place in enumerate(itertools.product(*map(range, window))):
        part = parts[..., number * channels : (number + 1) * channels]
        config = [(0, 0, 0)]
        for axis, offset in enumerate(place):
            low = offset * dilation[axis] - padding[axis][0]
            reach = (counts[axis] - 1) * stride[axis] + 1
            config.append((low, shape[2 + axis] - low - reach, stride[axis] - 1))
        share = lax.pad(part, jnp.zeros((), g.dtype), [*config, (0, 0, 0)])
        dx = dx + share if number else share
    return channels_first(dx)


@op(2, 3, 4, 5, 6)
def conv_dw(x: Array, g: Array, shape: Shape, stride: Shape, padding: Widths, dilation: Shape, groups: int) -> Array:
    """The transpose of `conv` in the weight."""
    out, channels, *window = shape
    if not _unfolds(len(x), shape, g.shape[2:], groups, x.dtype.itemsize):
        zeros = jnp.zeros(shape, g.dtype)
        _, pull = jax.vjp(lambda weight: conv(x, weight, None, stride, padding, dilation, groups), zeros)
        return pull(g)[0]
    flat = _rows(channels_last(x), tuple(window), stride, padding, dilation)
    dw = channels_last(g).reshape(len(flat), out).T @ flat
    return jnp.moveaxis(dw.reshape(out, *window, channels), -1, 1)


class Conv(Backend):
    """See `phlox.backend.contract.nn.conv`."""

    conv = staticmethod(conv)
    conv_dx = staticmethod(conv_dx)
    conv_dw = staticmethod(conv_dw)
    im2col = op(0, 2, 3, 4, 5)(ConvOps.im2col)
    col2im = op(0, 2, 3, 4, 5, 6)(ConvOps.col2im)
