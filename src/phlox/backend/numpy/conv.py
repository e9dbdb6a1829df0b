"""Convolution on NumPy: a product of matrices for every few images, so that their columns stay in the cache."""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import Any

import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.conv import padded_sizes, window_counts
from phlox.backend.contract.types import Array, Gradients, Needed, Shape, Widths
from phlox.backend.numpy.sums import total

_BLOCK = 1 << 17
"""The approximate number of elements in the columns of a block of images: they fill a second-level cache."""
_WASTE = 1.6
"""By how much windows across the edge may lengthen the columns."""


class _Plan:
    """How windows slide over images, which have their channels first here: [channels, images, ...].

    With stride 1, a padded image is one long row, in which each position of the window reads one contiguous run of
    elements: a few long pieces to copy instead of many short ones. Some windows of such a run reach across the edge
    into the next line. Their results are cut off, and their gradients are zero.
    """

    def __init__(
        self, shape: Shape, window: Shape, stride: Shape, padding: Widths, dilation: Shape, *, lines: bool = True
    ) -> None:
        self.channels = shape[1]
        self.padded = padded_sizes(shape[2:], padding)
        self.counts = counts = window_counts(self.padded, window, stride, dilation)
        self.inside = (..., *(slice(b, size - a) for size, (b, a) in zip(self.padded, padding, strict=True)))
        self.cut = (..., *(slice(0, count) for count in counts))
        sides = [range(0, side * gap, gap) for side, gap in zip(window, dilation, strict=True)]
        positions = list(itertools.product(*sides))
        line = (counts[0], *self.padded[1:])
        self.flat = lines and set(stride) == {1} and math.prod(line) <= _WASTE * math.prod(counts)
        self.views: list[Any] = []
        if self.flat:
            self.grid, self.length = line, math.prod(line)
            strides = [math.prod(self.padded[axis + 1 :]) for axis in range(len(window))]
            starts = [sum(map(math.prod, zip(position, strides, strict=True))) for position in positions]
            self.views = [(..., slice(start, start + self.length)) for start in starts]
            self.size = starts[-1] + self.length
        else:
            self.grid, self.length, self.size = counts, math.prod(counts), math.prod(self.padded)
            reach = [step * (count - 1) + 1 for step, count in zip(stride, counts, strict=True)]
            for position in positions:
                along = zip(position, reach, stride, strict=True)
                self.views.append((..., *(slice(start, start + length, step) for start, length, step in along)))
        self.block = max(1, _BLOCK // max(1, self.channels * len(positions) * self.length))

    def blocks(self, images: int) -> list[slice]:
        """Slices of a few images each."""
        return [slice(start, min(start + self.block, images)) for start in range(0, images, self.block)]

    def canvas(self, images: int, dtype: Any) -> tuple[Array, Array]:
        """Zeros that the views index, and the part of them for the images without their padding."""
        memory = np.zeros((self.channels, images, self.size), dtype)
        padded = memory[..., : math.prod(self.padded)].reshape(self.channels, images, *self.padded)
        return memory if self.flat else padded, padded[self.inside]

    def columns(self, x: Array, groups: int) -> Array:
        """The windows of x [images, channels, *sizes], as a matrix [positions, images * windows] for each group."""
        canvas, inside = self.canvas(len(x), x.dtype)
        inside[...] = x.swapaxes(0, 1)
        first = canvas[self.views[0]]
        columns = np.empty((self.channels, len(self.views), *first.shape[1:]), x.dtype)
        for position, view in enumerate(self.views):
            columns[:, position] = canvas[view]
        return columns.reshape(groups, self.channels // groups * len(self.views), len(x) * self.length)

    def added(self, columns: Array, images: int) -> Array:
        """The transpose of `columns`: elements added at their positions in the images, [images, channels, *sizes]."""
        canvas, inside = self.canvas(images, columns.dtype)
        columns = columns.reshape(self.channels, len(self.views), *canvas[self.views[0]].shape[1:])
        for position, view in enumerate(self.views):
            canvas[view] += columns[:, position]
        return inside.swapaxes(0, 1)

    def rows(self, g: Array, groups: int) -> Array:
        """g [images, out, *counts], as a matrix [out / groups, images * windows] for each group."""
        images, out = g.shape[:2]
        wide = np.zeros((out, images, *self.grid), g.dtype)
        wide[self.cut] = g.swapaxes(0, 1)
        return wide.reshape(groups, out // groups, images * self.length)

    def images(self, rows: Array, out: int, images: int) -> Array:
        """The inverse of `rows`."""
        return rows.reshape(out, images, *self.grid)[self.cut].swapaxes(0, 1)


_plan = lru_cache(256)(_Plan)
"""Plans that depend only on shapes, cached for many calls."""


class Conv(Backend):
    """See `phlox.backend.contract.nn.conv`."""

    def conv(
        self, x: Array, weight: Array, bias: Array | None, stride: Shape, padding: Widths, dilation: Shape, groups: int
    ) -> Array:
        plan = _plan(x.shape, weight.shape[2:], stride, padding, dilation)
        out = len(weight)
        flat = _matrices(weight, groups)
        y = np.empty((len(x), out, *plan.counts), x.dtype)
        for block in plan.blocks(len(x)):
            rows = np.matmul(flat, plan.columns(x[block], groups))
            y[block] = plan.images(rows, out, block.stop - block.start)
        if bias is not None:
            y += bias.reshape(out, *(1 for _ in stride))
        return y

    def conv_backward(
        self, saved: Any, g: Array, needed: Needed, stride: Shape, padding: Widths, dilation: Shape, groups: int
    ) -> Gradients:
        x, weight = saved
        plan = _plan(x.shape, weight.shape[2:], stride, padding, dilation)
        dx, dw = _gradients(
            plan, g, groups, x if needed[1] else None, weight if needed[0] else None, x.shape, weight.shape
        )
        return dx, dw, total(g, (0, *range(2, g.ndim))) if needed[2] else None

    def conv_dx(
        self, g: Array, weight: Array, shape: Shape, stride: Shape, padding: Widths, dilation: Shape, groups: int
    ) -> Array:
        plan = _plan(shape, weight.shape[2:], stride, padding, dilation)
        return _gradients(plan, g, groups, None, weight, shape, weight.shape)[0]

    def conv_dw(
        self, x: Array, g: Array, shape: Shape, stride: Shape, padding: Widths, dilation: Shape, groups: int
    ) -> Array:
        plan = _plan(x.shape, shape[2:], stride, padding, dilation)
        return _gradients(plan, g, groups, x, None, x.shape, shape)[1]

    def im2col(self, x: Array, window: Shape, stride: Shape, padding: Widths, dilation: Shape) -> Array:
        plan = _plan(x.shape, window, stride, padding, dilation, lines=False)
        padded = self._pad_spatial(x, padding, 0.0)
        columns = np.empty((*x.shape[:2], len(plan.views), *plan.counts), x.dtype)
        for position, view in enumerate(plan.views):
            columns[:, :, position] = padded[view]
        return columns.reshape(len(x), x.shape[1] * len(plan.views), plan.length)

    def col2im(
        self, columns: Array, shape: Shape, window: Shape, stride: Shape, padding: Widths, dilation: Shape
    ) -> Array:
        plan = _plan(shape, window, stride, padding, dilation, lines=False)
        padded = np.zeros((*shape[:2], *plan.padded), columns.dtype)
        columns = columns.reshape(*shape[:2], len(plan.views), *plan.counts)
        for position, view in enumerate(plan.views):
            padded[view] += columns[:, :, position]
        return self._unpad_spatial(padded, padding)


def _matrices(weight: Array, groups: int) -> Array:
    """A weight as a matrix [out / groups, channels / groups * positions] for each group."""
    return weight.reshape(groups, len(weight) // groups, math.prod(weight.shape[1:]))


def _gradients(
    plan: _Plan, g: Array, groups: int, x: Array | None, weight: Array | None, shape: Shape, kernel: Shape
) -> tuple[Any, Any]:
    """The gradient towards the input, if `weight` is given, and that towards the weight, if `x` is."""
    dx = None if weight is None else np.empty(shape, g.dtype)
    across: Array = None if weight is None else _matrices(weight, groups).swapaxes(1, 2)
    # If a group has one output, it is a column times a row, which broadcasting computes faster.
    multiply = np.multiply if kernel[0] == groups else np.matmul
    # The long side of the weight comes first, since BLAS is faster then.
    dw = None if x is None else np.zeros((groups, math.prod(kernel[1:]), kernel[0] // groups), g.dtype)
    for block in plan.blocks(shape[0]):
        rows = plan.rows(g[block], groups)
        if dx is not None:
            dx[block] = plan.added(multiply(across, rows), block.stop - block.start)
        if dw is not None and x is not None:
            dw += np.matmul(plan.columns(x[block], groups), rows.swapaxes(1, 2))
    return dx, None if dw is None else np.ascontiguousarray(dw.swapaxes(1, 2)).reshape(kernel)
