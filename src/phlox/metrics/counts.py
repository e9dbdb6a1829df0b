"""Counts by class, computed on the device, and their use on the host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from phlox.errors import ShapeError
from phlox.metrics.base import Shapes, State, Statistic
from phlox.metrics.inputs import Classes, Labelled
from phlox.metrics.sums import AnyTensor, Sum, bin_totals, share_of_true, totals
from phlox.tensor import concat, ones_like, where

Array = np.ndarray[Any, Any]

# --- on the device


@dataclass(frozen=True)
class Hits(Statistic):
    """The number of correct rows, and of all rows; with `by_label`, of labels instead of rows."""

    classes: Classes
    top_k: int = 1
    by_label: bool = False

    def shapes(self) -> Shapes:
        return {"hits": (2,)}

    def measure(self, predictions: Any, targets: Any, *, weights: Any = None) -> State:
        rows = self.classes.read(predictions, targets, weights)
        hits = hits_of(rows, self.top_k, self.classes.name)
        kept = rows.weights
        if self.by_label:
            hits, kept = hits.reshape((hits.size,)), None if kept is None else kept.reshape((hits.size,))
        elif hits.ndim == 2:  # all labels of a row that have a weight
            if kept is not None:
                hits = hits | (kept == 0.0 if kept.kind is not hits.kind else ~kept)
                kept = kept.any(1) if kept.kind is hits.kind else kept.max(1)
            hits = hits.all(1)
        counts = share_of_true(hits) if kept is None else totals(hits, ones_like(hits), weights=kept)
        return {"hits": nan_if_spoilt(counts, rows)}


@dataclass(frozen=True)
class ClassCounts(Statistic):
    """For each class, the numbers of correct rows, of its rows, of rows predicted as it; for labels, of all rows."""

    classes: Classes
    top_k: int = 1

    def shapes(self) -> Shapes:
        return {"counts": (3 if self.classes.task == "multiclass" else 4, self.classes.count)}

    def measure(self, predictions: Any, targets: Any, *, weights: Any = None) -> State:
        rows = self.classes.read(predictions, targets, weights)
        is_right, targets, kept = hits_of(rows, self.top_k, self.classes.name), rows.targets, rows.weights
        if self.classes.task != "multiclass":
            columns = (rows.predictions & targets, targets, rows.predictions, ones_like(targets))
            return {"counts": nan_if_spoilt(totals(*columns, weights=kept), rows, 0)}
        size = self.classes.count
        if kept is None:
            kept = ones_like(is_right)
        hits = kept & is_right if kept.kind is is_right.kind else where(is_right, kept, 0.0)
        bin_indices = concat([targets, targets + size, rows.predictions + 2 * size])
        counts = bin_totals(bin_indices, 3 * size, concat([hits, kept, kept]))
        return {"counts": nan_if_spoilt(counts.reshape((3, size)), rows)}


@dataclass(frozen=True)
class Confusion(Statistic):
    """The number of rows for each true and predicted class, [true, predicted]."""

    classes: Classes

    def shapes(self) -> Shapes:
        size = self.size
        return {"confusion": (size, size)}

    @property
    def size(self) -> int:
        return self.classes.count if self.classes.task == "multiclass" else 2

    def measure(self, predictions: Any, targets: Any, *, weights: Any = None) -> State:
        rows = self.classes.read(predictions, targets, weights)
        size, targets, predictions, kept = self.size, rows.targets, rows.predictions, rows.weights
        if self.classes.task == "binary":
            targets, predictions = targets.reshape((targets.size,)).int(), predictions.reshape((targets.size,)).int()
            kept = None if kept is None else kept.reshape((targets.size,))
        counts = bin_totals(targets * size + predictions, size * size, kept)
        return {"confusion": nan_if_spoilt(counts.reshape((size, size)), rows)}


def hits_of(rows: Labelled, top_k: int, name: str) -> AnyTensor:
    """Which rows are correct: the target is predicted, or has one of the `top_k` greatest scores."""
    if top_k == 1:
        return (rows.predictions == rows.targets) if rows.targets.ndim == 1 else ~(rows.predictions ^ rows.targets)
    if rows.scores is None or top_k > rows.scores.shape[1]:
        description = "class numbers" if rows.scores is None else f"{rows.scores.shape[1]} classes"
        raise ShapeError(f"{name}: top_k={top_k} needs scores (Float) of at least {top_k} classes, got {description}")
    return (rows.scores.topk(top_k)[1] == rows.targets.expand_dims(-1)).any(-1)


def nan_if_spoilt(sums: Sum, rows: Labelled, axis: int | None = None) -> Sum:
    """The counts, NaN if a row with a weight has a NaN score, because it has no class and no rank."""
    if rows.spoilt is None:
        return sums
    poison = where(rows.spoilt.any(axis), math.nan, 0.0)
    return Sum(sums.value + poison, sums.error)


# --- on the host


@dataclass(frozen=True)
class Counts:
    """Counts by class on the host: true and false positives and negatives."""

    tp: Array
    fp: Array
    fn: Array
    tn: Array
    absent: Array
    """Which classes are in neither targets nor predictions, and so are left out of averages."""

    @staticmethod
    def of(counts: Array) -> Counts:
        tp, actual, predicted = counts[:3]
        rows = actual.sum() if len(counts) == 3 else counts[3]
        absent = (actual + predicted == 0) if len(counts) == 3 else rows == 0
        return Counts(tp, predicted - tp, actual - tp, rows - actual - predicted + tp, absent)


def marginals(counts: Array) -> tuple[Any, Array, Array, Any]:
    """The number of correct rows; the rows of each class; the rows predicted as it; the number of all rows."""
    if len(counts) == 3:
        return counts[0].sum(), counts[1], counts[2], counts[1].sum()
    tp, actual, predicted, rows = counts[:, 0]
    columns = (np.array([rows - positive, positive]) for positive in (actual, predicted))
    return rows - actual - predicted + 2 * tp, next(columns), next(columns), rows


def mean_of(values: Array, weights: Array | None = None) -> Any:
    """The weighted mean of the values that are not NaN; NaN if there are none."""
    is_number = ~np.isnan(values)
    if weights is None:
        weights = np.ones_like(values)
    return np.where(is_number, values * weights, 0.0).sum() / np.where(is_number, weights, 0.0).sum()
