"""Classification metrics: each is a formula of the counts of true and predicted classes."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from phlox.errors import RangeError
from phlox.metrics.base import Derived, Statistic
from phlox.metrics.counts import Array, ClassCounts, Confusion, Counts, Hits, marginals, mean_of
from phlox.metrics.inputs import Average, Classes, Task, check_average, check_count, one_of


@dataclass(frozen=True, kw_only=True)
class Classification(Derived):
    """The base of classification metrics, with the arguments that all of them have.

    Args of `update`: `(predictions, targets)`, rows of any shape [...].

    - multiclass: predictions are class indices, Int [...], or scores, Float [..., num_classes] with the classes along
      `axis`, of which the largest is the prediction; targets are class indices, Int [...], or one-hot, with the shape
      of the scores.
    - binary: predictions are 0 and 1 (Int or Bool) or scores (Float), [...]; targets are 0 or 1, [...].
    - multilabel: as binary, [..., num_labels].

    Args:
        num_classes: the number of classes (multiclass).
        task: "binary", "multiclass" or "multilabel".
        num_labels: the number of labels (multilabel).
        threshold: a score with a probability above this predicts 1 (binary, multilabel).
        from_logits: whether scores are logits; otherwise they are probabilities.
        ignore_index: targets with this value are ignored.
        axis: the axis of the classes in the scores.
    """

    num_classes: int | None = None
    task: Task = "multiclass"
    num_labels: int | None = None
    threshold: float = 0.5
    from_logits: bool = False
    ignore_index: int | None = None
    axis: int = -1

    tasks: ClassVar[tuple[str, ...]] = ("binary", "multiclass", "multilabel")

    def __post_init__(self) -> None:
        self.classes.check()
        one_of(type(self).__name__, "task", self.task, (*self.tasks,))

    @property
    def classes(self) -> Classes:
        """The settings by which predictions and targets are read."""
        return Classes.of(self)

    @property
    def statistic(self) -> Statistic:
        return ClassCounts(self.classes)


@dataclass(frozen=True, kw_only=True)
class Averaged(Classification):
    """The base of metrics that are a quotient of counts for each class, averaged over classes.

    Besides the arguments of all classification metrics (see `Classification`):

    Args:
        average: "macro", the mean over classes; "micro", the quotient of the counts of all classes together;
            "weighted", the mean weighted by the number of rows of each class; None, an array of one value per class. A
            binary task has only the value of the positive class.
        zero_division: the value of 0 / 0 for a class that occurs, such as the precision of a class that is never
            predicted.

    A class that occurs neither in targets nor in predictions is NaN, and is left out of averages, as in scikit-learn.
    """

    average: Average = "macro"
    zero_division: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_average(type(self).__name__, self.average)

    @abstractmethod
    def quotient(self, c: Counts) -> tuple[Any, Any]:
        """The numerator and the denominator of each class."""

    def result(self, counts: Array) -> Any:
        c = Counts.of(counts)
        above, below = (np.asarray(part, np.float64) for part in self.quotient(c))
        absent = c.absent | ((below == 0) & (c.tp + c.fp + c.fn == 0))
        if self.task == "binary":
            above, below, absent = above[0], below[0], absent[0]
        elif self.average == "micro":
            above, below, absent = above.sum(), below.sum(), (below.sum() == 0) & ((c.tp + c.fp + c.fn).sum() == 0)
        values = np.where(absent, np.nan, np.where(below == 0, self.zero_division, above / below))
        if values.ndim == 0 or self.average is None:
            return values
        if np.isnan(above).any():  # scores are NaN: the class is not left out
            return math.nan
        return mean_of(values, c.tp + c.fn if self.average == "weighted" else None)


@dataclass(frozen=True, kw_only=True)
class Accuracy(Classification):
    """The fraction of rows (in multilabel tasks, of labels) that are predicted correctly.

    Besides the arguments of all classification metrics (see `Classification`):

    Args:
        average: "micro", the fraction over all rows; "macro", balanced accuracy: the mean, over the classes in the
            targets, of the fraction of their rows that are correct (Brodersen et al. 2010), also in a binary task;
            None, an array of the fractions by class. In multilabel tasks: over all labels, or by label.
        top_k: a row is correct if its target has one of the `top_k` largest scores; of equal scores the first count.

    `num_classes` may be left out if the average is "micro". NaN without any rows.

    >>> import phlox as px
    >>> from phlox import metrics
    >>> scores = px.tensor([[0.1, 0.7, 0.2], [0.3, 0.1, 0.6]])
    >>> metrics.Accuracy()(scores, px.tensor([1, 0])), metrics.Accuracy(top_k=2)(scores, px.tensor([1, 0]))
    (0.5, 1.0)
    """

    average: Literal["micro", "macro"] | None = "micro"
    top_k: int = 1

    def __post_init__(self) -> None:
        self.classes.check(counted=self.average != "micro")
        one_of("Accuracy", "average", self.average, ("micro", "macro", None))
        check_count("Accuracy", "top_k", self.top_k)
        if self.top_k > 1 and self.task != "multiclass":
            raise RangeError(f"Accuracy: top_k={self.top_k} is for task='multiclass', not {self.task!r}")

    @property
    def statistic(self) -> Statistic:
        if self.task == "multiclass" and self.num_classes is None:
            return Hits(self.classes, self.top_k)
        if self.task == "multilabel" and self.num_labels is None:
            return Hits(self.classes, by_label=True)
        return ClassCounts(self.classes, self.top_k)

    def result(self, counts: Array | None = None, hits: Array | None = None) -> Any:
        if counts is None:
            assert hits is not None
            return hits[0] / hits[1]
        c = Counts.of(counts)
        if self.task == "multiclass":
            class_sizes = c.tp + c.fn
            return c.tp.sum() / class_sizes.sum() if self.average == "micro" else self._over(c.tp / class_sizes, c.tp)
        if self.task == "binary" and self.average != "micro":
            return self._over(np.concatenate([c.tn / (c.tn + c.fp), c.tp / (c.tp + c.fn)]), c.tp)
        correct, rows = c.tp + c.tn, c.tp + c.fp + c.fn + c.tn
        return correct.sum() / rows.sum() if self.average == "micro" else self._over(correct / rows, correct)

    def _over(self, values: Array, counts: Array) -> Any:
        if self.average is None:
            return values
        return math.nan if np.isnan(counts).any() else mean_of(values)


@dataclass(frozen=True, kw_only=True)
class ExactMatch(Classification):
    """The fraction of rows with all labels predicted correctly; ignored labels count as correct.

    >>> from phlox import metrics
    >>> metrics.ExactMatch(num_labels=2)([[1, 0], [1, 1]], [[1, 0], [0, 1]])
    0.5
    """

    task: Task = "multilabel"
    tasks: ClassVar[tuple[str, ...]] = ("multilabel",)

    @property
    def statistic(self) -> Statistic:
        return Hits(self.classes)

    def result(self, hits: Array) -> Any:
        return hits[0] / hits[1]


@dataclass(frozen=True, kw_only=True)
class Precision(Averaged):
    """Precision, tp / (tp + fp): the fraction of the rows predicted as a class that belong to it.

    See `Averaged` for the arguments.

    >>> from phlox import metrics
    >>> metrics.Precision(num_classes=2, average=None)([0, 1, 1], [0, 1, 0]).tolist()
    [1.0, 0.5]
    """

    def quotient(self, c: Counts) -> tuple[Any, Any]:
        return c.tp, c.tp + c.fp


@dataclass(frozen=True, kw_only=True)
class Recall(Averaged):
    """Recall or sensitivity, tp / (tp + fn): the fraction of the rows of a class that are predicted as it.

    See `Averaged` for the arguments.

    >>> from phlox import metrics
    >>> metrics.Recall(num_classes=2, average=None)([0, 1, 1], [0, 1, 0]).tolist()
    [0.5, 1.0]
    """

    def quotient(self, c: Counts) -> tuple[Any, Any]:
        return c.tp, c.tp + c.fn


@dataclass(frozen=True, kw_only=True)
class Specificity(Averaged):
    """Specificity, tn / (tn + fp): the fraction of the rows of other classes that are not predicted as a class.

    See `Averaged` for the arguments.

    >>> from phlox import metrics
    >>> metrics.Specificity(task="binary")([0, 1, 1, 0], [0, 1, 0, 0])
    0.666...
    """

    def quotient(self, c: Counts) -> tuple[Any, Any]:
        return c.tn, c.tn + c.fp


@dataclass(frozen=True, kw_only=True)
class FBeta(Averaged):
    """The weighted harmonic mean of precision and recall (van Rijsbergen 1979).

    It is (1 + beta^2) tp / ((1 + beta^2) tp + beta^2 fn + fp); a `beta` above 1 gives recall more weight. See
    `Averaged` for the other arguments.

    >>> from phlox import metrics
    >>> metrics.FBeta(task="binary", beta=2.0)([1, 1, 0], [1, 0, 1])
    0.5
    """

    beta: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.beta > 0.0:
            raise RangeError(f"{type(self).__name__}: beta must be positive, got {self.beta!r}")

    def quotient(self, c: Counts) -> tuple[Any, Any]:
        square = self.beta**2
        return (1.0 + square) * c.tp, (1.0 + square) * c.tp + square * c.fn + c.fp


@dataclass(frozen=True, kw_only=True)
class F1(Averaged):
    """The harmonic mean of precision and recall, 2 tp / (2 tp + fn + fp). See `Averaged` for the arguments.

    >>> from phlox import metrics
    >>> metrics.F1(num_classes=3, average="macro")([0, 1, 2, 2], [0, 1, 1, 2])
    0.777...
    """

    def quotient(self, c: Counts) -> tuple[Any, Any]:
        return 2.0 * c.tp, 2.0 * c.tp + c.fn + c.fp


@dataclass(frozen=True, kw_only=True)
class Dice(F1):
    """The Dice coefficient of two segmentations, 2 |A & B| / (|A| + |B|) (Dice 1945): the F1 of pixels.

    See `Averaged` for the arguments.

    >>> from phlox import metrics
    >>> metrics.Dice(task="binary")([[1, 1], [0, 0]], [[1, 0], [0, 0]])
    0.666...
    """


@dataclass(frozen=True, kw_only=True)
class IoU(Averaged):
    """Intersection over union, |A & B| / |A or B| = tp / (tp + fp + fn) (Jaccard 1912). See `Averaged`.

    For images with the classes first, [N, C, H, W], give `axis=1`.

    >>> from phlox import metrics
    >>> metrics.IoU(num_classes=2)([[1, 1], [0, 0]], [[1, 0], [0, 0]])
    0.583...
    """

    def quotient(self, c: Counts) -> tuple[Any, Any]:
        return c.tp, c.tp + c.fp + c.fn


@dataclass(frozen=True, kw_only=True)
class Hamming(Classification):
    """The fraction of rows, or labels, that are predicted wrongly (Hamming 1950), which is 1 - `Accuracy`.

    >>> from phlox import metrics
    >>> metrics.Hamming(num_labels=2, task="multilabel")([[1, 0], [1, 1]], [[1, 0], [0, 1]])
    0.25
    """

    def result(self, counts: Array) -> Any:
        c = Counts.of(counts)
        if self.task == "multiclass":
            return c.fn.sum() / (c.tp + c.fn).sum()
        return (c.fp + c.fn).sum() / (c.tp + c.fp + c.fn + c.tn).sum()


@dataclass(frozen=True, kw_only=True)
class MatthewsCorrelation(Classification):
    """The Matthews correlation coefficient of predicted and true classes, from -1 to 1 (Matthews 1975).

    It is 0 if all targets, or all predictions, are the same class. Tasks: binary, multiclass (Gorodkin 2004).

    >>> from phlox import metrics
    >>> metrics.MatthewsCorrelation(task="binary")([1, 1, 0, 0], [1, 0, 0, 0])
    0.577...
    """

    tasks: ClassVar[tuple[str, ...]] = ("binary", "multiclass")

    def result(self, counts: Array) -> Any:
        if np.array_equal(counts, np.floor(counts)):  # as Python integers, whose products are exact
            counts = np.array([[int(number) for number in row] for row in counts], object)
        correct, actual, predicted, rows = marginals(counts)
        spread = (predicted * (rows - predicted)).sum() * (actual * (rows - actual)).sum()
        if rows > 0 and spread <= 0:
            return 0.0
        return float(correct * rows - (actual * predicted).sum()) / np.sqrt(float(spread))


@dataclass(frozen=True, kw_only=True)
class CohenKappa(Classification):
    """Cohen's kappa: the agreement of predictions and targets beyond chance, at most 1 (Cohen 1960).

    It is (p_o - p_e) / (1 - p_e), with the observed agreement p_o and the one expected by chance p_e. Besides the
    arguments of all classification metrics (see `Classification`):

    Args:
        weighting: the weight of an error: None, all equal; "linear" or "quadratic" in the distance of the class indices
            (Cohen 1968).

    NaN if all targets and all predictions are one class. Tasks: binary, multiclass.

    >>> from phlox import metrics
    >>> metrics.CohenKappa(num_classes=2)([1, 1, 0, 0], [1, 0, 0, 0])
    0.5
    """

    weighting: Literal["linear", "quadratic"] | None = None
    tasks: ClassVar[tuple[str, ...]] = ("binary", "multiclass")

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("CohenKappa", "weighting", self.weighting, ("linear", "quadratic", None))

    @property
    def statistic(self) -> Statistic:
        return ClassCounts(self.classes) if self.weighting is None else Confusion(self.classes)

    def result(self, counts: Array | None = None, confusion: Array | None = None) -> Any:
        if confusion is None:
            assert counts is not None
            correct, actual, predicted, rows = marginals(counts)
            chance = (actual * predicted).sum() / rows
            return (correct - chance) / (rows - chance)
        indices = np.arange(len(confusion))
        cost = np.abs(indices[:, None] - indices) ** (1 if self.weighting == "linear" else 2)
        chance = confusion.sum(1)[:, None] * confusion.sum(0) / confusion.sum()
        return 1.0 - (cost * confusion).sum() / (cost * chance).sum()


@dataclass(frozen=True, kw_only=True)
class ConfusionMatrix(Classification):
    """The confusion matrix: the number of rows for each true and predicted class, [true, predicted].

    In multilabel tasks its shape is [label, 2, 2]. Besides the arguments of all classification metrics (see
    `Classification`):

    Args:
        normalize: None, counts; "true", fractions of each matrix row; "pred", of each column; "all", of the total.

    Without any rows it is all zeros; a fraction of zero rows is NaN.

    >>> from phlox import metrics
    >>> metrics.ConfusionMatrix(num_classes=2)([0, 1, 1], [0, 1, 0]).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """

    normalize: Literal["true", "pred", "all"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("ConfusionMatrix", "normalize", self.normalize, ("true", "pred", "all", None))

    @property
    def statistic(self) -> Statistic:
        return ClassCounts(self.classes) if self.task == "multilabel" else Confusion(self.classes)

    def result(self, confusion: Array | None = None, counts: Array | None = None) -> Array:
        if confusion is None:
            assert counts is not None
            c = Counts.of(counts)
            confusion = np.stack([c.tn, c.fp, c.fn, c.tp], -1).reshape(-1, 2, 2)
        if self.normalize is None:
            return confusion
        axis = {"true": -1, "pred": -2, "all": (-2, -1)}[self.normalize]
        return confusion / confusion.sum(axis, keepdims=True)
