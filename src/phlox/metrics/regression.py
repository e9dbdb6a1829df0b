"""Metrics of numbers: errors, explained variance, correlations."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from phlox.backend import Bool
from phlox.errors import RangeError, ShapeError
from phlox.metrics.base import Derived, Metric, Rows, Shapes, State, Statistic
from phlox.metrics.inputs import check_count, expect_same, meet, one_of, row_weights
from phlox.metrics.moments import Central, differences
from phlox.metrics.sums import AnyTensor, totals
from phlox.tensor import functional, ones_like

Array = np.ndarray[Any, Any]


def numbers(
    name: str, predictions: Any, targets: Any, weights: Any, outputs: int | None
) -> tuple[AnyTensor, AnyTensor, AnyTensor | None]:
    """Predictions and targets as [n, outputs], Float or Int, and weights [n, 1]; without `outputs` all are rows."""
    p, t, weights = meet(name, predictions=predictions, targets=targets, weights=weights)
    expect_same(name, p, t)
    if outputs is not None and (not p.ndim or p.shape[-1] != outputs):
        raise ShapeError(f"{name}: predictions of shape {p.shape} have no num_outputs={outputs} along their last axis")
    rows = p.shape if outputs is None else p.shape[:-1]
    weights = row_weights(name, weights, rows)
    flat = (math.prod(rows), outputs or 1)
    p, t = (x.float() if x.kind is Bool else x for x in (p, t))
    return p.reshape(flat), t.reshape(flat), None if weights is None else weights.expand_dims(-1)


@dataclass(frozen=True, kw_only=True)
class OfNumbers:
    """The base of regression metrics, with the arguments that all of them have.

    Args of `update`: `(predictions, targets)`, two arrays of one shape, [...] or [..., num_outputs].

    Args:
        num_outputs: the number of outputs along the last axis, each of which is measured separately; None means one.
        multioutput: the result for several outputs: "uniform_average", their mean; "raw_values", an array.
    """

    num_outputs: int | None = None
    multioutput: Literal["uniform_average", "raw_values", "variance_weighted"] = "uniform_average"

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.num_outputs is not None:
            check_count(name, "num_outputs", self.num_outputs, " or None")
        one_of(name, "multioutput", self.multioutput, self.choices)

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values of `multioutput`."""
        return ("uniform_average", "raw_values")

    def over_outputs(self, values: Array, weights: Array | None = None) -> Any:
        """One value for all outputs, or an array of all values, as `multioutput` says."""
        if self.multioutput == "raw_values":
            return values if self.num_outputs is not None else values[0]
        if self.multioutput == "variance_weighted" and weights is not None:
            return (values * weights).sum() / weights.sum()
        return values.mean()


# --- means of errors


@dataclass(frozen=True, kw_only=True)
class MeanError(OfNumbers, Metric):
    """The weighted mean of an error of each number; NaN without any. See `OfNumbers` for the arguments."""

    @abstractmethod
    def error(self, predictions: AnyTensor, targets: AnyTensor) -> AnyTensor:
        """The error of each number, [...]."""

    def shapes(self) -> Shapes:
        return {"errors": (2, self.num_outputs or 1)}

    def measure(self, predictions: Any, targets: Any, *, weights: Any = None) -> State:
        p, t, weights = numbers(type(self).__name__, predictions, targets, weights, self.num_outputs)
        error = self.error(p, t)
        return {"errors": totals(error, ones_like(error > 0.0), weights=weights)}

    def result(self, errors: Array) -> Any:
        return self.over_outputs(errors[0] / errors[1])


@dataclass(frozen=True, kw_only=True)
class MeanAbsoluteError(MeanError):
    """The mean of |prediction - target|. See `OfNumbers` for the arguments.

    >>> from phlox import metrics
    >>> metrics.MeanAbsoluteError()([1.0, 2.0], [1.0, 4.0])
    1.0
    """

    def error(self, predictions: AnyTensor, targets: AnyTensor) -> AnyTensor:
        return differences(predictions, targets).abs()


@dataclass(frozen=True, kw_only=True)
class SquaredErrors(OfNumbers, Statistic):
    """The sum of (prediction - target)^2, and the number of rows."""

    name: str = field(default="MeanSquaredError", compare=False)

    def shapes(self) -> Shapes:
        return {"errors": (2, self.num_outputs or 1)}

    def measure(self, predictions: Any, targets: Any, *, weights: Any = None) -> State:
        p, t, weights = numbers(self.name, predictions, targets, weights, self.num_outputs)
        gap = differences(p, t)
        return {"errors": totals((gap, gap), ones_like(gap > 0.0), weights=weights)}


@dataclass(frozen=True, kw_only=True)
class MeanSquaredError(OfNumbers, Derived):
    """The mean of (prediction - target)^2. See `OfNumbers` for the arguments.

    >>> from phlox import metrics
    >>> metrics.MeanSquaredError()([1.0, 2.0], [1.0, 4.0])
    2.0
    """

    @property
    def statistic(self) -> Statistic:
        return SquaredErrors(num_outputs=self.num_outputs, name=type(self).__name__)

    def result(self, errors: Array) -> Any:
        return self.over_outputs(errors[0] / errors[1])


@dataclass(frozen=True, kw_only=True)
class RootMeanSquaredError(MeanSquaredError):
    """The root of the mean of (prediction - target)^2, for each output separately. See `OfNumbers` for the arguments.

    >>> from phlox import metrics
    >>> metrics.RootMeanSquaredError()([1.0, 2.0], [1.0, 4.0])
    1.414...
    """

    def result(self, errors: Array) -> Any:
        return self.over_outputs(np.sqrt(errors[0] / errors[1]))


@dataclass(frozen=True, kw_only=True)
class MeanAbsolutePercentageError(MeanError):
    """The mean of |prediction - target| / |target|, as a fraction: 0.1 is ten percent.

    Besides the arguments of `OfNumbers`:

    Args:
        epsilon: if |target| is smaller than this, it is replaced by it.

    >>> from phlox import metrics
    >>> metrics.MeanAbsolutePercentageError()([1.0, 3.0], [1.0, 4.0])
    0.125
    """

    epsilon: float = 1.17e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.epsilon > 0.0:
            raise RangeError(f"MeanAbsolutePercentageError: epsilon must be positive, got {self.epsilon!r}")

    def error(self, predictions: AnyTensor, targets: AnyTensor) -> AnyTensor:
        return differences(predictions, targets).abs() / targets.float().abs().maximum(self.epsilon)


@dataclass(frozen=True, kw_only=True)
class CosineSimilarity(Metric):
    """The mean cosine similarity of predictions and targets, vectors along `axis`.

    Args of `update`: `(predictions, targets)`, two arrays of one shape, [..., d]. The cosine with a zero vector is 0.

    >>> from phlox import metrics
    >>> metrics.CosineSimilarity()([[1.0, 0.0], [1.0, 1.0]], [[2.0, 0.0], [0.0, 1.0]])
    0.853...
    """

    axis: int = -1

    def shapes(self) -> Shapes:
        return {"cosines": (2,)}

    def measure(self, predictions: Any, targets: Any, *, weights: Any = None) -> State:
        name = "CosineSimilarity"
        p, t, weights = meet(name, predictions=predictions, targets=targets, weights=weights)
        expect_same(name, p, t)
        if not -p.ndim <= self.axis < p.ndim:
            raise ShapeError(f"{name}: predictions of shape {p.shape} have no axis {self.axis}")
        cosines = functional.cosine_similarity(p.float(), t.float(), axis=self.axis)
        weights = row_weights(name, weights, cosines.shape)
        flat = cosines.reshape((cosines.size,))
        return {"cosines": totals(flat, ones_like(flat > 0.0), weights=weights)}

    def result(self, cosines: Array) -> Any:
        return cosines[0] / cosines[1]


# --- of moments


@dataclass(frozen=True, kw_only=True)
class Moments(OfNumbers, Central):
    """For each output the moments of predictions p, targets t and gaps t - p: p p, t t, p t, and of the gaps."""

    name: str = field(default="Moments", compare=False)
    pairs: ClassVar[tuple[tuple[int, int], ...]] = ((0, 0), (1, 1), (0, 1), (2, 2))

    def shapes(self) -> Shapes:
        return self.parts(self.num_outputs or 1)

    def measure(self, predictions: Any, targets: Any, *, weights: Any = None) -> State:
        p, t, weights = numbers(self.name, predictions, targets, weights, self.num_outputs)
        return self.of_columns([p, t, differences(t, p)], weights)


@dataclass(frozen=True, kw_only=True)
class OfMoments(OfNumbers, Derived):
    """The base of metrics that are computed from moments about the mean. See `OfNumbers` for the arguments."""

    @property
    def statistic(self) -> Statistic:
        return Moments(num_outputs=self.num_outputs, name=type(self).__name__)


@dataclass(frozen=True, kw_only=True)
class Explained(OfMoments):
    """The base of metrics that are 1 - (unexplained variance / variance of the targets).

    With `multioutput="variance_weighted"` outputs are weighted by the variance of their targets.
    """

    @property
    def choices(self) -> tuple[str, ...]:
        return ("uniform_average", "raw_values", "variance_weighted")

    @abstractmethod
    def unexplained(self, weights: Array, gaps: Array, spread: Array) -> Array:
        """The sum of squares that is not explained, from the weight, the mean and the moment of the gaps."""

    def result(self, weights: Array, means: Array, moments: Array) -> Any:
        total = moments[1]
        unexplained = self.unexplained(weights, means[2], np.maximum(moments[3], 0.0))
        return self.over_outputs(np.where(total > 0.0, 1.0 - unexplained / total, np.nan), total)


@dataclass(frozen=True, kw_only=True)
class R2(Explained):
    """The coefficient of determination, 1 - sum (t - p)^2 / sum (t - mean t)^2; at most 1.

    NaN if all targets are equal, as with a single row. See `OfNumbers` for the arguments.

    >>> from phlox import metrics
    >>> metrics.R2()([1.0, 2.0, 4.0], [1.0, 2.0, 3.0])
    0.5
    """

    def unexplained(self, weights: Array, gaps: Array, spread: Array) -> Array:
        return spread + weights * gaps**2


@dataclass(frozen=True, kw_only=True)
class ExplainedVariance(Explained):
    """The explained variance, 1 - var(t - p) / var(t): like `R2`, but it ignores a constant offset of the predictions.

    NaN if all targets are equal. See `OfNumbers` for the arguments.

    >>> from phlox import metrics
    >>> metrics.ExplainedVariance()([2.0, 3.0, 4.0], [1.0, 2.0, 3.0])
    1.0
    """

    def unexplained(self, weights: Array, gaps: Array, spread: Array) -> Array:
        return spread


@dataclass(frozen=True, kw_only=True)
class Pearson(OfMoments):
    """Pearson's correlation of predictions and targets, from -1 to 1. See `OfNumbers` for the arguments.

    NaN if either is constant.

    >>> from phlox import metrics
    >>> metrics.Pearson()([1.0, 2.0, 4.0], [1.0, 2.0, 3.0])
    0.981...
    """

    def result(self, weights: Array, means: Array, moments: Array) -> Any:
        product = np.sqrt(np.maximum(moments[0], 0.0)) * np.sqrt(np.maximum(moments[1], 0.0))
        return self.over_outputs(np.where(product > 0.0, np.clip(moments[2] / product, -1.0, 1.0), np.nan))


@dataclass(frozen=True, kw_only=True)
class Spearman(Metric):
    """Spearman's rank correlation, from -1 to 1: the `Pearson` correlation of ranks; equal numbers get their mean rank.

    Args of `update`: `(predictions, targets)`, two arrays of one shape; each number is a row. Weights count as
    repetitions. Keeps all rows. NaN if either is constant.

    >>> from phlox import metrics
    >>> metrics.Spearman()([1.0, 2.0, 9.0], [1.0, 2.0, 3.0])
    1.0
    """

    def shapes(self) -> Shapes:
        return {"predictions": None, "targets": None, "weights": None}

    def measure(self, predictions: Any, targets: Any, *, weights: Any = None) -> State:
        p, t, weights = numbers("Spearman", predictions, targets, weights, None)
        kept = ones_like(p > 0.0) if weights is None else weights
        columns = {"predictions": p, "targets": t, "weights": kept}
        return {name: Rows((column.reshape((p.size,)),)) for name, column in columns.items()}

    def result(self, predictions: Array | None, targets: Array | None, weights: Array | None) -> Any:
        if predictions is None or targets is None or weights is None:
            return math.nan
        w = weights.astype(np.float64)
        is_counted = w > 0
        w, p, t = w[is_counted], predictions[is_counted], targets[is_counted]
        if not w.size or np.isnan(p).any() or np.isnan(t).any():
            return math.nan
        p, t = (_ranks(x, w) for x in (p, t))
        p, t = (x - np.average(x, weights=w) for x in (p, t))
        product = (w * p * p).sum() * (w * t * t).sum()
        return (w * p * t).sum() / math.sqrt(product) if product > 0.0 else math.nan


def _ranks(x: Array, weights: Array) -> Array:
    """The rank of each number; equal numbers get their mean rank, and a weight counts as that many rows."""
    _, inverse = np.unique(x, return_inverse=True)
    weight_of_value = np.bincount(inverse, weights)
    return (np.cumsum(weight_of_value) - (weight_of_value - 1.0) / 2.0)[inverse]
