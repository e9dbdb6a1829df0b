"""Convolution over any number of spatial axes."""

from __future__ import annotations

import math
from typing import Any

from phlox.backend.contract.indexing import IndexingOps
from phlox.backend.contract.types import Array, Gradients, Index, Needed, Shape, Widths
from phlox.backend.tracing.dimension import pads


class ConvOps(IndexingOps):
    """Convolution of x [n, channels, *spatial] with weight [out, channels / groups, *window].

    Options have one entry for each spatial axis: a number for `stride` and `dilation`, and for `padding` a pair of
    numbers of zeros (before, after).
    """

    # --- windows as columns: two linear maps, each the other's transpose

    def im2col(self, x: Array, window: Shape, stride: Shape, padding: Widths, dilation: Shape) -> Array:
        """The elements of each window as columns [n, channels * window size, windows], in row-major order."""
        x = self._pad_spatial(x, padding, 0.0)
        # Axis by axis: the number of slices is the sum of the window's sides, not their product.
        for axis, side in enumerate(window):
            views = self._views(self.shape(x), 2 + 2 * axis, side, stride[axis], dilation[axis])
            x = self.concat([self.expand_dims(self.index(x, view), (2 + axis,)) for view in views], 2 + axis)
        n, channels, *sizes = self.shape(x)
        return self.reshape(x, (n, channels * math.prod(window), math.prod(sizes[len(window) :])))

    def col2im(
        self, columns: Array, shape: Shape, window: Shape, stride: Shape, padding: Widths, dilation: Shape
    ) -> Array:
        """The transpose of `im2col`: zeros of `shape` with the columns added at their windows."""
        padded = padded_sizes(shape[2:], padding)
        counts = window_counts(padded, window, stride, dilation)
        x = self.reshape(columns, (*shape[:2], *window, *counts))
        for axis in reversed(range(len(window))):
            have = self.shape(x)
            sizes = (*have[: 2 + axis], *have[3 + axis : 2 + 2 * axis + 1], padded[axis], *have[2 + 2 * axis + 2 :])
            views = self._views(sizes, 2 + 2 * axis, window[axis], stride[axis], dilation[axis])
            every = [slice(0, size, 1) for size in have]
            parts = [self.index(x, (*every[: 2 + axis], index, *every[3 + axis :])) for index in range(window[axis])]
            x = self._spread(parts, sizes, views)
        return self._unpad_spatial(x, padding)

    # --- conv: the three maps are each other's derivatives

    def conv(
        self,
        x: Array,
        weight: Array,
        bias: Array | None,
        stride: Shape,
        padding: Widths,
        dilation: Shape,
        groups: int,
    ) -> Array:
        """Convolution (strictly, cross-correlation): the weights times the columns."""
        n, *sizes = self.shape(x)
        out, _, *window = self.shape(weight)
        columns = self.im2col(x, tuple(window), stride, padding, dilation)
        _, rows, windows = self.shape(columns)
        columns = self.reshape(columns, (n, groups, rows // groups, windows))
        y = self.float_matmul(self.reshape(weight, (groups, out // groups, rows // groups)), columns)
        counts = window_counts(padded_sizes(tuple(sizes[1:]), padding), tuple(window), stride, dilation)
        y = self.reshape(y, (n, out, *counts))
        return y if bias is None else self.float_add(y, self.reshape(bias, (out, *(1 for _ in window))))

    def conv_dx(
        self,
        g: Array,
        weight: Array,
        shape: Shape,
        stride: Shape,
        padding: Widths,
        dilation: Shape,
        groups: int,
    ) -> Array:
        """The gradient of an input of `shape`: transposed convolution; linear in `g` and `weight`."""
        n, out, *counts = self.shape(g)
        _, channels, *window = self.shape(weight)
        rows = channels * math.prod(window)
        flat = self.reshape(weight, (groups, out // groups, rows))
        parts = self.reshape(g, (n, groups, out // groups, math.prod(counts)))
        parts = self.float_matmul(self.permute_dims(flat, (0, 2, 1)), parts)
        columns = self.reshape(parts, (n, groups * rows, math.prod(counts)))
        return self.col2im(columns, shape, tuple(window), stride, padding, dilation)

    def conv_dw(
        self,
        x: Array,
        g: Array,
        shape: Shape,
        stride: Shape,
        padding: Widths,
        dilation: Shape,
        groups: int,
    ) -> Array:
        """The gradient of a weight of `shape`; linear in `x` and `g`."""
        out, channels, *window = shape
        rows = channels * math.prod(window)
        columns = self.im2col(x, tuple(window), stride, padding, dilation)
        n, _, windows = self.shape(columns)
        columns = self.permute_dims(self.reshape(columns, (n, groups, rows, windows)), (1, 0, 3, 2))
        flat = self.permute_dims(self.reshape(g, (n, groups, out // groups, windows)), (1, 2, 0, 3))
        flat = self.reshape(flat, (groups, out // groups, n * windows))
        return self.reshape(self.float_matmul(flat, self.reshape(columns, (groups, n * windows, rows))), shape)

    def conv_forward(
        self,
        x: Array,
        weight: Array,
        bias: Array | None,
        stride: Shape,
        padding: Widths,
        dilation: Shape,
        groups: int,
    ) -> tuple[Array, Any]:
        """See `conv`."""
        return self.conv(x, weight, bias, stride, padding, dilation, groups), (x, weight)

    def conv_backward(
        self, saved: Any, g: Array, needed: Needed, stride: Shape, padding: Widths, dilation: Shape, groups: int
    ) -> Gradients:
        """See `conv_dx` and `conv_dw`."""
        x, weight = saved
        options = (stride, padding, dilation, groups)
        dx = self.conv_dx(g, weight, self.shape(x), *options) if needed[0] else None
        dw = self.conv_dw(x, g, self.shape(weight), *options) if needed[1] else None
        db = self.float_sum(g, (0, *range(2, len(self.shape(g)))), False) if needed[2] else None
        return dx, dw, db

    # --- windows

    def _pad_spatial(self, x: Array, padding: Widths, value: float) -> Array:
        """Pad the spatial axes."""
        return self.pad(x, ((0, 0), (0, 0), *padding), value) if pads(padding) else x

    def _unpad_spatial(self, x: Array, padding: Widths) -> Array:
        """The inverse of `_pad_spatial`."""
        if not pads(padding):
            return x
        n, channels, *sizes = self.shape(x)
        inside = (slice(before, size - after, 1) for size, (before, after) in zip(sizes, padding, strict=True))
        return self.index(x, (slice(0, n, 1), slice(0, channels, 1), *inside))

    def _spread(self, parts: list[Array], shape: Shape, views: list[Index]) -> Array:
        """The sum of parts, each at its view of zeros of `shape`."""
        total = self.float_index_adjoint(parts[0], shape, views[0])
        for part, view in zip(parts[1:], views[1:], strict=True):
            total = self.float_add(total, self.float_index_adjoint(part, shape, view))
        return total

    @staticmethod
    def _views(shape: Shape, axis: int, side: int, stride: int, dilation: int) -> list[Index]:
        """For each position in a window along an axis, the slice of the elements at this position in all windows."""
        reach = stride * ((shape[axis] - dilation * (side - 1) - 1) // stride) + 1
        every = [slice(0, size, 1) for size in shape]
        starts = range(0, side * dilation, dilation)
        return [(*every[:axis], slice(start, start + reach, stride), *every[axis + 1 :]) for start in starts]


def padded_sizes(sizes: Shape, padding: Widths) -> Shape:
    """Sizes with their padding."""
    return tuple(size + before + after for size, (before, after) in zip(sizes, padding, strict=True))


def window_counts(padded: Shape, window: Shape, stride: Shape, dilation: Shape) -> Shape:
    """The number of windows that fit along each axis."""
    return tuple(
        (size - d * (side - 1) - 1) // s + 1 for size, side, s, d in zip(padded, window, stride, dilation, strict=True)
    )
