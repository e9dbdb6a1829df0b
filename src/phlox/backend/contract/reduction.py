"""Reductions and scans, derived."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from phlox.backend.contract.elementwise import ElementwiseOps
from phlox.backend.contract.shape import part
from phlox.backend.contract.sorting import SortingOps
from phlox.backend.contract.types import Array, Axes, Shape
from phlox.backend.kind import Int
from phlox.backend.tracing.dimension import is_open, larger, ratio, same_size, smaller
from phlox.backend.tracing.symbolic import less
from phlox.host.dtypes import INT_RANGES

Between: TypeAlias = Literal["linear", "lower", "higher", "nearest", "midpoint"]
"""How a quantile between two elements is interpolated: linearly, by the lower, the higher or the nearer one (in a tie,
the one of even rank), or by their mean."""


class ReductionOps(SortingOps, ElementwiseOps):
    """Reductions over axes, and scans along one."""

    def float_mean(self, x: Array, axes: Axes, keepdims: bool) -> Array:
        """The arithmetic mean; NaN without elements."""
        count = self._count(x, axes)
        return self.float_mul(self.float_sum(x, axes, keepdims), ratio(1, count))

    def float_var(self, x: Array, axes: Axes, correction: float, keepdims: bool) -> Array:
        """The variance, divided by n - correction; NaN for too few elements."""
        size = self._count(x, axes)
        count = larger(size - int(correction), 0) if float(correction).is_integer() else size - correction
        deviation = self.float_sub(x, self.float_mean(x, axes, True))
        total = self.float_sum(self.float_square(deviation), axes, keepdims)
        return self.float_mul(total, ratio(1, count))

    def float_std(self, x: Array, axes: Axes, correction: float, keepdims: bool) -> Array:
        """The square root of the variance; the derivative is defined as zero if the variance is zero."""
        return self._safe_sqrt(self.float_var(x, axes, correction, keepdims))

    def float_logsumexp(self, x: Array, axes: Axes, keepdims: bool) -> Array:
        """log(sum(exp(x))), without overflow."""
        highest = self.detach(self._max_to_shift(x, axes, True))
        # inf - inf would be NaN: with an infinite maximum nothing is subtracted, and the sum is infinite by itself.
        shift = self.where(self.float_isfinite(highest), highest, 0.0)
        total = self.float_log(self.float_sum(self.float_exp(self.float_sub(x, shift)), axes, keepdims))
        return self.float_add(total, shift if keepdims else self.squeeze(shift, axes))

    def float_norm(self, x: Array, axes: Axes, p: float, keepdims: bool) -> Array:
        """(sum |x|^p)^(1/p); for infinite p the greatest or least |x|, for p = 0 the number of nonzero elements.

        The derivative is zero if all elements are zero.
        """
        if p == 0:
            return self.float_sum(self.bool_into_float(self.float_not_equal(x, 0.0)), axes, keepdims)
        if p == 2:
            return self._safe_sqrt(self.float_sum(self.float_square(x), axes, keepdims))
        size = self.float_abs(x)
        if math.isinf(p):
            return (self.float_max if p > 0 else self.float_min)(size, axes, keepdims)
        if p == 1:
            return self.float_sum(size, axes, keepdims)
        return self.float_pow(self.float_sum(self.float_pow(size, p), axes, keepdims), 1.0 / p)

    def float_order_statistics(self, x: Array, axes: Axes, ranks: tuple[int, ...], keepdims: bool) -> Array:
        """The elements of these ranks (0 is the least) along a new first axis; NaN if there is a NaN."""
        rows = self._rows(x, axes)
        last = len(self.shape(rows)) - 1
        size = self.shape(rows)[last]
        order = self.float_sort(rows, last, False)
        picked = [self._last_axis_entry(order, rank) for rank in ranks]
        greatest = self._last_axis_entry(order, size - 1)  # NaN counts as the greatest
        y = self.concat(picked, last) if len(picked) > 1 else picked[0]
        y = self.where(self.float_isnan(greatest), math.nan, y)
        return self._ranked(y, self.shape(x), axes, keepdims)

    def float_quantile(self, x: Array, axes: Axes, q: tuple[float, ...], between: Between, keepdims: bool) -> Array:
        """The quantiles along a new first axis; NaN if there is a NaN."""
        spans = [_rank_span(self._count(x, axes), quantile, between) for quantile in q]
        ranks = list[int]()
        for rank in [rank for low, high, _ in spans for rank in (low, high)]:
            if not any(same_size(rank, other) for other in ranks):
                ranks.append(rank)
        y = self.float_order_statistics(x, axes, tuple(ranks), keepdims)
        by_rank = [(rank, self._first_axis_entry(y, index)) for index, rank in enumerate(ranks)]
        quantiles: list[Array] = []
        for low, high, share in spans:
            a, b = [next(value for rank, value in by_rank if same_size(rank, end)) for end in (low, high)]
            if a is not b:
                between_them = self.float_add(self.float_mul(a, 1.0 - share), self.float_mul(b, share))
                # Two equal infinities are that infinity.
                a = self.where(self.float_equal(a, b), a, between_them)
            quantiles.append(a)
        return self.concat(quantiles, 0) if len(quantiles) > 1 else quantiles[0]

    def float_median(self, x: Array, axes: Axes, keepdims: bool) -> Array:
        """The middle element, or the mean of the two middle ones; NaN if there is a NaN."""
        return self.squeeze(self.float_quantile(x, axes, (0.5,), "linear", keepdims), (0,))

    def bool_count_nonzero(self, x: Array, axes: Axes, keepdims: bool) -> Array:
        """The number of true elements, as integers.

        If there are more elements than the integers can count, they are counted on the host; a count that does not fit
        is a RangeError.
        """
        if self._counts_too_many(x, axes):
            return self.on_host(Int, partial(np.sum, axis=axes, keepdims=keepdims, dtype=np.int64), x)
        return self.int_sum(self.bool_into_int(x), axes, keepdims)

    def _counts_too_many(self, x: Array, axes: Axes) -> bool:
        """Are there more elements than the integer type can count?"""
        return less(INT_RANGES[self.int_element][1], self._count(x, axes))

    # --- scans

    def float_cumprod(self, x: Array, axis: int) -> Array:
        """The cumulative product."""
        return self._scan(x, axis, self.float_mul)

    def int_cumprod(self, x: Array, axis: int) -> Array:
        """The cumulative product."""
        return self._scan(x, axis, self.int_mul)

    def float_cummax(self, x: Array, axis: int) -> Array:
        """The cumulative maximum; NaN wins."""
        return self._scan(x, axis, self.float_maximum)

    def int_cummax(self, x: Array, axis: int) -> Array:
        """The cumulative maximum."""
        return self._scan(x, axis, self.int_maximum)

    def float_cummin(self, x: Array, axis: int) -> Array:
        """The cumulative minimum; NaN wins."""
        return self._scan(x, axis, self.float_minimum)

    def int_cummin(self, x: Array, axis: int) -> Array:
        """The cumulative minimum."""
        return self._scan(x, axis, self.int_minimum)

    def float_logcumsumexp(self, x: Array, axis: int) -> Array:
        """log(cumsum(exp(x))), without overflow."""
        return self._scan(x, axis, self._log_add)

    def float_windows_adjoint(self, g: Array, axis: int, size: int, step: int, shape: Shape) -> Array:
        """The transpose of `windows`: zeros of `shape` with `g` added at the windows, overlaps summed."""
        count = self.shape(g)[axis]
        last = len(shape)
        device = self.device_of(g)
        starts = self.reshape(self.int_arange(0, count * step, step, device), (count, 1))
        order = (*range(axis + 1), last, *range(axis + 1, last))
        positions = self.int_add(starts, self.int_arange(0, size, 1, device))
        return self.float_take_adjoint(self.permute_dims(g, order), positions, axis, shape)

    # --- helpers

    def _max_to_shift(self, x: Array, axes: Axes, keepdims: bool) -> Array:
        """`float_max` for a shift by the maximum; here an engine's kernel may ignore NaN, which x itself keeps."""
        return self.float_max(x, axes, keepdims)

    def _safe_sqrt(self, x: Array) -> Array:
        """The square root, with derivative zero at zero, also for an engine's own autodiff."""
        flat = self.float_equal(x, 0.0)
        return self.where(flat, 0.0, self.float_sqrt(self.where(flat, 1.0, x)))

    def _count(self, x: Array, axes: Axes) -> int:
        return math.prod(self.shape(x)[axis] for axis in axes)

    def _rows(self, x: Array, axes: Axes) -> Array:
        """x with these axes merged into one, the last."""
        shape = self.shape(x)
        others = tuple(axis for axis in range(len(shape)) if axis not in axes)
        return self.reshape(
            self.permute_dims(x, (*others, *axes)), (*(shape[axis] for axis in others), self._count(x, axes))
        )

    def _ranked(self, y: Array, shape: Shape, axes: Axes, keepdims: bool) -> Array:
        """Move the results of each row from the last axis to the first; `keepdims` keeps the reduced axes."""
        last = len(self.shape(y)) - 1
        y = self.permute_dims(y, (last, *range(last)))
        return self.expand_dims(y, tuple(axis + 1 for axis in axes)) if keepdims and axes else y

    def _last_axis_entry(self, x: Array, index: int) -> Array:
        """One entry of the last axis, which stays with size one, also if the index depends on open axes."""
        shape = self.shape(x)
        last = len(shape) - 1
        if not is_open(index):
            return part(self, x, last, index, index + 1)
        return self.expand_dims(self.index(x, (*(slice(0, size, 1) for size in shape[:last]), index)), (last,))

    def _first_axis_entry(self, x: Array, index: int) -> Array:
        """One entry of the first axis, which stays with size one."""
        return part(self, x, 0, index, index + 1)

    def _scan(self, x: Array, axis: int, combine: Callable[[Array, Array], Array]) -> Array:
        """An inclusive scan by doubling: after n rounds each element combines up to 2**n."""
        size = self.shape(x)[axis]
        step = 1
        while step < size:
            later = combine(part(self, x, axis, 0, size - step), part(self, x, axis, step, size))
            x = self.concat((part(self, x, axis, 0, step), later), axis)
            step *= 2
        return x

    def _log_add(self, lhs: Array, rhs: Array) -> Array:
        """log(exp(lhs) + exp(rhs))."""
        equal = self.float_equal(lhs, rhs)  # two infinities must not become inf - inf
        distance = self.where(equal, 0.0, self.float_abs(self.float_sub(lhs, rhs)))
        return self.float_add(self.float_maximum(lhs, rhs), self.float_log1p(self.float_exp(self.float_neg(distance))))


def _rank_span(count: int, q: float, between: Between) -> tuple[int, int, float]:
    """The ranks of the two elements around a quantile, and its distance from the first, from 0 to 1."""
    if is_open(count):
        from fractions import Fraction  # which imports much

        share = Fraction(q).limit_denominator(_FINEST)
        if float(share) == q:
            return _open_rank_span(share.numerator * (count - 1), share.denominator, between)
    exact = q * (count - 1)
    low, high = math.floor(exact), math.ceil(exact)
    match between:
        case "lower":
            return low, low, 0.0
        case "higher":
            return high, high, 0.0
        case "nearest":
            return round(exact), round(exact), 0.0
        case "midpoint":
            return low, high, 0.5
        case "linear":
            return low, high, exact - low


_FINEST = 10_000
"""The largest denominator of q for which ranks among an open number of elements are computed as integers."""


def _open_rank_span(top: int, bottom: int, between: Between) -> tuple[int, int, float]:
    """As `_rank_span`, for the rank `top` / `bottom`, which depends on open axes."""
    low, high = top // bottom, -(-top // bottom)
    match between:
        case "lower":
            return low, low, 0.0
        case "higher":
            return high, high, 0.0
        case "nearest":  # in a tie, the even rank
            near, remainder = divmod(2 * top + bottom, 2 * bottom)
            near = near - (1 - smaller(remainder, 1)) * (near % 2)
            return near, near, 0.0
        case "midpoint":
            return low, high, 0.5
        case "linear":
            return low, high, ratio(top - low * bottom, bottom)
