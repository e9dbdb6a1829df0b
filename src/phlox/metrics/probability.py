"""Metrics of predicted probabilities: how surprising the targets are, and whether confidence matches accuracy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from phlox.errors import KindError, RangeError
from phlox.metrics.base import Derived, Metric, Rows, Shapes, State, Statistic
from phlox.metrics.classification import Classification
from phlox.metrics.inputs import Classes, Labelled, Task, check_count, one_of
from phlox.metrics.sums import AnyTensor, bin_totals, stacked, totals
from phlox.tensor import linspace, ones_like, where

Array = np.ndarray[Any, Any]


def scores_of(name: str, rows: Labelled) -> AnyTensor:
    """The scores of the rows; `KindError` if predictions are not scores."""
    if rows.scores is None:
        raise KindError(f"{name}: predictions must be scores (Float), got class numbers or truths")
    return rows.scores


def probabilities_of(classes: Classes, scores: AnyTensor) -> AnyTensor:
    """The probabilities of scores, which are probabilities or logits."""
    if not classes.from_logits:
        return scores
    return scores.softmax(-1) if classes.task == "multiclass" else scores.sigmoid()


# --- loss


@dataclass(frozen=True)
class Surprise(Statistic):
    """The sum of -log p(target), and the number of targets."""

    classes: Classes
    epsilon: float

    def shapes(self) -> Shapes:
        return {"losses": (2,)}

    def measure(self, predictions: Any, targets: Any, *, weights: Any = None) -> State:
        rows = self.classes.read(predictions, targets, weights)
        scores = scores_of(self.classes.name, rows)
        if self.classes.task == "multiclass":
            log_p = scores.log_softmax(-1) if self.classes.from_logits else self._log(scores)
            losses = -log_p.take_along_axis(rows.targets.expand_dims(-1), -1)[:, 0]
        elif self.classes.from_logits:
            losses = where(rows.targets, -scores, scores).softplus()
        else:
            losses = -self._log(where(rows.targets, scores, 1.0 - scores))
        flat = losses.reshape((losses.size,))
        kept = None if rows.weights is None else rows.weights.reshape((losses.size,))
        return {"losses": totals(flat, ones_like(flat > 0.0), weights=kept)}

    def _log(self, p: AnyTensor) -> AnyTensor:
        return p.maximum(self.epsilon).log()


@dataclass(frozen=True, kw_only=True)
class LogLoss(Classification):
    """The cross-entropy: the mean of -log p(target), in nats.

    Args of `update`: `(predictions, targets)`: scores, Float [..., classes] (binary [...], multilabel [..., labels],
    with equal weight for all labels), and targets; see `Classification`.

    Besides the arguments of all classification metrics (see `Classification`):

    Args:
        epsilon: probabilities below this are replaced by it; logits need no such bound.

    `num_classes` may be left out. NaN without any rows.

    >>> from phlox import metrics
    >>> metrics.LogLoss()([[0.5, 0.5], [0.25, 0.75]], [0, 1])
    0.490...
    """

    epsilon: float = 1e-7

    def __post_init__(self) -> None:
        self.classes.check(counted=False)
        if not 0.0 < self.epsilon < 1.0:
            raise RangeError(f"LogLoss: epsilon lies between 0 and 1, got {self.epsilon!r}")

    @property
    def statistic(self) -> Statistic:
        return Surprise(self.classes, self.epsilon)

    def result(self, losses: Array) -> Any:
        return losses[0] / losses[1]


@dataclass(frozen=True, kw_only=True)
class Perplexity(Derived):
    """The perplexity of a language model, exp of the mean of -log p(token) (Jelinek et al. 1977).

    Args of `update`: `(predictions, targets)`, scores [..., vocabulary], and tokens, Int [...].

    Args:
        from_logits: whether scores are logits; otherwise they are probabilities.
        ignore_index: targets with this value (padding) are ignored.

    NaN without any tokens.

    >>> import phlox as px
    >>> from phlox import metrics
    >>> metrics.Perplexity()(px.zeros((2, 3, 8)), px.zeros((2, 3), kind=px.Int))
    8.0
    """

    from_logits: bool = True
    ignore_index: int | None = None
    epsilon: float = 1e-7

    @property
    def statistic(self) -> Statistic:
        return Surprise(Classes.of(self), self.epsilon)

    def result(self, losses: Array) -> Any:
        return np.exp(losses[0] / losses[1])


# --- calibration


@dataclass(frozen=True, kw_only=True)
class CalibrationError(Metric):
    """The gap between confidence and accuracy, over bins of confidence (Naeini et al. 2015; Guo et al. 2017).

    In a multiclass task the confidence is the largest probability, and a row is correct if it is the target's. In a
    binary task the probability is compared with the fraction of targets that are 1.

    Args of `update`: `(predictions, targets)`, scores and targets; see `Classification`.

    Args:
        bins: the number of bins.
        norm: "l1", the mean gap, weighted by the rows of the bins (ECE); "l2", the root of the mean square; "max", the
            largest gap (MCE).
        adaptive: whether bins have equal numbers of rows instead of equal widths (Nguyen, O'Connor 2015); keeps all
            rows.
        task, num_classes, from_logits, ignore_index, axis: see `Classification`; `num_classes` may be left out.

    NaN without any rows.

    >>> from phlox import metrics
    >>> metrics.CalibrationError(task="binary", bins=2)([0.25, 0.75, 1.0], [0, 1, 1])
    0.166...
    """

    bins: int = 15
    norm: Literal["l1", "l2", "max"] = "l1"
    adaptive: bool = False
    task: Task = "multiclass"
    num_classes: int | None = None
    from_logits: bool = False
    ignore_index: int | None = None
    axis: int = -1
    tasks: ClassVar[tuple[str, ...]] = ("binary", "multiclass")

    def __post_init__(self) -> None:
        self.classes.check(counted=False)
        one_of("CalibrationError", "task", self.task, self.tasks)
        one_of("CalibrationError", "norm", self.norm, ("l1", "l2", "max"))
        check_count("CalibrationError", "bins", self.bins)

    @property
    def classes(self) -> Classes:
        """The settings by which predictions and targets are read."""
        return Classes.of(self)

    def shapes(self) -> Shapes:
        if self.adaptive:
            return {"confidence": None, "right": None, "weights": None}
        return {"bins": (3, self.bins)}

    def measure(self, predictions: Any, targets: Any, *, weights: Any = None) -> State:
        rows = self.classes.read(predictions, targets, weights)
        p = probabilities_of(self.classes, scores_of("CalibrationError", rows))
        right = rows.targets if self.task == "binary" else rows.predictions == rows.targets
        flat = (rows.targets.shape[0],)
        confidence, right = (p if self.task == "binary" else p.max(-1)).reshape(flat), right.reshape(flat)
        kept = ones_like(right) if rows.weights is None else rows.weights.reshape(flat)
        if self.adaptive:
            return {"confidence": Rows((confidence,)), "right": Rows((right,)), "weights": Rows((kept,))}
        bin_indices = bin_of(confidence, self.bins)
        is_counted = kept if kept.kind is right.kind else kept > 0.0
        confidences = where(is_counted, confidence if kept.kind is right.kind else kept * confidence, 0.0)
        hits = kept & right if kept.kind is right.kind else where(right, kept, 0.0)
        return {"bins": stacked([bin_totals(bin_indices, self.bins, column) for column in (kept, confidences, hits)])}

    def result(
        self,
        bins: Array | None = None,
        confidence: Array | None = None,
        right: Array | None = None,
        weights: Array | None = None,
    ) -> Any:
        if bins is None:
            if confidence is None or right is None or weights is None:
                return math.nan
            bins = self._adapted(confidence.astype(np.float64), right, weights.astype(np.float64))
        rows, total, hits = bins
        gaps = np.abs(hits - total) / rows
        share = rows / rows.sum()
        if not rows.sum() > 0:
            return math.nan
        occupied = rows > 0
        gaps, share = gaps[occupied], share[occupied]
        if self.norm == "max":
            return gaps.max()
        return (share * gaps).sum() if self.norm == "l1" else np.sqrt((share * gaps**2).sum())

    def _adapted(self, confidence: Array, right: Array, weights: Array) -> Array:
        is_counted = weights > 0
        confidence, right, weights = confidence[is_counted], right[is_counted], weights[is_counted]
        order = np.argsort(confidence, kind="stable")
        confidence, right, weights = confidence[order], right[order], weights[order]
        before = np.cumsum(weights) - weights / 2.0
        bin_indices = np.minimum((before / max(weights.sum(), 1e-300) * self.bins).astype(int), self.bins - 1)
        return np.stack(
            [np.bincount(bin_indices, column, self.bins) for column in (weights, weights * confidence, weights * right)]
        )


def bin_of(x: AnyTensor, bins: int, low: float = 0.0, high: float = 1.0) -> AnyTensor:
    """The index of a number's bin, of `bins` equal half-open bins from `low` to `high`; outside, the first or last."""
    if bins == 1:
        return (x > math.inf).int()
    edges = linspace(low, high, bins + 1, device=x.device)[1:-1]
    return edges.searchsorted(x, side="right")
