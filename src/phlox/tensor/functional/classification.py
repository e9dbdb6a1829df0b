"""Classification losses. Each takes `reduction`: "mean" (the default), "sum", or "none" for unreduced losses.

The docstring of each loss says what weight its mean has when a training adds up batches (see `phlox.train.Loss`).
"""

from __future__ import annotations

import math
from typing import Any

from phlox.backend import Bool, Float, Int
from phlox.errors import KindError, RangeError, ShapeError
from phlox.tensor.creation import one_hot
from phlox.tensor.functional.loss_weight import Loss
from phlox.tensor.functional.operands import (
    Reduction,
    check_broadcast,
    check_kind,
    check_pair,
    compute,
    from_the_start,
    promote_operands,
    reduce_losses,
    weighted_or_zero,
)
from phlox.tensor.functions import at_full_precision, where
from phlox.tensor.noted_means import means
from phlox.tensor.tensor import Tensor

__all__ = ["binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "nll_loss"]


def _conversion(labels: Tensor[Any, Any, Any], batch: tuple[int, ...]) -> str:
    """What turns labels into class indices of the shape `batch`; empty if nothing simple does."""
    reshapes = labels.shape != batch
    if math.prod(labels.shape) != math.prod(batch) or (reshapes and labels.shape != (*batch, 1)):
        return ""
    code = "targets" + ".squeeze(-1)" * reshapes + ".int()" * (labels.kind is not Int)
    return f"; write {code}"


@at_full_precision
def cross_entropy(
    logits: Tensor,
    targets: Tensor[Any, Any, Int] | Tensor,
    *,
    axis: int = -1,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """The negative log-likelihood of the targets under softmax(logits).

    Args:
        logits: Float, with size `classes` along `axis`.
        targets: class indices, an Int tensor of the shape of logits without `axis`; or class probabilities, a Float
            tensor of the shape of logits.
        axis: the axis of the classes.
        weight: [classes], a constant factor of each class's loss. The mean is then weighted. A class of weight zero is
            ignored.
        label_smoothing: the share of each target that is spread evenly over all classes (Szegedy et al. 2016).
        ignore_index: rows with this target are ignored, also in the mean, whatever their logits.
        reduction: "mean", "sum" or "none".

    Raises `IndexRangeError` if a class index is out of range. The mean over no rows is NaN. The weight of the mean is
    the number of rows that are not ignored; with class weights and class indices, it is the sum of the weights of their
    classes.

    >>> import phlox as px
    >>> px.functional.cross_entropy(px.zeros((2, 4)), px.tensor([0, 3])).item()
    1.386...
    """
    check_kind("cross_entropy", Float, logits=logits, weight=weight)
    if not isinstance(targets, Tensor) or targets.kind is Bool:  # pyright: ignore[reportUnnecessaryIsInstance]
        check_kind("cross_entropy", Int, targets=targets)
    logits, labels, weight = promote_operands("cross_entropy", logits, targets, weight)
    axis = logits._axis("cross_entropy", axis)  # pyright: ignore[reportPrivateUsage]
    shape, classes = logits.shape, logits.shape[axis]
    batch = (*shape[:axis], *shape[axis + 1 :])
    hard = labels.kind is Int
    if not classes or labels.shape != (batch if hard else shape):
        raise ShapeError(
            f"cross_entropy: {labels.kind.__name__} targets of shape {labels.shape} do not fit logits of shape {shape} "
            f"with classes along axis {axis}; class indices (Int) must have shape {batch}, probabilities (Float) shape "
            f"{shape}{_conversion(labels, batch)}"
        )
    if weight is not None and weight.shape != (classes,):
        raise ShapeError(f"cross_entropy: weight of shape {weight.shape} does not fit {classes} classes")
    if not 0.0 <= label_smoothing <= 1.0:
        raise RangeError(f"cross_entropy: label_smoothing must be between 0 and 1, got {label_smoothing}")
    label_smoothing = float(label_smoothing)  # a NumPy scalar would widen the other operand
    weight = None if weight is None else weight.detach()
    if not hard:
        if ignore_index is not None:
            raise KindError("cross_entropy: ignore_index needs class indices (Int) as targets, got Float probabilities")
        losses = _soft_cross_entropy(logits, labels, axis, weight, label_smoothing)
        return reduce_losses("cross_entropy", losses, reduction)
    rows = logits if axis == len(shape) - 1 else logits.moveaxis(axis, -1)
    labels = from_the_start("cross_entropy", labels, classes, ignore_index)
    if logits.backend.cuts_sequences(logits.primitive):
        losses = _unmerged_cross_entropy(rows, labels, weight, label_smoothing, ignore_index)
        return weighted_mean(losses, labels, weight, ignore_index, reduction, "cross_entropy")
    rows, flat = rows.reshape((math.prod(batch), classes)), labels.reshape((math.prod(batch),))
    losses = compute("cross_entropy", rows, flat, weight, label_smoothing, ignore_index).reshape(batch)
    return weighted_mean(losses, labels, weight, ignore_index, reduction, "cross_entropy")


def _unmerged_cross_entropy(
    logits: Tensor, targets: Tensor[Any, Any, Int], weight: Tensor | None, smoothing: float, ignored: int | None
) -> Tensor:
    """The losses of class indices, without merging axes: if devices hold parts of an axis, the logits are not moved.

    A compiled program does not store the one-hot targets: they are computed in the loop that sums.
    """
    kept = None if ignored is None else targets != ignored
    if kept is not None:
        logits, targets = where(kept.expand_dims(-1), logits, 0.0), where(kept, targets, 0)
    losses = _soft_cross_entropy(logits, one_hot(targets, logits.shape[-1]), logits.ndim - 1, weight, smoothing)
    return losses if kept is None else where(kept, losses, 0.0)


def _soft_cross_entropy(logits: Tensor, targets: Tensor, axis: int, weight: Tensor | None, smoothing: float) -> Tensor:
    classes = logits.shape[axis]
    if smoothing:
        targets = targets * (1.0 - smoothing) + smoothing / classes
    if weight is not None:
        targets = targets * weight.reshape((classes, *(1 for _ in logits.shape[axis + 1 :])))
    return -weighted_or_zero(targets, logits.log_softmax(axis)).sum(axis)


def weighted_mean(
    losses: Tensor,
    targets: Tensor[Any, Any, Int],
    weight: Tensor | None,
    ignored: int | None,
    reduction: Reduction,
    name: str,
) -> Tensor:
    """Reduce the losses; the mean is weighted, and skips ignored targets."""
    if reduction != "mean" or (weight is None and ignored is None):
        return reduce_losses(name, losses, reduction)
    kept = None if ignored is None else targets != ignored
    if weight is None:
        assert kept is not None
        item_weights = kept.float()
    else:
        weights = weight.take(targets if kept is None else where(kept, targets, 0), 0)
        item_weights = weights if kept is None else where(kept, weights, 0.0)
    total, weighs = losses.sum(), item_weights.sum()
    mean = total / weighs
    if (recorder := means()) is not None:
        recorder.note(mean, weighs, lambda: Loss(total, weighs), weighted=True)
    return mean


@at_full_precision
def nll_loss(
    log_p: Tensor,
    targets: Tensor[Any, Any, Int],
    *,
    axis: int = -1,
    weight: Tensor | None = None,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """-log_p of each target class, for log-probabilities along `axis`. Options, and weight, as in `cross_entropy`.

    >>> import phlox as px
    >>> px.functional.nll_loss(px.tensor([[-1.0, -2.0]]), px.tensor([1])).item()
    2.0
    """
    check_kind("nll_loss", Float, log_p=log_p, weight=weight)
    check_kind("nll_loss", Int, targets=targets)
    log_p, targets, weight = promote_operands("nll_loss", log_p, targets, weight)
    axis = log_p._axis("nll_loss", axis)  # pyright: ignore[reportPrivateUsage]
    batch = (*log_p.shape[:axis], *log_p.shape[axis + 1 :])
    classes = log_p.shape[axis]
    if not classes or targets.shape != batch or (weight is not None and weight.shape != (classes,)):
        raise ShapeError(
            f"nll_loss: targets of shape {targets.shape} and weight {None if weight is None else weight.shape} do not "
            f"fit log_p of shape {log_p.shape} with classes along axis {axis}; they must be {batch} and {(classes,)}"
        )
    targets = from_the_start("nll_loss", targets, classes, ignore_index)
    kept = None if ignore_index is None else targets != ignore_index
    numbers = targets if kept is None else where(kept, targets, 0)
    losses = -log_p.take_along_axis(numbers.expand_dims(axis), axis).squeeze(axis)
    if weight is not None:
        weight = weight.detach()
        factor = weight.take(numbers, 0)
        losses = where(factor == 0.0, 0.0, losses * factor)
    losses = losses if kept is None else where(kept, losses, 0.0)
    return weighted_mean(losses, targets, weight, ignore_index, reduction, "nll_loss")


@at_full_precision
def binary_cross_entropy(
    p: Tensor, target: Tensor, *, weight: Tensor | None = None, reduction: Reduction = "mean"
) -> Tensor:
    """-(target log p + (1 - target) log(1 - p)) for probabilities p; the logarithms are clamped to at least -100.

    Where p is 0 or 1, its derivative is zero. `weight`, a constant that broadcasts, multiplies the losses; elements of
    weight zero are ignored, whatever their values. For logits, `binary_cross_entropy_with_logits` is more accurate. As
    in PyTorch, the mean is over all elements. The weight of the mean is their number.

    >>> import phlox as px
    >>> round(px.functional.binary_cross_entropy(px.tensor([0.5]), px.tensor([1.0])).item(), 4)
    0.6931
    """
    p, target, weight = _binary_operands("binary_cross_entropy", p, target, weight)
    losses = compute("binary_cross_entropy", p, target, operation="float_binary_cross_entropy")
    return reduce_losses("binary_cross_entropy", losses if weight is None else losses * weight, reduction)


@at_full_precision
def binary_cross_entropy_with_logits(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """The binary cross-entropy of sigmoid(logits), without overflow or loss of precision.

    `weight` multiplies the losses, `pos_weight` the term of the positive targets; both are constants and broadcast.
    Elements of weight zero are ignored, whatever their values. As in PyTorch, the mean is over all elements. The
    weight of the mean is their number.

    >>> import phlox as px
    >>> px.functional.binary_cross_entropy_with_logits(px.tensor([0.0]), px.tensor([1.0])).item()
    0.693...
    """
    name = "binary_cross_entropy_with_logits"
    check_kind(name, Float, pos_weight=pos_weight)
    check_broadcast(name, "pos_weight", pos_weight, target.shape)
    logits, target, weight = _binary_operands(name, logits, target, weight)
    positive = target if pos_weight is None else target * pos_weight.detach()
    # -log(1 - sigmoid(logits)) and -log(sigmoid(logits))
    losses = weighted_or_zero(1.0 - target, logits.softplus()) + weighted_or_zero(positive, (-logits).softplus())
    return reduce_losses(name, losses if weight is None else losses * weight, reduction)


def _binary_operands(
    name: str, x: Tensor, target: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Predictions and targets of one shape, made finite where the (constant) weight is zero."""
    check_kind(name, Float, weight=weight)
    check_pair(name, x, target)
    if weight is None:
        return x, target, None
    check_broadcast(name, "weight", weight, x.shape)
    weight = weight.detach()
    counts = weight != 0.0
    return where(counts, x, 0.5), where(counts, target, 0.5), weight
