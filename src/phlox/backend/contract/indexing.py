"""Gathering and scattering by integer indices, derived."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np

from phlox.backend.contract.arithmetic import ArithmeticOps
from phlox.backend.contract.types import Array, Arrays, Index, Shape
from phlox.backend.kind import Float, Int
from phlox.backend.tracing.slices import slice_size
from phlox.errors import IndexRangeError

Mode: TypeAlias = Literal["set", "add", "mul", "min", "max"]
"""How updates combine with the element at their position; if several set one element, the last wins."""


class IndexingOps(ArithmeticOps):
    """Gathering and scattering."""

    # --- basic indexing

    def index_set(self, x: Array, values: Array, index: Index) -> Array:
        """x with `values` in place of the elements that `index` reads."""
        shape = self.shape(x)
        hit = self._embedded(self.bool_full(self.shape(values), True, self.device_of(x)), shape, index, False)
        return self.where(hit, self._embedded(values, shape, index, 0), x)

    def float_index_adjoint(self, g: Array, shape: Shape, index: Index) -> Array:
        """Zeros of `shape` with `g` written at a basic index: the transpose of `index`."""
        return self._embedded(g, shape, index, 0.0)

    def _embedded(self, values: Array, shape: Shape, index: Index, fill: float) -> Array:
        """An array of `shape` with `values` at an index and `fill` elsewhere."""
        steps = [entry if isinstance(entry, slice) else slice(entry, entry + 1, 1) for entry in index]
        counts = tuple(slice_size(entry, size) for entry, size in zip(steps, shape, strict=True))
        x = self.reshape(values, counts)
        if any(count > 1 and entry.step > 1 for count, entry in zip(counts, steps, strict=True)):
            # Every element gets a new axis, which is padded by the gap after it.
            gaps = [entry.step - 1 if count > 1 else 0 for count, entry in zip(counts, steps, strict=True)]
            x = self.reshape(values, tuple(size for count in counts for size in (count, 1)))
            x = self.pad(x, tuple(width for gap in gaps for width in ((0, 0), (0, gap))), fill)
            x = self.reshape(x, tuple(count * (gap + 1) for count, gap in zip(counts, gaps, strict=True)))
            used = tuple(count * (gap + 1) - gap for count, gap in zip(counts, gaps, strict=True))
            counts = tuple(max(size, 0) for size in used)
            x = self.index(x, tuple(slice(0, size, 1) for size in counts))
        widths = tuple(
            (entry.start, size - entry.start - count) if count else (size, 0)
            for entry, size, count in zip(steps, shape, counts, strict=True)
        )
        return self.pad(x, widths, fill)

    # --- indices in an array

    def float_scatter(self, x: Array, positions: Array, updates: Array, mode: Mode) -> Array:
        """x [n, ...] with `updates` [k, ...] written at the rows `positions` [k]; updates of one row combine."""
        return self.on_host(Float, partial(scatter, mode=mode), x, positions, updates)

    def int_scatter(self, x: Array, positions: Array, updates: Array, mode: Mode) -> Array:
        """See `float_scatter`."""
        return self.on_host(Int, partial(scatter, mode=mode), x, positions, updates)

    def bool_scatter(self, x: Array, positions: Array, updates: Array, mode: Mode) -> Array:
        """See `float_scatter`; truth counts as 1."""
        return self.int_into_bool(self.int_scatter(self.bool_into_int(x), positions, self.bool_into_int(updates), mode))

    def int_last_update(self, positions: Array, size: int) -> Array:
        """For each of `positions` [k] in an axis of `size`, the index in `positions` of the last equal one."""
        device = self.device_of(positions)
        numbers = self.int_arange(0, self.shape(positions)[0], 1, device)
        last = self.int_scatter(self.int_full((size,), -1, device), positions, numbers, "max")
        return self.take(last, positions, 0)

    def int_ravel_index(self, indices: Arrays, sizes: Shape) -> Array:
        """The flat, row-major positions of the elements with these indices: one array for each axis; they broadcast.

        Negative indices count from the end. If an index is out of range, so is the position.
        """
        position: Any = None
        is_outside: Any = None
        for index, size in zip(indices, sizes, strict=True):
            index = self.where(self.int_less(index, 0), self.int_add(index, size), index)
            is_wrong = self.bool_or(self.int_less(index, 0), self.int_less_equal(size, index))
            is_outside = is_wrong if is_outside is None else self.bool_or(is_outside, is_wrong)
            position = index if position is None else self.int_add(self.int_mul(position, size), index)
        return self.where(is_outside, math.prod(sizes), position)

    def int_places_along(self, indices: Array, axis: int, shape: Shape) -> Array:
        """The flat, row-major positions in an array of `shape` that `take_along_axis` reads at `indices`."""
        device = self.device_of(indices)
        grid: list[Array] = []
        for a, size in enumerate(self.shape(indices)):
            line = tuple(size if other == a else 1 for other in range(len(shape)))
            grid.append(indices if a == axis else self.reshape(self.int_arange(0, size, 1, device), line))
        return self.int_ravel_index(grid, shape)

    def float_take_adjoint(self, g: Array, indices: Array, axis: int, shape: Shape) -> Array:
        """Zeros of `shape` with `g` added at `indices` along the axis: the transpose of `take`."""
        before, size, after = shape[:axis], shape[axis], shape[axis + 1 :]
        count = math.prod(self.shape(indices))
        order = (axis, *range(axis), *range(axis + 1, len(shape)))
        rows = self.permute_dims(self.reshape(g, (*before, count, *after)), order)
        zeros = self.float_full((size, *before, *after), 0.0, self.device_of(g))
        y = self.float_scatter(zeros, self.reshape(indices, (count,)), rows, "add")
        return self.permute_dims(y, (*range(1, axis + 1), 0, *range(axis + 1, len(shape))))

    def float_take_along_axis_adjoint(self, g: Array, indices: Array, axis: int, shape: Shape) -> Array:
        """Zeros of `shape` with `g` added at `indices`: the transpose of `take_along_axis`."""
        zeros = self.float_full((math.prod(shape),), 0.0, self.device_of(g))
        positions = self.reshape(self.int_places_along(indices, axis, shape), (math.prod(self.shape(indices)),))
        return self.reshape(self.float_scatter(zeros, positions, self.reshape(g, self.shape(positions)), "add"), shape)

    def bool_flatnonzero(self, x: Array) -> Array:
        """The indices of the true elements of x [n]. Their number depends on the values, so it cannot be traced."""
        return self.on_host(Int, np.flatnonzero, x)


_COMBINE: dict[str, Callable[..., Any]] = {
    "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
}  # fmt: skip


@np.errstate(all="ignore")
def scatter(
    x: np.ndarray[Any, Any], positions: np.ndarray[Any, Any], updates: np.ndarray[Any, Any], mode: Mode
) -> np.ndarray[Any, Any]:
    """`float_scatter` by NumPy."""
    size = x.shape[0]
    if positions.size:
        least, greatest = int(positions.min()), int(positions.max())
        if least < -size or greatest >= size:
            worst = greatest if greatest >= size else least
            raise IndexRangeError(f"index {worst} is out of range for an axis of size {size}")
    out = np.array(x)
    if mode == "set":
        out[positions] = updates
        return out
    combine: Any = _COMBINE[mode]
    if updates.ndim == 1 or positions.size < 16:
        combine.at(out, positions, updates)
        return out
    # Combining whole groups of rows is several times faster than row by row.
    rows = np.where(positions < 0, positions + size, positions)
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    first = np.flatnonzero(np.concatenate(([True], rows[1:] != rows[:-1])))
    groups = combine.reduceat(updates[order], first, axis=0, dtype=x.dtype)
    out[rows[first]] = combine(out[rows[first]], groups)
    return out
