"""Order: sorting, searching, counting; derived.

The order is the same everywhere: NaN is greater than everything, -0.0 equals 0.0, and equal values keep their order,
also when sorted in descending order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np

from phlox.backend.contract.indexing import IndexingOps
from phlox.backend.contract.types import Array
from phlox.backend.kind import Int


class SortingOps(IndexingOps):
    """Sorting, searching and counting."""

    def float_argsort(self, x: Array, axis: int, descending: bool) -> Array:
        """The argsort along an axis, ascending or descending."""
        return self.on_host(Int, partial(stable_argsort, axis=axis, descending=descending), x)

    def int_argsort(self, x: Array, axis: int, descending: bool) -> Array:
        """See `float_argsort`."""
        return self.on_host(Int, partial(stable_argsort, axis=axis, descending=descending), x)

    def float_sort(self, x: Array, axis: int, descending: bool) -> Array:
        """The elements sorted along an axis."""
        return self.take_along_axis(x, self.float_argsort(x, axis, descending), axis)

    def int_sort(self, x: Array, axis: int, descending: bool) -> Array:
        """The elements sorted along an axis."""
        return self.take_along_axis(x, self.int_argsort(x, axis, descending), axis)

    def float_argtopk(self, x: Array, k: int, axis: int, largest: bool) -> Array:
        """The indices of the k greatest (or least) elements along an axis, sorted; equal elements keep their order."""
        return self._leading(self.float_argsort(x, axis, largest), k, axis)

    def int_argtopk(self, x: Array, k: int, axis: int, largest: bool) -> Array:
        """See `float_argtopk`."""
        return self._leading(self.int_argsort(x, axis, largest), k, axis)

    def _leading(self, x: Array, count: int, axis: int) -> Array:
        return self.index(x, tuple(slice(0, count if a == axis else n, 1) for a, n in enumerate(self.shape(x))))

    def float_searchsorted(self, x: Array, values: Array, right: bool) -> Array:
        """For each of `values` [..., m], the number of sorted x [..., n] that are less (with `right`, not greater)."""
        return self._search(self._float_before, x, values, right)

    def int_searchsorted(self, x: Array, values: Array, right: bool) -> Array:
        """See `float_searchsorted`."""
        return self._search(self.int_less, x, values, right)

    def _float_before(self, lhs: Array, rhs: Array) -> Array:
        """Is the left less than the right, with NaN greater than all?"""
        last = self.bool_and(self.float_isnan(rhs), self.bool_not(self.float_isnan(lhs)))
        return self.bool_or(self.float_less(lhs, rhs), last)

    def _search(self, before: Callable[[Array, Array], Array], x: Array, values: Array, right: bool) -> Array:
        """Binary search, for all values at the same time."""
        size = self.shape(x)[-1]
        device = self.device_of(x)
        low = self.int_full(self.shape(values), 0, device)
        high = self.int_full(self.shape(values), size, device)
        for _ in range(size.bit_length()):
            middle = self.int_floordiv(self.int_add(low, high), 2)
            # Where the search has ended at n, the last element is compared, without effect.
            element = self.take_along_axis(x, self.int_minimum(middle, size - 1), len(self.shape(x)) - 1)
            beyond = self.bool_not(before(values, element)) if right else before(element, values)
            beyond = self.bool_and(beyond, self.int_less(low, high))
            low = self.where(beyond, self.int_add(middle, 1), low)
            high = self.where(beyond, high, middle)
        return low

    def float_unique(self, x: Array) -> tuple[Array, Array, Array]:
        """The unique elements of x [n] in order, as indices and counts; NaNs are equal.

        Returns the index where each unique element first occurs, the number of the unique element for each element of
        x, and the counts. Their number depends on the values, so it cannot be traced.
        """
        order = self.float_argsort(x, 0, False)
        before, after = self._neighbours(self.take(x, order, 0))
        differ = self.bool_not(self.bool_and(self.float_isnan(before), self.float_isnan(after)))
        return self._runs(order, self.bool_and(differ, self.float_not_equal(before, after)))

    def int_unique(self, x: Array) -> tuple[Array, Array, Array]:
        """See `float_unique`."""
        order = self.int_argsort(x, 0, False)
        return self._runs(order, self.int_not_equal(*self._neighbours(self.take(x, order, 0))))

    def _neighbours(self, x: Array) -> tuple[Array, Array]:
        """All elements but the last, and all but the first."""
        size = self.shape(x)[0]
        return self.index(x, (slice(0, max(size - 1, 0), 1),)), self.index(x, (slice(min(size, 1), size, 1),))

    def _runs(self, order: Array, differ: Array) -> tuple[Array, Array, Array]:
        """`float_unique`, from the order of all elements, and whether each differs from the next in it."""
        size, device = self.shape(order)[0], self.device_of(order)
        first = self.concat([self.bool_full((min(size, 1),), True, device), differ], 0)
        starts = self.bool_flatnonzero(first)
        number = self.int_sub(self.int_cumsum(self.bool_into_int(first), 0), 1)
        inverse = self.int_scatter(self.int_full((size,), 0, device), order, number, "add")
        ends = self.concat([starts, self.int_full((1,), size, device)], 0)
        before, after = self._neighbours(ends)
        return self.take(order, starts, 0), inverse, self.int_sub(after, before)


def stable_argsort(x: np.ndarray[Any, Any], axis: int, descending: bool) -> np.ndarray[Any, Any]:
    """The argsort along an axis, by NumPy."""
    if x.dtype.itemsize == 2:
        x = x.astype(np.float32)
    rows = np.moveaxis(x, axis, -1)
    if x.dtype.itemsize == 4 and x.size > 512:
        # NumPy sorts values many times faster than it argsorts them, so each value carries its index along.
        order = np.sort(with_indices(rows, descending), axis=-1).astype(np.int32)
    elif descending:
        order = rows.shape[-1] - 1 - np.argsort(rows[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    else:
        order = np.argsort(rows, axis=-1, kind="stable")
    return np.moveaxis(order, -1, axis)


def with_indices(rows: np.ndarray[Any, Any], descending: bool) -> np.ndarray[Any, Any]:
    """64-bit integers in the order of the rows' 32-bit elements: the upper half is the element, the lower its index."""
    keys = cast("Any", rows)
    if rows.dtype == np.float32:
        # As integers, floats sort in the same order, but negative ones in reverse.
        bits = (rows + np.float32(0.0)).view(np.int32)
        bits ^= (bits >> 31) & np.int32(2**31 - 1)
        bits[np.isnan(rows)] = 2**31 - 1
        keys = cast("Any", bits)
    packed = (~keys if descending else keys).astype(np.int64)
    packed <<= 32
    packed |= cast("Any", np.arange(rows.shape[-1]))
    return packed
