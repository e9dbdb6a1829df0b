"""Counts by class, computed on the device, and their use on the host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from phlox.errors import ShapeError
from phlox.metrics.base import Shapes, State, Statistic
from phlox.metrics.inputs import Classes, Labelled
from phlox.metrics.sums import AnyTensor, Sum, bin_totals, totals
from phlox.tensor import concat, ones_like, where

Array = np.ndarray[Any, Any]

# --- on the device


@dataclass(frozen=True)
class Hits(Statistic):
    """How many rows there are, and how many of them are right; with `by_label`, how many labels, of all rows."""

    classes: Classes
    top_k: int = 1
    by_label: bool = False

    def shapes(self) -> Shapes:
        return {"hits": (2,)}

    def measure(self, predictions: Any, targets: Any, *, weights: Any = None) -> State:
        rows = self.classes.read(predictions, targets, weights)
        right = hits_of(rows, self.top_k, self.classes.name)
        kept = rows.weights
        if self.by_label:
            right, kept = right.reshape((right.size,)), None if kept is None else kept.reshape((right.size,))
        elif right.ndim == 2:  # all labels of a row, of those that count
            if kept is not None:
                right = right | (kept == 0.0 if kept.kind is not right.kind else ~kept)
                kept = kept.any(1) if kept.kind is right.kind else kept.max(1)
            right = right.all(1)
        return {"hits": noticed(totals(right, ones_like(right), weights=kept), rows)}


@dataclass(frozen=True)
class ClassCounts(Statistic):
    """For each class the numbers of correct rows, of its rows, and of rows predicted as it; for labels, of all rows."""

    classes: Classes
    top_k: int = 1

    def shapes(self) -> Shapes:
        return {"counts": (3 if self.classes.task == "multiclass" else 4, self.classes.count)}

    def measure(self, predictions: Any, targets: Any, *, weights: Any = None) -> State:
        rows = self.classes.read(predictions, targets, weights)
        right, targets, kept = hits_of(rows, self.top_k, self.classes.name), rows.targets, rows.weights
        if self.classes.task != "multiclass":
            columns = (rows.predictions & targets, targets, rows.predictions, ones_like(targets))
            return {"counts": noticed(totals(*columns, weights=kept), rows, 0)}
        size = self.classes.count
        if kept is None:
            kept = ones_like(right)
        hit = kept & right if kept.kind is right.kind else where(right, kept, 0.0)
        places = concat([targets, targets + size, rows.predictions + 2 * size])
        found = bin_totals(places, 3 * size, concat([hit, kept, kept]))
        return {"counts": noticed(found.reshape((3, size)), rows)}


@dataclass(frozen=True)
class Confusion(Statistic):
    """How many rows of each class are predicted to be of which: [true, predicted]."""

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
        found = bin_totals(targets * size + predictions, size * size, kept)
        return {"confusion": noticed(found.reshape((size, size)), rows)}


def hits_of(rows: Labelled, top_k: int, name: str) -> AnyTensor:
    """Which rows are right: the target is predicted, or among the `top_k` greatest scores."""
    if top_k == 1:
        return (rows.predictions == rows.targets) if rows.targets.ndim == 1 else ~(rows.predictions ^ rows.targets)
    if rows.scores is None or top_k > rows.scores.shape[1]:
        got = "class numbers" if rows.scores is None else f"{rows.scores.shape[1]} classes"
        raise ShapeError(f"{name}: top_k={top_k} needs scores (Float) of as many classes, got {got}")
    return (rows.scores.topk(top_k)[1] == rows.targets.expand_dims(-1)).any(-1)


def noticed(found: Sum, rows: Labelled, axis: int | None = None) -> Sum:
    """Counts that are NaN if the score of a row that counts is: it has no class, and no rank."""
    if rows.spoilt is None:
        return found
    poison = where(rows.spoilt.any(axis), math.nan, 0.0)
    return Sum(found.value + poison, found.error)


# --- on the host


@dataclass(frozen=True)
class Counts:
    """Counts by class on the host: true and false positives and negatives."""

    tp: Array
    fp: Array
    fn: Array
    tn: Array
    absent: Array
    """Which classes are neither among targets nor predictions, and have no part in an average."""

    @staticmethod
    def of(counts: Array) -> Counts:
        tp, actual, predicted = counts[:3]
        rows = actual.sum() if len(counts) == 3 else counts[3]
        absent = (actual + predicted == 0) if len(counts) == 3 else rows == 0
        return Counts(tp, predicted - tp, actual - tp, rows - actual - predicted + tp, absent)


def marginals(counts: Array) -> tuple[Any, Array, Array, Any]:
    """How many rows are right; how many are of each class, and predicted to be; how many there are."""
    if len(counts) == 3:
        return counts[0].sum(), counts[1], counts[2], counts[1].sum()
    tp, actual, predicted, rows = counts[:, 0]
    of_each = (np.array([rows - positive, positive]) for positive in (actual, predicted))
    return rows - actual - predicted + 2 * tp, next(of_each), next(of_each), rows


def mean_of(values: Array, weights: Array | None = None) -> Any:
    """The weighted mean of the values that are not NaN; NaN if there are none."""
    there = ~np.isnan(values)
    if weights is None:
        weights = np.ones_like(values)
    return np.where(there, values * weights, 0.0).sum() / np.where(there, weights, 0.0).sum()
