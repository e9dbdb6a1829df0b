"""The cross-entropy of a linear layer's logits, which are never held all at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from phlox.backend import Int
from phlox.errors import RangeError, ShapeError
from phlox.tensor import Tensor, concat, functional
from phlox.tensor.functional.classification import weighted_mean
from phlox.tensor.functional.operands import Reduction
from phlox.tensor.functions import at_full_precision
from phlox.transform.checkpoint import checkpoint
from phlox.transform.scan import scan

__all__ = ["linear_cross_entropy_loss"]

MOST_LOGITS = 1 << 22
"""So many logits are computed at a time: 16 MB at full precision. With more, memory grows; with fewer, time."""


def linear_cross_entropy_loss(
    x: Tensor,
    head: Callable[[Tensor], Tensor],
    targets: Tensor[Any, Any, Int],
    *,
    classes: int,
    weight: Tensor | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    reduction: Reduction = "mean",
    most_logits: int = MOST_LOGITS,
) -> Tensor:
    """`cross_entropy_loss(head(x), targets)`, without holding all logits.

    The logits of some positions at a time are computed, reduced to losses, and computed again for the gradient. So
    memory does not grow with positions times classes, and the head's products take four thirds of their time. Of few
    logits, at most `most_logits`, all are computed at once.

    Args:
        x: [..., n, d], the input of the head. Where devices hold parts of a batch, the batch is not cut.
        head: a layer, or a function from [..., m, d] to logits [..., m, classes], such as `model.logits`. It must treat
            each position on its own, and draw nothing.
        targets: class indices, [..., n].
        classes: the number of classes.
        weight, label_smoothing, ignore_index, reduction: as for `cross_entropy_loss`.
        most_logits: the largest number of logits to compute at a time, if one position of each row has not more.

    Raises `ShapeError` for targets of another shape, `RangeError` for a number below one, and the errors of
    `cross_entropy_loss`. Wijmans et al. 2024, "Cut your losses in large-vocabulary language models", measured what the
    logits cost.

    >>> import phlox as px
    >>> head = px.nn.Linear(8, 1000, bias=False)
    >>> targets = px.zeros((2, 6), kind=px.Int)
    >>> loss = px.nn.linear_cross_entropy_loss(px.zeros((2, 6, 8)), head, targets, classes=1000, most_logits=4000)
    >>> round(loss.item(), 4)  # log 1000
    6.9078
    """
    if x.ndim < 2 or targets.shape != x.shape[:-1]:
        raise ShapeError(
            f"linear_cross_entropy_loss: targets must have the shape of x without its last axis, {x.shape[:-1]}, "
            f"got {targets.shape}"
        )
    if min(classes, most_logits) < 1:
        raise RangeError(
            f"linear_cross_entropy_loss: classes and most_logits must be at least 1, got {classes} and {most_logits}"
        )
    *batch, n, _ = x.shape
    length = max(1, most_logits // max(1, math.prod(batch) * classes))

    def losses_of(x: Tensor, targets: Tensor[Any, Any, Int]) -> Tensor:
        return functional.cross_entropy(
            head(x), targets, weight=weight, label_smoothing=label_smoothing, ignore_index=ignore_index,
            reduction="none",
        )  # fmt: skip

    if length >= n or x.backend.cuts_sequences(x.primitive):
        losses = losses_of(x, targets)
    else:
        losses = _in_pieces(checkpoint(losses_of), x, targets, length)
    return at_full_precision(weighted_mean)(
        losses, targets, weight, ignore_index, reduction, "linear_cross_entropy_loss"
    )


def _in_pieces(
    losses_of: Callable[[Tensor, Tensor[Any, Any, Int]], Tensor], x: Tensor, targets: Tensor[Any, Any, Int], length: int
) -> Tensor:
    """The losses [..., n], of `length` positions at a time; the last piece may be shorter."""
    *batch, n, _ = x.shape
    count, axis = n // length, len(batch)
    whole = count * length

    def pieces(y: Tensor[Any, Any, Any]) -> Tensor[Any, Any, Any]:
        """[..., count * length, ...] to [count, ..., length, ...]."""
        y = y[(..., slice(whole), *(slice(None),) * (y.ndim - axis - 1))]
        return y.reshape((*batch, count, length, *y.shape[axis + 1 :])).moveaxis(axis, 0)

    _, losses = scan(lambda carry, piece: (carry, losses_of(*piece)), (), (pieces(x), pieces(targets)))
    losses = losses.moveaxis(0, axis).reshape((*batch, whole))
    return losses if whole == n else concat([losses, losses_of(x[..., whole:, :], targets[..., whole:])], axis)
