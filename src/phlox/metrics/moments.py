"""Moments about the mean, of a batch and merged over batches (Chan, Golub, LeVeque 1979), accurate for any mean.

The sum of squares of numbers near 1e8 leaves no digit for their variance. So a batch is measured about a number
in its range, so that the differences are exact; and batches are merged by the difference of their means. All values
are pairs of a value and its rounding error, like sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from phlox.backend import Bool, Int
from phlox.metrics.base import Shapes, State, Statistic
from phlox.metrics.sums import AnyTensor, Sum, add, nothing, pair, products, stacked, totals, two_sum
from phlox.tensor import ones_like, where


class Central(Statistic):
    """For each output the weight of all rows, the mean of each column, and sums of products of differences from means.

    A subclass says which products are kept.
    """

    pairs: ClassVar[tuple[tuple[int, int], ...]]
    """The two columns of each product."""

    def parts(self, outputs: int) -> Shapes:
        """The shapes of the sums."""
        columns = 1 + max(map(max, self.pairs))
        return {"weights": (outputs,), "means": (columns, outputs), "moments": (len(self.pairs), outputs)}

    def of_columns(self, columns: Sequence[AnyTensor], weights: AnyTensor | None) -> State:
        """The moments of a batch: columns [n, outputs], Float or Int, and weights [n, 1]."""
        first = columns[0]
        if not first.shape[0]:
            shapes = self.parts(first.shape[1])
            return {name: nothing(shape or (), first.device) for name, shape in shapes.items()}
        about, centers = zip(*[_about(column, weights) for column in columns], strict=True)
        terms = [(about[i], about[j]) for i, j in self.pairs]
        result, count = totals(ones_like(about[0] == about[0]), *about, *terms, weights=weights), len(columns)
        rows, sums, squares = (_at(result, index) for index in (0, slice(1, 1 + count), slice(1 + count, None)))
        shares = _quotient(sums, rows)
        moments = add(squares, _negative(self._products(shares, sums)))
        return {"weights": rows, "means": add(stacked(centers), shares), "moments": moments}

    def _joined(self, first: State, second: State) -> State:
        rows = add(first["weights"], second["weights"])
        share = _quotient(second["weights"], rows)
        gap = add(second["means"], _negative(first["means"]))
        between = _product(self._products(gap, gap), _product(first["weights"], share))
        return {
            "weights": rows,
            "means": add(first["means"], _product(gap, share)),
            "moments": add(add(first["moments"], second["moments"]), between),
        }

    def _products(self, a: Sum, b: Sum) -> Sum:
        """The product of each pair of columns."""
        left, right = ([side[end] for side in self.pairs] for end in (0, 1))
        return _product(_rows(a, left), _rows(b, right))


def differences(x: AnyTensor, y: AnyTensor) -> AnyTensor:
    """x - y as Float, rounded once; also of integers that one float does not hold."""
    if x.kind is Int and y.kind is Int:
        return ((x >> 12) - (y >> 12)).float() * 4096.0 + ((x & 4095) - (y & 4095)).float()
    return x.float() - y.float()


def _about(x: AnyTensor, weights: AnyTensor | None) -> tuple[AnyTensor, Sum]:
    """The differences of a column [n, outputs] from a number in its middle [outputs], and that number.

    If rows are so far apart that differences would be rounded, the number is 0; their variance is large then.
    """
    is_int = x.kind is Int
    is_counted = None if weights is None else (weights if weights.kind is Bool else weights > 0.0).broadcast_to(x.shape)
    # Rows without a weight may have any value; they must not change the range.
    least, most = (-(2**31), 2**31 - 1) if is_int else (-math.inf, math.inf)
    low = (x if is_counted is None else where(is_counted, x, most)).min(0)
    high = (x if is_counted is None else where(is_counted, x, least)).max(0)
    if is_int:
        center = where(low <= high, low, 0)
        return differences(x, center), Sum((center >> 12).float() * 4096.0, (center & 4095).float())
    finite = low.isfinite() & high.isfinite()
    low, high = where(finite, low, 0.0) * 0.5, where(finite, high, 0.0) * 0.5
    center = where(finite & (high - low <= low.abs().minimum(high.abs())), low + high, 0.0)
    return x - center, Sum(center, center * 0.0)


# --- arithmetic of pairs


def _negative(a: Sum) -> Sum:
    return Sum(-a.value, -a.error)


def _product(a: Sum, b: Sum) -> Sum:
    value, *others = products(a.value, b.value)
    error = a.value * b.error + a.error * b.value
    for other in others:
        value, lost = two_sum(value, other)
        error = error + lost
    return pair(value, error)


def _quotient(a: Sum, b: Sum) -> Sum:
    """a / b; zero where b is zero."""
    is_nonzero = b.value != 0.0
    denominator = Sum(where(is_nonzero, b.value, 1.0), b.error)
    first = a.value / denominator.value
    remainder = add(a, _negative(_product(Sum(first, first * 0.0), denominator)))
    second = remainder.value / denominator.value
    return pair(where(is_nonzero, first, 0.0), where(is_nonzero, second, 0.0))


def _at(a: Sum, index: int | slice) -> Sum:
    return Sum(a.value[index], a.error[index])


def _rows(a: Sum, indices: Sequence[int]) -> Sum:
    return stacked([_at(a, index) for index in indices])
