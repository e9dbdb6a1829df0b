"""Metrics of numbers that are measured elsewhere: means, spread, quantiles, rows a second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from phlox.backend import Bool
from phlox.errors import RangeError
from phlox.metrics.base import Metric, Rows, Shapes, State
from phlox.metrics.inputs import check_count, meet, row_weights
from phlox.metrics.moments import Central
from phlox.metrics.probability import bin_of
from phlox.metrics.sums import AnyTensor, Sum, bin_totals, totals
from phlox.tensor import ones_like, where

Array = np.ndarray[Any, Any]


def _flat(name: str, values: Any, weights: Any) -> tuple[AnyTensor, AnyTensor | None]:
    """All numbers as rows [n], Float or Int, and their weights."""
    values, weights = meet(name, values=values, weights=weights)
    values = values.float() if values.kind is Bool else values
    return values.reshape((values.size,)), row_weights(name, weights, values.shape)


@dataclass(frozen=True)
class Mean(Metric):
    """The weighted mean of numbers; NaN without any.

    Args of `update`: `(values)`, of any shape. To weight the mean loss of a batch with its number of rows:
    `mean.update(state, loss, weights=len(x))`.

    >>> from phlox import metrics
    >>> mean = metrics.Mean()
    >>> state = mean.update(mean.init(), 1.0, weights=3)
    >>> mean.compute(mean.update(state, 5.0))
    2.0
    """

    def shapes(self) -> Shapes:
        return {"moments": (2,)}

    def measure(self, values: Any, *, weights: Any = None) -> State:
        x, weights = _flat("Mean", values, weights)
        return {"moments": totals(ones_like(x == x), x, weights=weights)}

    def result(self, moments: Array) -> Any:
        return moments[1] / moments[0]


@dataclass(frozen=True, kw_only=True)
class StandardDeviation(Central, Metric):
    """The standard deviation of numbers: the root of the weighted mean of (x - mean)^2.

    Args of `update`: `(values)`, of any shape.

    Args:
        correction: the number subtracted from the number of rows: 0 for the deviation of the values themselves, 1 for
            an estimate of the population's.

    NaN unless there are more rows than `correction`.

    >>> from phlox import metrics
    >>> metrics.StandardDeviation()([1.0, 2.0, 3.0, 4.0])
    1.118...
    """

    correction: float = 0.0
    pairs: ClassVar[tuple[tuple[int, int], ...]] = ((0, 0),)

    def shapes(self) -> Shapes:
        return self.parts(1)

    def measure(self, values: Any, *, weights: Any = None) -> State:
        x, weights = _flat("StandardDeviation", values, weights)
        return self.of_columns([x.expand_dims(-1)], None if weights is None else weights.expand_dims(-1))

    def result(self, weights: Array, means: Array, moments: Array) -> Any:
        rows = weights[0] - self.correction
        return np.sqrt(np.maximum(moments[0, 0], 0.0) / rows) if rows > 0 else math.nan


@dataclass(frozen=True, kw_only=True)
class Quantile(Metric):
    """Quantiles of numbers, with linear interpolation between two numbers, as `numpy.quantile`.

    Args of `update`: `(values)`, of any shape. Weights count as repetitions.

    Args:
        q: the quantile, from 0 to 1, by default the median; or a sequence, for an array with one value for each.
        bins: None for the exact quantile, which keeps all numbers; or the number of equally wide bins in `range`. With
            bins the state has a fixed size, so it compiles; the value is within a bin's width of the exact one.
        range: the smallest and the largest number, for bins; numbers outside count in the first or last bin.

    NaN without any numbers.

    >>> from phlox import metrics
    >>> metrics.Quantile(q=[0.5, 0.9])([1.0, 2.0, 3.0, 4.0]).tolist()
    [2.5, 3.7]
    """

    q: float | Sequence[float] = 0.5
    bins: int | None = None
    range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.q, (int, float)):
            object.__setattr__(self, "q", tuple(self.q))
        if not np.all((np.asarray(self.q) >= 0.0) & (np.asarray(self.q) <= 1.0)):
            raise RangeError(f"Quantile: q lies between 0 and 1, got {self.q!r}")
        if self.bins is not None:
            check_count("Quantile", "bins", self.bins)
        if (self.bins is None) != (self.range is None):
            raise RangeError("Quantile: bins= and range= are given together, or neither is")
        if self.range is not None and not (
            len(self.range) == 2 and -math.inf < self.range[0] < self.range[1] < math.inf
        ):
            raise RangeError(f"Quantile: range is two numbers, the lower one first, got {self.range!r}")

    def shapes(self) -> Shapes:
        return {"values": None, "weights": None} if self.bins is None else {"histogram": (self.bins,)}

    def measure(self, values: Any, *, weights: Any = None) -> State:
        x, weights = _flat("Quantile", values, weights)
        x = x.float()
        if self.bins is not None and self.range is not None:
            counts = bin_totals(bin_of(x, self.bins, *self.range), self.bins, weights)
            spoilt = x.isnan() if weights is None else x.isnan() & (weights if weights.kind is Bool else weights > 0.0)
            return {"histogram": Sum(counts.value + where(spoilt.any(), math.nan, 0.0), counts.error)}
        return {"values": Rows((x,)), "weights": Rows((ones_like(x > 0.0) if weights is None else weights,))}

    def result(self, values: Array | None = None, weights: Array | None = None, histogram: Array | None = None) -> Any:
        q: Array = np.asarray(self.q, np.float64)
        if histogram is not None and self.range is not None:
            return self._of_histogram(histogram, *self.range, q)
        if values is None or weights is None:
            return np.full(q.shape, math.nan)
        w, x = weights.astype(np.float64), values.astype(np.float64)
        order = np.argsort(x[w > 0], kind="stable")
        x, w = x[w > 0][order], w[w > 0][order]
        if not x.size or np.isnan(x).any():
            return np.full(q.shape, math.nan)
        cumulative: Any = np.cumsum(w)
        position: Array = np.clip(q * (cumulative[-1] - 1.0), 0.0, None)
        low, high = (
            x[np.clip(np.searchsorted(cumulative, at, side="right"), 0, x.size - 1)]
            for at in (np.floor(position), np.floor(position) + 1.0)
        )
        fraction: Array = position - np.floor(position)
        return np.where(fraction > 0.0, low + (high - low) * fraction, low)

    def _of_histogram(self, histogram: Array, low: float, high: float, q: Array) -> Array:
        cumulative: Array = np.cumsum(histogram)
        if not cumulative[-1] > 0:
            return np.full(q.shape, math.nan)
        rank: Array = np.maximum(q * cumulative[-1], 1e-300)  # for q = 0, the first bin that is not empty
        bin_index: Array = np.minimum(np.searchsorted(cumulative, rank), len(histogram) - 1)
        rows: Array = histogram[bin_index]
        fraction: Array = (rank - (cumulative[bin_index] - rows)) / np.maximum(rows, 1e-300)
        return low + (bin_index + np.clip(fraction, 0.0, 1.0)) * (high - low) / len(histogram)


@dataclass(frozen=True)
class Throughput(Metric):
    """The number of items (such as rows or tokens) that are processed per second.

    Args of `update`: `(count, seconds)`: the number of items and the time they took; wait for the engine before you
    read the clock. `merge` adds up seconds too: for processes that work at the same time, compute the throughput of one
    process and multiply it by their number.

    NaN if no time has passed.

    >>> from phlox import metrics
    >>> metrics.Throughput()(512, 0.25)
    2048.0
    """

    def shapes(self) -> Shapes:
        return {"counts": (2,)}

    def measure(self, count: Any, seconds: Any, *, weights: Any = None) -> State:
        if weights is not None:
            raise RangeError("Throughput has no weights; multiply the count")
        n, duration = meet("Throughput", count=count, seconds=float(seconds))
        return {"counts": totals(n.reshape((1,)), duration.reshape((1,)))}

    def result(self, counts: Array) -> Any:
        return counts[0] / counts[1] if counts[1] > 0 else math.nan
