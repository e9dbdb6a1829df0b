"""The arguments of metrics: arrays of any library, moved to one backend; rows, their weights, and classes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from phlox.backend import Bool, Float, Int, NumPy
from phlox.errors import BackendError, IndexRangeError, KindError, RangeError, ShapeError
from phlox.host.dtypes import HALF_ELEMENTS
from phlox.metrics.sums import AnyTensor, is_traced
from phlox.tensor import Tensor, tensor, where
from phlox.tensor.backend_promotion import common_backend

Task: TypeAlias = Literal["binary", "multiclass", "multilabel"]
"""Two classes; one of many classes; any number of labels."""
Average: TypeAlias = Literal["micro", "macro", "weighted"] | None
"""How to average over classes; None does not average. See `Averaged`."""


def meet(name: str, **operands: Any) -> list[Any]:
    """Convert the operands to tensors of one backend, without gradients and at full precision.

    Arrays, lists and numbers are put on the device of the tensors; without tensors, on NumPy, in float64 if one of them
    is float64. None stays None.

    Raises `BackendError`, with `name`, for tensors of different backends.

    >>> predictions, targets = meet("MyMetric", predictions=[1.0, 2.0], targets=[1, 2])
    >>> predictions.shape
    (2,)
    """
    tensors: dict[str, Any] = {operand: x for operand, x in operands.items() if isinstance(x, Tensor)}
    others = {operand: x for operand, x in operands.items() if operand not in tensors and x is not None}
    if tensors:
        try:
            common_backend(name, list(tensors.values()))
        except BackendError:
            devices = ", ".join(f"{operand} on {x.device}" for operand, x in tensors.items())
            raise BackendError(f"{name}: {devices}; move them to one with .to_device(...)") from None
        tensors = {operand: _plain(x) for operand, x in tensors.items()}
    if others:
        if tensors:
            device: Any = next(iter(tensors.values())).device
        else:
            wide = any(np.asarray(x).dtype == np.float64 for x in others.values())
            device = (NumPy(float="f64") if wide else NumPy()).device()
        for operand, x in others.items():
            try:
                tensors[operand] = tensor(x, device=device)
            except (KindError, ShapeError, RangeError) as error:
                raise type(error)(f"{name}: {operand}: {error}") from None
    return list(map(tensors.get, operands))


def _plain(x: AnyTensor) -> AnyTensor:
    backend = x.backend
    while backend.differentiates and (inner := backend.without_tape()) is not None:
        x, backend = x.inner(), inner
    return x.to_full_precision() if backend.float_element in HALF_ELEMENTS else x


def expect_same(name: str, predictions: AnyTensor, targets: AnyTensor) -> None:
    """`ShapeError` unless the shapes are the same."""
    if predictions.shape != targets.shape:
        raise ShapeError(
            f"{name}: predictions of shape {predictions.shape} and targets of shape {targets.shape} must have one shape"
        )


def row_weights(name: str, weights: AnyTensor | None, shape: tuple[int, ...]) -> AnyTensor | None:
    """The weight of each of the rows of `shape`, flat; given weights may have only the first axes of `shape`.

    Raises `ShapeError`, and `RangeError` for a weight that is negative or not finite (not checked while tracing).

    >>> import phlox as px
    >>> row_weights("MyMetric", px.tensor([1.0, 0.5]), (2, 2)).tolist()
    [1.0, 1.0, 0.5, 0.5]
    """
    if weights is None:
        return None
    weight_shape = weights.shape
    if weight_shape != shape[: len(weight_shape)]:
        raise ShapeError(
            f"{name}: weights of shape {weight_shape} do not fit rows of shape {shape}; there is one for each row, or "
            "for each entry of the first axes"
        )
    if weights.kind is not Bool:
        weights = weights.float()
        if not is_traced(weights) and weights.size and not (weights.isfinite() & (weights >= 0.0)).all().item():
            raise RangeError(f"{name}: weights must be finite and not negative; leave a row out with a weight of 0")
    expanded = weights.reshape((*weight_shape, *(1 for _ in shape[len(weight_shape) :]))).broadcast_to(shape)
    return expanded.reshape((math.prod(shape),))


def masked(weights: AnyTensor | None, mask: AnyTensor | None) -> AnyTensor | None:
    """The weights, zero where the mask is false."""
    if weights is None or mask is None:
        return mask if weights is None else weights
    return weights & mask if weights.kind is Bool else where(mask, weights, 0.0)


def _counted_nan(scores: AnyTensor, weights: AnyTensor | None, axis: int | None = None) -> AnyTensor | None:
    is_nan = scores.isnan()
    if not is_traced(is_nan) and not is_nan.any().item():  # the usual case
        return None
    is_nan = is_nan if axis is None else is_nan.any(axis)
    if weights is not None:
        is_nan = is_nan & (weights if weights.kind is Bool else weights > 0.0)
    return is_nan if is_traced(is_nan) or is_nan.any().item() else None


def check_range(name: str, role: str, classes: AnyTensor, size: int, remedy: str) -> None:
    """Raise `IndexRangeError` for class indices out of range, if values are known (not under a trace)."""
    if is_traced(classes):
        classes.backend.check_indices(classes.primitive, size, from_end=False)
        return
    values = classes.numpy()
    if values.size and not 0 <= (worst := values.min() if values.min() < 0 else values.max()) < size:
        raise IndexRangeError(f"{name}: {role} hold {worst}, which is not from 0 to {size - 1}; {remedy}")


@dataclass(frozen=True)
class Labelled:
    """Rows of a classification, flat."""

    predictions: AnyTensor
    """Class numbers [n] of rows; of labels, truth [n, labels]."""
    targets: AnyTensor
    """Targets of the same shape and kind."""
    weights: AnyTensor | None
    """Weights of the same shape, or None."""
    scores: AnyTensor | None = None
    """Scores [n, classes], or of the same shape, if predictions are scores."""
    spoilt: AnyTensor | None = None
    """Which targets with a weight have a NaN score; None if it is known that none has."""


@dataclass(frozen=True, kw_only=True)
class Classes:
    """The settings by which predictions and targets are read; all classification metrics have them."""

    name: str = field(default="metric", compare=False)
    task: Task = "multiclass"
    num_classes: int | None = None
    num_labels: int | None = None
    threshold: float = 0.5
    from_logits: bool = False
    ignore_index: int | None = None
    axis: int = -1

    @staticmethod
    def of(metric: object) -> Classes:
        """The settings among the fields of a metric; errors name the metric."""
        own_fields = Classes.__dataclass_fields__
        settings: dict[str, Any] = {name: value for name, value in vars(metric).items() if name in own_fields}
        settings["name"] = type(metric).__name__
        return Classes(**settings)

    def check(self, *, counted: bool = True) -> None:
        """`RangeError` for settings that do not fit; `counted` says whether the number of classes must be known."""
        name = self.name
        one_of(name, "task", self.task, get_args(Task))
        for setting, number, task in (
            ("num_classes", self.num_classes, "multiclass"),
            ("num_labels", self.num_labels, "multilabel"),
        ):
            if number is not None and self.task != task:
                raise RangeError(f"{name}: {setting} is for task={task!r}, not {self.task!r}; leave it out")
            if number is not None:
                check_count(name, setting, number)
            if counted and number is None and self.task == task:
                raise RangeError(f"{name}: give the number of classes: {setting}=...")
        if not 0.0 <= self.threshold <= 1.0:
            raise RangeError(f"{name}: the threshold is a probability, from 0 to 1, got {self.threshold!r}")

    @property
    def count(self) -> int:
        """The number of classes or labels that are counted; in a binary task one, the positive class."""
        return (self.num_classes if self.task == "multiclass" else self.num_labels) or 1

    def read(self, predictions: Any, targets: Any, weights: Any = None) -> Labelled:
        """The rows of a batch."""
        predictions, targets, weights = meet(self.name, predictions=predictions, targets=targets, weights=weights)
        read = self._classes if self.task == "multiclass" else self._truths
        return read(predictions, targets, weights)

    def _classes(self, predictions: AnyTensor, targets: AnyTensor, weights: AnyTensor | None) -> Labelled:
        name, scores, shape = self.name, None, predictions.shape
        rank = len(shape)
        if predictions.kind is Float and rank:
            axis = self.axis % rank if -rank <= self.axis < rank else -1
            if axis < 0:
                raise ShapeError(f"{name}: scores of shape {shape} have no axis {self.axis} of classes")
            if self.num_classes is not None and shape[axis] != self.num_classes:
                raise ShapeError(
                    f"{name}: scores of shape {shape} have {shape[axis]} classes along axis {self.axis}, and "
                    f"num_classes is {self.num_classes}"
                )
            if rank > 1 and targets.shape == shape:
                targets = self._of_one_hot(targets, axis)
            moved = predictions if axis == rank - 1 else predictions.moveaxis(axis, -1)
            rows = (*shape[:axis], *shape[axis + 1 :])
            scores = moved if rank == 2 else moved.reshape((math.prod(rows), shape[axis]))
        elif predictions.kind is Int:
            rows = shape
        else:
            raise KindError(
                f"{name}: predictions are class numbers (Int) or scores of all classes (Float, with an axis of "
                f"classes), got {predictions.kind.__name__} of shape {shape}; a class or none is task='binary'"
            )
        if targets.kind is not Int or targets.shape != rows:
            raise ShapeError(
                f"{name}: targets of kind {targets.kind.__name__} and shape {targets.shape} do not fit predictions of "
                f"shape {shape}; class numbers (Int) are of shape {rows}"
                + (f", one-hot of shape {shape}" if len(shape) > 1 and scores is not None else "")
                + ("; scores of a class or none are task='binary'" if targets.shape == shape else "")
            )
        weights = row_weights(name, weights, rows)
        flat = targets if len(rows) == 1 else targets.reshape((math.prod(rows),))
        if self.ignore_index is not None:
            kept = flat != self.ignore_index
            weights, flat = masked(weights, kept), where(kept, flat, 0)
        size = self.num_classes or (None if scores is None else scores.shape[1])
        labels = predictions.reshape(flat.shape) if scores is None else scores.argmax(-1)
        if size is not None:
            remedy = "leave rows out with ignore_index=, or change num_classes"
            check_range(name, "targets", flat, size, remedy)
            if scores is None:
                check_range(name, "predictions", labels, size, "change num_classes")
            if is_traced(flat) or (scores is None and is_traced(labels)):  # no error is possible: weight 0 instead
                inside = (flat >= 0) & (flat < size)
                if scores is None:
                    inside = inside & (labels >= 0) & (labels < size)
                weights, flat = masked(weights, inside), where(inside, flat, 0)
                labels = where(inside, labels, 0)
        return Labelled(labels, flat, weights, scores, None if scores is None else _counted_nan(scores, weights, -1))

    def _of_one_hot(self, targets: AnyTensor, axis: int) -> AnyTensor:
        """The class indices of one-hot rows; checks that they are one-hot, if values are known."""
        hot = targets if targets.kind is Bool else targets != (0.0 if targets.kind is Float else 0)
        if not is_traced(hot) and not (hot.int().sum(axis) == 1).all().item():
            raise RangeError(
                f"{self.name}: targets of shape {targets.shape}, the shape of the scores, must be one-hot: one nonzero "
                "entry in each row; several labels are task='multilabel', a class or none is task='binary'"
            )
        return hot.int().argmax(axis)

    def _truths(self, predictions: AnyTensor, targets: AnyTensor, weights: AnyTensor | None) -> Labelled:
        """Predictions and targets as truth values, [rows, labels]; a binary task has one label."""
        name, shape = self.name, predictions.shape
        expect_same(name, predictions, targets)
        if self.task == "multilabel":
            if not shape or self.axis % len(shape) != len(shape) - 1 or shape[-1] != (self.num_labels or shape[-1]):
                raise ShapeError(
                    f"{name}: predictions of shape {shape} must have {self.num_labels} labels along their last axis"
                )
            rows, labels = shape[:-1], shape[-1]
        else:
            rows, labels = shape, 1
        flat = (math.prod(rows), labels)
        weights = row_weights(name, weights, shape if weights is not None and weights.shape == shape else rows)
        if weights is not None:
            weights = weights.reshape(flat) if weights.size == math.prod(flat) else weights.expand_dims(-1)
            weights = weights.broadcast_to(flat)
        targets = targets.reshape(flat)
        if self.ignore_index is not None and targets.kind is not Bool:
            kept = targets != (float(self.ignore_index) if targets.kind is Float else self.ignore_index)
            weights, targets = masked(weights, kept), where(kept, targets, 0.0 if targets.kind is Float else 0)
        if targets.kind is not Bool:
            check_range(name, "targets", targets.int(), 2, "they are 0 or 1, or ignore_index=")
            targets = targets.bool()
        scores = None
        if predictions.kind is Float:
            scores = predictions.reshape(flat)
            truth = scores > self._cut()
        else:
            truth = predictions.reshape(flat)
            if truth.kind is Int:
                check_range(name, "predictions", truth, 2, "they are 0 or 1, or scores (Float)")
                truth = truth.bool()
        return Labelled(truth, targets, weights, scores, None if scores is None else _counted_nan(scores, weights))

    def _cut(self) -> float:
        p = self.threshold
        if not self.from_logits:
            return p
        return math.log(p / (1.0 - p)) if 0.0 < p < 1.0 else math.copysign(math.inf, p - 0.5)


def one_of(name: str, setting: str, value: Any, choices: tuple[Any, ...]) -> None:
    """`RangeError` for a setting that is not one of the choices."""
    if value not in choices:
        raise RangeError(f"{name}: {setting} is {', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}, got {value!r}")


def check_count(name: str, setting: str, number: Any, otherwise: str = "") -> None:
    """`RangeError` unless a setting is a positive integer; `otherwise` says what else it may be."""
    if not (isinstance(number, int) and number >= 1):
        raise RangeError(f"{name}: {setting} must be a positive integer{otherwise}, got {number!r}")


def check_average(name: str, average: Any) -> None:
    """`RangeError` for an unknown average."""
    one_of(name, "average", average, ("micro", "macro", "weighted", None))
