"""Metrics of the order of rows by their scores: areas under curves, exact or from histograms."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from phlox.metrics.base import Derived, Rows, Shapes, State, Statistic
from phlox.metrics.counts import mean_of
from phlox.metrics.inputs import Average, Classes, Task, check_average, check_count
from phlox.metrics.probability import bin_of, probabilities_of, scores_of
from phlox.metrics.sums import AnyTensor, Sum, bin_totals, stacked
from phlox.tensor import arange, ones_like, where

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ScoredRows(Statistic):
    """All scores, targets and weights; with `bins`, two histograms of scores for each class: all rows, and its own."""

    classes: Classes
    bins: int | None

    def shapes(self) -> Shapes:
        if self.bins is None:
            return {"scores": None, "targets": None, "weights": None}
        return {"histograms": (2, self.classes.count, self.bins)}

    def measure(self, predictions: Any, targets: Any, *, weights: Any = None) -> State:
        classes = self.classes
        rows = classes.read(predictions, targets, weights)
        scores = scores_of(classes.name, rows)
        if self.bins is not None or classes.task == "multiclass":
            scores = probabilities_of(classes, scores)
        kept = ones_like(rows.targets == rows.targets) if rows.weights is None else rows.weights
        if self.bins is None:
            return {"scores": Rows((scores,)), "targets": Rows((rows.targets,)), "weights": Rows((kept,))}
        return {"histograms": self._histograms(scores, rows.targets, kept, self.bins)}

    def _histograms(self, scores: AnyTensor, targets: AnyTensor, kept: AnyTensor, bins: int) -> Sum:
        n, count = scores.shape
        numbers = arange(count, device=scores.device)
        if self.classes.task == "multiclass":
            targets = targets.expand_dims(-1) == numbers
            kept = kept.expand_dims(-1).broadcast_to((n, count))
        is_counted = kept if kept.kind is targets.kind else kept > 0.0
        own = kept & targets if kept.kind is targets.kind else where(targets, kept, 0.0)
        poison = where((scores.isnan() & is_counted).any(0), math.nan, 0.0).expand_dims(-1)
        indices = (bin_of(scores, bins) + numbers * bins).reshape((n * count,))
        histograms = stacked([bin_totals(indices, count * bins, part.reshape((n * count,))) for part in (kept, own)])
        histograms = histograms.reshape((2, count, bins))
        return Sum(histograms.value + poison, histograms.error)


@dataclass(frozen=True, kw_only=True)
class Ranking(Derived):
    """The base of areas under a curve over all thresholds; of many classes, each against the rest.

    Args of `update`: `(predictions, targets)`, rows of any shape [...].

    - binary: scores, Float [...], larger for more likely; targets are 0 or 1.
    - multiclass: scores, Float [..., num_classes] with the classes along `axis`; class indices, Int [...], or one-hot.
    - multilabel: scores, Float [..., num_labels]; targets are 0 or 1, of the same shape.

    Args:
        task, num_classes, num_labels, from_logits, ignore_index, axis: see `Classification`.
        average: "macro", the mean over classes; "micro", of all classes' rows together; "weighted", the mean weighted
            by the number of rows of each class; None, an array of one value per class.
        bins: None for the exact area, which keeps all rows; or the number of equally wide bins of the probabilities.
            With bins the state has a fixed size, so it compiles; scores in one bin count as equal.
        from_logits: whether scores are logits. The exact curve depends only on the order of the scores, so in binary
            and multilabel tasks they may be any numbers.

    NaN for a class that has no rows, or all of them; averages leave such a class out. NaN, too, if scores are NaN.
    """

    num_classes: int | None = None
    task: Task = "multiclass"
    num_labels: int | None = None
    from_logits: bool = False
    ignore_index: int | None = None
    axis: int = -1
    average: Average = "macro"
    bins: int | None = None

    def __post_init__(self) -> None:
        self.statistic.classes.check()
        check_average(type(self).__name__, self.average)
        if self.bins is not None:
            check_count(type(self).__name__, "bins", self.bins)

    @property
    def statistic(self) -> ScoredRows:
        return ScoredRows(Classes.of(self), self.bins)

    @abstractmethod
    def area(self, tp: Array, fp: Array) -> float:
        """The area from the numbers of rows of the class, and of others, above each threshold, the highest first."""

    def result(
        self,
        histograms: Array | None = None,
        scores: Array | None = None,
        targets: Array | None = None,
        weights: Array | None = None,
    ) -> Any:
        if histograms is not None:
            steps = self._of_histograms(histograms)
        elif scores is None or targets is None or weights is None:
            steps = iter([(np.zeros(0), np.zeros(0))] * self.statistic.classes.count)
        else:
            steps = self._of_rows(scores, targets, weights.astype(np.float64))
        areas: list[float] = []
        sizes: list[float] = []
        has_nan = False
        for own, others in steps:
            tp, fp = np.cumsum(own), np.cumsum(others)
            areas.append(self.area(tp, fp) if own.size and not np.isnan(tp[-1]) else math.nan)
            sizes.append(float(tp[-1]) if own.size else 0.0)
            has_nan |= own.size > 0 and math.isnan(tp[-1])
        values = np.array(areas)
        if self.task == "binary" or self.average == "micro":
            return values[0]
        if self.average is None:
            return values
        if has_nan:  # scores are NaN: the class is not left out
            return math.nan
        return mean_of(values, np.array(sizes) if self.average == "weighted" else None)

    def _of_histograms(self, histograms: Array) -> Iterator[tuple[Array, Array]]:
        if self.average == "micro":
            histograms = histograms.sum(1, keepdims=True)
        for rows, own in zip(*histograms[..., ::-1], strict=True):
            yield own, rows - own

    def _of_rows(self, scores: Array, targets: Array, weights: Array) -> Iterator[tuple[Array, Array]]:
        count = scores.shape[1]
        if targets.ndim == 1:
            targets = np.eye(count, dtype=bool)[targets]
            weights = np.broadcast_to(weights[:, None], scores.shape)
        if self.average == "micro" and self.task != "binary":
            scores, targets, weights = scores.reshape(-1, 1), targets.reshape(-1, 1), weights.reshape(-1, 1)
        for label in range(scores.shape[1]):
            yield _steps(scores[:, label], targets[:, label].astype(bool), weights[:, label])


def _steps(scores: Array, is_own: Array, weights: Array) -> tuple[Array, Array]:
    """The weight of the rows of a class, and of the others, at each score, from the highest."""
    is_counted = weights > 0
    scores, is_own, weights = scores[is_counted], is_own[is_counted], weights[is_counted]
    if np.isnan(scores).any():
        return np.array([math.nan]), np.array([math.nan])
    levels, inverse = np.unique(scores, return_inverse=True)
    own, rows = (np.bincount(inverse, part, len(levels))[::-1] for part in (weights * is_own, weights))
    return own, rows - own


@dataclass(frozen=True, kw_only=True)
class Auroc(Ranking):
    """The area under the receiver operating characteristic (ROC), from 0 to 1 (Hanley, McNeil 1982).

    It is the probability that a row of the class has a higher score than a row of another class; equal scores count
    half. See `Ranking` for the arguments.

    >>> from phlox import metrics
    >>> metrics.Auroc(task="binary")([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.75
    """

    def area(self, tp: Array, fp: Array) -> float:
        if not (tp[-1] > 0 and fp[-1] > 0):
            return math.nan
        tp, fp = np.concatenate([[0.0], tp]), np.concatenate([[0.0], fp])
        return float((np.diff(fp) * (tp[1:] + tp[:-1]) / 2.0).sum() / (tp[-1] * fp[-1]))


@dataclass(frozen=True, kw_only=True)
class AveragePrecision(Ranking):
    """The average precision: the area under the precision-recall curve, from 0 to 1.

    It is the sum of (R_n - R_(n-1)) P_n over the thresholds, for recall R and precision P. See `Ranking` for the
    arguments.

    >>> from phlox import metrics
    >>> metrics.AveragePrecision(task="binary")([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    0.833...
    """

    def area(self, tp: Array, fp: Array) -> float:
        if not tp[-1] > 0:
            return math.nan
        above = tp + fp
        precision = np.divide(tp, above, out=np.zeros_like(tp), where=above > 0)
        return float((np.diff(tp, prepend=0.0) * precision).sum() / tp[-1])
