"""Convolution in the fastest way for XLA.

On a CPU, XLA's own convolution is slow for small images: unfolding them and multiplying matrices is faster, until the
unfolded images outgrow the cache. Channels are the last axis inside, along which a CPU's vectors run; transpositions of
neighbouring operations cancel in fusions.
"""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import itertools
import math
import operator
from functools import reduce

import jax
import jax.numpy as jnp
from jax import lax

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.conv import padded_sizes, window_counts
from phlox.backend.contract.types import Array, Shape, Widths
from phlox.backend.jax.explicit import aligned_rows, matmul, reshape, typed, zeros
from phlox.backend.jax.ops import op
from phlox.backend.jax.sizes import is_symbolic

_UNFOLDED_BYTES = {1: 16 << 20, 2: 4 << 20, 3: 64 << 20}
"""The most bytes in unfolded images, by the number of spatial axes: XLA's convolution is good for two only."""
_SLICES = {1: 8, 2: 16, 3: 24}
"""The most slices for unfolding: each is a piece of code, which XLA takes time to compile and to start."""
_LONG = 16
"""For a longer window, `im2col` gathers its positions instead of stacking slices."""
_ONE_LOOP = 32
"""Up to so many positions in a window, their gradients are summed in one loop; with more, axis by axis."""
_DEPTHWISE = {"y": 128, "dx": 64, "dw": 16}
"""The most positions in a window for a loop over all channels. XLA's own is a tenth as fast, but compiles at once."""


def _unfolds(n: int, weight: Shape, counts: Shape, stride: Shape, dilation: Shape, groups: int, size: int) -> bool:
    """Is it faster to unfold the images than to let XLA convolve?"""
    bytes_ = n * math.prod(weight[1:]) * math.prod(counts) * size
    if (
        is_symbolic(bytes_)
        or jax.default_backend() != "cpu"
        or groups != 1
        or bytes_ > _UNFOLDED_BYTES.get(len(counts), 0)
    ):
        return False
    slices = [1 if _tiles(*axis) else axis[0] for axis in zip(weight[2:], stride, dilation, strict=True)]
    return sum(slices) <= _SLICES[len(counts)]


def _tiles(side: int, stride: int, dilation: int) -> bool:
    """Are the windows along an axis adjacent, without gaps or overlaps?"""
    return side == stride and dilation == 1


def windows(x: Array, axis: int, side: int, stride: int, dilation: int, to: int) -> Array:
    """The windows along an axis of x: the axis counts the windows; axis `to` has the positions in a window."""
    count = (x.shape[axis] - dilation * (side - 1) - 1) // stride + 1
    if _tiles(side, stride, dilation):
        x = lax.slice_in_dim(x, 0, count * side, 1, axis)
        return jnp.moveaxis(reshape(x, (*x.shape[:axis], count, side, *x.shape[axis + 1 :])), axis + 1, to)
    if side > _LONG:
        positions = jnp.arange(count)[:, None] * stride + jnp.arange(side) * dilation
        return jnp.moveaxis(jnp.take(x, positions, axis, mode="clip"), axis + 1, to)
    starts = range(0, side * dilation, dilation)
    reach = stride * (count - 1) + 1
    return jnp.stack([lax.slice_in_dim(x, start, start + reach, stride, axis) for start in starts], to)


def _rows(x: Array, window: Shape, stride: Shape, padding: Widths, dilation: Shape) -> Array:
    """The elements of each window of x [n, *spatial, channels], as rows [windows, positions * channels]."""
    x = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    # Axis by axis: the number of slices is the sum of the window's sides.
    for axis, side in enumerate(window):
        x = windows(x, 1 + axis, side, stride[axis], dilation[axis], 1 + len(window) + axis)
    axes = 1 + len(window)
    return reshape(x, (math.prod(x.shape[:axes]), math.prod(x.shape[axes:])))


def channels_first(x: Array) -> Array:
    """x with its last axis, the channels, moved to position 1."""
    return jnp.moveaxis(x, -1, 1)


def channels_last(x: Array) -> Array:
    """x with its channels, axis 1, moved to the end."""
    return jnp.moveaxis(x, 1, -1)


@op(3, 4, 5, 6)
def conv(
    x: Array, weight: Array, bias: Array | None, stride: Shape, padding: Widths, dilation: Shape, groups: int
) -> Array:
    """See `phlox.backend.contract.nn.conv`."""
    out, _, *window = weight.shape
    counts = window_counts(padded_sizes(x.shape[2:], padding), tuple(window), stride, dilation)
    if _unfolds(x.shape[0], weight.shape, counts, stride, dilation, groups, x.dtype.itemsize):
        y = matmul(_rows(channels_last(x), tuple(window), stride, padding, dilation), _flat(weight))
        y = y if bias is None else y + bias
        return channels_first(reshape(y, (x.shape[0], *counts, out)))
    if _is_depthwise(weight.shape, groups, "y"):
        y = _depthwise(x, weight, stride, padding, dilation)
    else:
        if any(is_symbolic(width) for pair in padding for width in pair):
            x, padding = jnp.pad(x, ((0, 0), (0, 0), *padding)), ((0, 0),) * len(padding)
        y = lax.conv_general_dilated(x, weight, stride, padding, rhs_dilation=dilation, feature_group_count=groups)
    return y if bias is None else y + bias.reshape(out, *(1 for _ in window))


def _convolved(
    x: Array, weight: Array, stride: Shape, padding: Widths, dilation: Shape, groups: int, result: str
) -> Array:
    """The convolution whose gradient `result` ("dx" or "dw") XLA derives."""
    if _is_depthwise(weight.shape, groups, result):
        return _depthwise(x, weight, stride, padding, dilation)
    return lax.conv_general_dilated(x, weight, stride, padding, rhs_dilation=dilation, feature_group_count=groups)


def _is_depthwise(weight: Shape, groups: int, result: str) -> bool:
    """Is it a depthwise convolution, for whose `result` ("y", "dx" or "dw") our loop is faster?"""
    out, channels, *window = weight
    one_by_one = channels == 1 and groups == out
    return one_by_one and jax.default_backend() == "cpu" and math.prod(window) <= _DEPTHWISE[result]


def _depthwise(x: Array, weight: Array, stride: Shape, padding: Widths, dilation: Shape) -> Array:
    """Depthwise convolution in one loop over all positions; XLA itself would convolve channel by channel."""
    x = jnp.pad(x, ((0, 0), (0, 0), *padding))
    counts = window_counts(x.shape[2:], weight.shape[2:], stride, dilation)
    y = zeros((*x.shape[:2], *counts), x.dtype, x, {0: 0, 1: 1})
    for position in itertools.product(*map(range, weight.shape[2:])):
        starts = [index * gap for index, gap in zip(position, dilation, strict=True)]
        ends = [start + step * (count - 1) + 1 for start, step, count in zip(starts, stride, counts, strict=True)]
        part = lax.slice(x, (0, 0, *starts), (*x.shape[:2], *ends), (1, 1, *stride))
        y += part * weight[:, 0, *position].reshape(len(weight), *(1 for _ in stride))
    return y


def _flat(weight: Array) -> Array:
    """A weight [out, channels, *window] as [positions * channels, out]."""
    return jnp.moveaxis(weight, (0, 1), (-1, -2)).reshape(math.prod(weight.shape[1:]), len(weight))


@op(2, 3, 4, 5, 6)
def conv_dx(
    g: Array, weight: Array, shape: Shape, stride: Shape, padding: Widths, dilation: Shape, groups: int
) -> Array:
    """The transpose of `conv` in x."""
    out, channels, *window = weight.shape
    n, _, *counts = g.shape
    if not _unfolds(n, weight.shape, tuple(counts), stride, dilation, groups, g.dtype.itemsize):
        start = zeros(shape, g.dtype, g, {0: 0})
        _, pull = jax.vjp(lambda x: _convolved(x, weight, stride, padding, dilation, groups, "dx"), start)
        return pull(g)[0]
    parts = matmul(reshape(channels_last(g), (n * math.prod(counts), out)), _flat(weight).T)
    fold = _fold_at_once if math.prod(window) <= _ONE_LOOP else _fold
    return channels_first(fold(parts, (n, *shape[2:], channels), tuple(window), stride, padding, dilation))


def _fold_at_once(parts: Array, shape: Shape, window: Shape, stride: Shape, padding: Widths, dilation: Shape) -> Array:
    """The transpose of `_rows`, in one loop: each position in the window adds its part to the elements that it read."""
    n, *sizes, channels = shape
    counts = window_counts(padded_sizes(tuple(sizes), padding), window, stride, dilation)
    parts = reshape(parts, (n, *counts, math.prod(window) * channels))
    x = zeros(shape, parts.dtype, parts, {0: 0})
    for number, position in enumerate(itertools.product(*map(range, window))):
        part = parts[..., number * channels : (number + 1) * channels]
        axes = zip(position, sizes, counts, stride, padding, dilation, strict=True)
        config = [(0, 0, 0), *(_pad_config(*axis) for axis in axes), (0, 0, 0)]
        share = lax.pad(part, jnp.zeros((), x.dtype), config)
        x = x + share if number else share
    return x


def _fold(parts: Array, shape: Shape, window: Shape, stride: Shape, padding: Widths, dilation: Shape) -> Array:
    """The same, axis by axis: the number of parts is the sum of the window's sides."""
    n, *sizes, channels = shape
    counts = window_counts(padded_sizes(tuple(sizes), padding), window, stride, dilation)
    x = reshape(parts, (n, *counts, *window, channels))
    zero = jnp.zeros((), x.dtype)
    for axis in reversed(range(len(window))):
        target, source, side, count = 1 + axis, 1 + len(window) + axis, window[axis], counts[axis]
        before = [(0, 0, 0)] * target
        if _tiles(side, stride[axis], dilation[axis]):
            x = jnp.moveaxis(x, source, target + 1)
            x = reshape(x, (*x.shape[:target], count * side, *x.shape[target + 2 :]))
            low = -padding[axis][0]
            widths = [*before, (low, sizes[axis] - low - count * side, 0), *[(0, 0, 0)] * (x.ndim - target - 1)]
            x = lax.pad(x, zero, widths)
        else:
            shares: list[Array] = []
            for position in range(side):
                part = lax.index_in_dim(x, position, source, keepdims=False)
                shift = _pad_config(position, sizes[axis], count, stride[axis], padding[axis], dilation[axis])
                shares.append(lax.pad(part, zero, [*before, shift, *[(0, 0, 0)] * (part.ndim - target - 1)]))
            x = reduce(operator.add, shares)
    return x


def _pad_config(
    position: int, size: int, count: int, stride: int, padding: tuple[int, int], dilation: int
) -> tuple[int, int, int]:
    """The padding from one element for each window to the axis, for a position in the window; it may be negative."""
    low = position * dilation - padding[0]
    return low, size - low - ((count - 1) * stride + 1), stride - 1


@op(2, 3, 4, 5, 6)
def conv_dw(x: Array, g: Array, shape: Shape, stride: Shape, padding: Widths, dilation: Shape, groups: int) -> Array:
    """The transpose of `conv` in the weight."""
    out, channels, *window = shape
    x, g = aligned_rows(x, g, 1)
    if not _unfolds(x.shape[0], shape, g.shape[2:], stride, dilation, groups, x.dtype.itemsize):
        start = jnp.zeros(shape, g.dtype)
        _, pull = jax.vjp(lambda weight: _convolved(x, weight, stride, padding, dilation, groups, "dw"), start)
        return pull(g)[0]
    flat = _rows(channels_last(x), tuple(window), stride, padding, dilation)
    dw = matmul(reshape(channels_last(g), (len(flat), out)).T, flat)
    return jnp.moveaxis(reshape(dw, (out, *window, channels)), -1, 1)


@op(1, 2, 3, 4)
def im2col(x: Array, window: Shape, stride: Shape, padding: Widths, dilation: Shape) -> Array:
    """See `phlox.backend.contract.nn.conv`."""
    x = jnp.pad(x, ((0, 0), (0, 0), *padding))
    for axis, side in enumerate(window):
        x = windows(x, 2 + 2 * axis, side, stride[axis], dilation[axis], 2 + axis)
    axes = 2 + len(window)
    return reshape(x, (x.shape[0], math.prod(x.shape[1:axes]), math.prod(x.shape[axes:])))


@op(1, 2, 3, 4, 5)
def col2im(columns: Array, shape: Shape, window: Shape, stride: Shape, padding: Widths, dilation: Shape) -> Array:
    """The transpose of `im2col`."""
    image = typed(shape, columns.dtype, columns, {0: 0})
    return jax.linear_transpose(lambda x: im2col(x, window, stride, padding, dilation), image)(columns)[0]


class Conv(Backend):
    """See `phlox.backend.contract.nn.conv`."""

    conv = staticmethod(conv)
    conv_dx = staticmethod(conv_dx)
    conv_dw = staticmethod(conv_dw)
    im2col = staticmethod(im2col)
    col2im = staticmethod(col2im)
