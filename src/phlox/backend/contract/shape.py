"""Shapes, derived."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import numpy as np

from phlox.backend.contract.arrays import ArrayOps
from phlox.backend.contract.types import Array, Axes, Shape
from phlox.backend.device import Device
from phlox.backend.tracing.dimension import is_open

Mode: TypeAlias = Literal["reflect", "symmetric", "edge", "wrap"]
"""The padding modes, by NumPy's names: mirrored at the last element or after it, repeating the last element, or
wrapping around."""


def part(ops: ArrayOps, x: Array, axis: int, start: int, stop: int, step: int = 1) -> Array:
    """The elements from `start` up to but not including `stop` along an axis."""
    slices = [slice(0, size, 1) for size in ops.shape(x)]
    slices[axis] = slice(start, stop, step)
    return ops.index(x, tuple(slices))


def replaced(sizes: Shape, axis: int, *new: int) -> Shape:
    """A shape with one size replaced by others."""
    return (*sizes[:axis], *new, *sizes[axis + 1 :])


class ShapingOps(ArrayOps):
    """Shapes and slices; the same function for every kind."""

    def squeeze(self, x: Array, axes: Axes) -> Array:
        """Remove axes of size one."""
        return self.reshape(x, tuple(size for axis, size in enumerate(self.shape(x)) if axis not in axes))

    def expand_dims(self, x: Array, axes: Axes) -> Array:
        """Insert axes of size one, at these positions in the result."""
        sizes = list(self.shape(x))
        for axis in sorted(axes):
            sizes.insert(axis, 1)
        return self.reshape(x, tuple(sizes))

    def roll(self, x: Array, shifts: tuple[int, ...], axes: Axes) -> Array:
        """Roll elements along axes, as `numpy.roll`; one shift for each axis."""
        for shift, axis in zip(shifts, axes, strict=True):
            size = self.shape(x)[axis]
            count = shift % size if size else 0
            if is_open(count) or count:
                x = self.concat((part(self, x, axis, size - count, size), part(self, x, axis, 0, size - count)), axis)
        return x

    def repeat(self, x: Array, times: int, axis: int) -> Array:
        """Repeat each element, as `numpy.repeat`."""
        shape = self.shape(x)
        spread = self.broadcast_to(self.expand_dims(x, (axis + 1,)), replaced(shape, axis, shape[axis], times))
        return self.reshape(spread, replaced(shape, axis, shape[axis] * times))

    def tile(self, x: Array, times: tuple[int, ...]) -> Array:
        """Repeat the whole array along each axis, as `numpy.tile`."""
        shape = self.shape(x)
        apart = self.expand_dims(x, tuple(range(0, 2 * len(shape), 2)))
        sizes = tuple(size for pair in zip(times, shape, strict=True) for size in pair)
        return self.reshape(
            self.broadcast_to(apart, sizes), tuple(n * size for n, size in zip(times, shape, strict=True))
        )

    def extend(self, x: Array, widths: tuple[tuple[int, int], ...], mode: Mode) -> Array:
        """Pad with the array's own elements; an axis that is padded is not empty."""
        for axis, (before, after) in enumerate(widths):
            if before or after:
                positions = np.pad(np.arange(self.shape(x)[axis]), (before, after), mode=mode)
                x = self.concat([self._spaced(x, axis, *run) for run in _runs(positions)], axis)
        return x

    def _spaced(self, x: Array, axis: int, start: int, step: int, count: int) -> Array:
        """`count` elements along an axis, at positions `start`, `start + step`, ...; `step` is 1, 0 or -1."""
        if step == 0:
            return self.broadcast_to(part(self, x, axis, start, start + 1), replaced(self.shape(x), axis, count))
        if step > 0:
            return part(self, x, axis, start, start + count)
        return self.flip(part(self, x, axis, start - count + 1, start + 1), (axis,))

    def windows(self, x: Array, axis: int, size: int, step: int) -> Array:
        """Sliding windows, `step` apart: the axis counts the windows, and a new last axis has their elements."""
        shape = self.shape(x)
        count = (shape[axis] - size) // step + 1
        device = self.device_of(x)
        starts = self.reshape(self.int_arange(0, count * step, step, device), (count, 1))
        rows = self.take(x, self.int_add(starts, self.int_arange(0, size, 1, device)), axis)
        order = (*range(axis + 1), *range(axis + 2, len(shape) + 1), axis + 1)
        return self.permute_dims(rows, order)

    def bool_tri(self, rows: int, columns: int, k: int, device: Device) -> Array:
        """A matrix that is true on and below its k-th diagonal; 0 is the main one, positive ones are above it."""
        last_columns = self.reshape(self.int_arange(k, k + rows, 1, device), (rows, 1))
        return self.int_less_equal(self.int_arange(0, columns, 1, device), last_columns)


def _runs(positions: np.ndarray[Any, Any]) -> Iterator[tuple[int, int, int]]:
    """Positions as runs (start, step, count): each position is the previous one plus `step`, which is 1, 0 or -1."""
    steps = np.diff(positions)
    start = 0
    while start < len(positions):
        step = int(steps[start]) if start < len(steps) and abs(steps[start]) <= 1 else 1
        breaks = np.flatnonzero(steps[start:] != step)
        count = int(breaks[0]) + 1 if len(breaks) else len(positions) - start
        yield int(positions[start]), step, count
        start += count
