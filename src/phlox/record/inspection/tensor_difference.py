"""The difference of two tensors of one shape, computed in small blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from phlox.record.dtypes import BLOCK, Array
from phlox.record.entry import LazyTensor

Floats: TypeAlias = "NDArray[np.float64]"
Tolerance: TypeAlias = "tuple[float, float]"
"""rtol and atol: |a - b| <= atol + rtol * max(|a|, |b|)."""


class Extreme(NamedTuple):
    """The largest difference of two tensors: its amount, its index (`at`), and both values."""

    amount: float
    at: tuple[int, ...]
    first: float | int | bool
    second: float | int | bool


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """The difference of two unequal tensors of one shape."""

    path: str
    size: int
    """The number of elements of each."""
    unequal: int
    """The number of unequal elements."""
    different: int
    """The number of elements that differ by more than the tolerance."""
    largest: Extreme | None
    """The largest |a - b| of finite elements; None if no such pair differs."""
    relative: Extreme | None
    """The largest |a - b| / max(|a|, |b|) of them."""
    non_finite: int
    """The number of elements where one is infinite or NaN and the other differs."""
    non_finite_at: Extreme | None
    """The first such element."""


def tensor_difference(path: str, one: LazyTensor, other: LazyTensor, tolerance: Tolerance) -> TensorDifference | None:
    """Read and compare two tensors of one shape and kind; None if all elements are equal.

    NaN equals NaN, 0 equals -0. Floats are compared in float64, ints exactly.
    """
    x, y = one.read().reshape(-1), other.read().reshape(-1)
    unequal = different = odd = 0
    largest = relative = odd_at = (0.0, -1)
    for start in range(0, x.size, BLOCK):
        a, b = x[start : start + BLOCK], y[start : start + BLOCK]
        if a.dtype == b.dtype and np.array_equal(a.view(np.uint8), b.view(np.uint8)):
            continue
        gap, scale, is_odd = _gaps(a, b)
        with np.errstate(all="ignore"):  # the difference of two finite float64 can overflow
            beyond = gap > tolerance[1] + tolerance[0] * scale
            share = gap / np.where(scale > 0, scale, 1.0)
        unequal += int(np.count_nonzero(gap)) + int(np.count_nonzero(is_odd))
        different += int(np.count_nonzero(beyond | is_odd))
        largest = max(largest, _peak(gap, start), key=_amount)
        relative = max(relative, _peak(share, start), key=_amount)
        if is_odd.any() and not odd:
            odd_at = (math.inf, start + int(is_odd.argmax()))
        odd += int(np.count_nonzero(is_odd))
    if not unequal:
        return None
    extremes = [_extreme(peak, one.shape, x, y) for peak in (largest, relative, odd_at)]
    return TensorDifference(path, x.size, unequal, different, extremes[0], extremes[1], odd, extremes[2])


def _gaps(a: Array, b: Array) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """For each pair |a - b| and max(|a|, |b|), both 0 if one is not finite; and whether such a pair differs."""
    if a.dtype.kind not in "biu":
        with np.errstate(all="ignore"):  # signalling NaNs
            p, q = a.astype(np.float64), b.astype(np.float64)
            finite = np.isfinite(p) & np.isfinite(q)
            strange = ~finite & (p != q) & ~(np.isnan(p) & np.isnan(q))
            p, q = np.where(finite, p, 0.0), np.where(finite, q, 0.0)
            return np.abs(p - q), np.maximum(np.abs(p), np.abs(q)), strange
    # int64 does not fit float64, nor a difference of two int64 an int64; sign and magnitude are exact.
    (negative, size), (other_negative, other_size) = _sign_and_magnitude(a), _sign_and_magnitude(b)
    apart = np.maximum(size, other_size) - np.minimum(size, other_size)
    total = size.astype(np.float64) + other_size.astype(np.float64)
    gap = np.where(negative == other_negative, apart.astype(np.float64), total)
    return gap, np.maximum(size, other_size).astype(np.float64), np.zeros(a.shape, np.bool_)


def _sign_and_magnitude(ints: Array) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
    if ints.dtype.kind != "i":
        return np.zeros(ints.shape, np.bool_), ints.astype(np.uint64)
    wide = ints.astype(np.int64)
    bits = wide.view(np.uint64)
    return wide < 0, np.where(wide < 0, ~bits + np.uint64(1), bits)


def _peak(amounts: Floats, start: int) -> tuple[float, int]:
    index = int(amounts.argmax())
    return float(amounts[index]), start + index


def _amount(peak: tuple[float, int]) -> float:
    return peak[0]


def _extreme(peak: tuple[float, int], shape: tuple[int, ...], x: Array, y: Array) -> Extreme | None:
    amount, position = peak
    if not amount:
        return None
    index = tuple(int(i) for i in np.unravel_index(position, shape))
    first, second = (array[position].item() for array in (x, y))
    return Extreme(amount, index, first, second)
