"""Connectionist temporal classification."""

from __future__ import annotations

import math
from typing import Any

from phlox.backend import Float, Int
from phlox.errors import RangeError, ShapeError
from phlox.tensor.creation import arange
from phlox.tensor.functional.operands import (
    Reduction,
    check_kind,
    compute,
    from_the_start,
    promote_operands,
    reduce_losses,
)
from phlox.tensor.functions import at_full_precision, where
from phlox.tensor.tensor import Tensor

__all__ = ["ctc_loss"]


@at_full_precision
def ctc_loss(
    log_p: Tensor,
    targets: Tensor[Any, Any, Int],
    input_lengths: Tensor[Any, Any, Int],
    target_lengths: Tensor[Any, Any, Int],
    *,
    blank: int = 0,
    zero_infinity: bool = False,
    reduction: Reduction = "mean",
) -> Tensor:
    """Connectionist temporal classification (Graves et al. 2006): -log of the total probability of all alignments.

    Args:
        log_p: log-probabilities [time, n, classes], such as the result of `log_softmax`.
        targets: class indices [n, length], none of them `blank`. Entries beyond a target's length are ignored.
        input_lengths: [n], the number of valid time steps of each example.
        target_lengths: [n], the number of valid labels of each example.
        blank: the index of the blank class.
        zero_infinity: give zero, not infinity, for a target that no alignment of the input length can produce.
        reduction: "mean" (each loss divided by its target length, then the batch mean), "sum" or "none".

    The gradient of an infinite loss is zero. The weight of the mean is the number of examples.

    >>> import phlox as px
    >>> one = px.tensor([1])
    >>> round(px.functional.ctc_loss(px.zeros((1, 1, 2)).log_softmax(), px.tensor([[1]]), one, one).item(), 4)
    0.6931
    """
    check_kind("ctc_loss", Float, log_p=log_p)
    check_kind("ctc_loss", Int, targets=targets, input_lengths=input_lengths, target_lengths=target_lengths)
    if log_p.ndim != 3 or not log_p.shape[0] or not log_p.shape[2]:
        raise ShapeError(f"ctc_loss: log_p must be [time, n, classes] with time >= 1, got shape {log_p.shape}")
    steps, n, classes = log_p.shape
    if targets.ndim != 2 or len(targets) != n or input_lengths.shape != (n,) or target_lengths.shape != (n,):
        raise ShapeError(
            f"ctc_loss: targets of shape {targets.shape}, input_lengths {input_lengths.shape} and target_lengths "
            f"{target_lengths.shape} do not fit log_p of shape {log_p.shape}; they must be ({n}, length), ({n},) and "
            f"({n},)"
        )
    if not 0 <= blank < classes:
        raise RangeError(f"ctc_loss: blank must be one of the {classes} classes, got {blank}")
    length = targets.shape[1]
    for label, lengths, longest in (("input", input_lengths, steps), ("target", target_lengths, length)):
        _check_lengths(label, lengths, longest)
    log_p, targets, input_lengths, target_lengths = promote_operands(
        "ctc_loss", log_p, targets, input_lengths, target_lengths
    )
    if length:
        # Targets must be valid classes only within their lengths.
        inside = _positions(targets) < target_lengths.expand_dims(1)
        targets = from_the_start("ctc_loss", where(inside, targets, blank), classes)
    losses = compute("ctc_loss", log_p, targets, input_lengths, target_lengths, blank)
    if zero_infinity:
        losses = where(losses == math.inf, 0.0, losses)
    if reduction == "mean":
        losses = losses / target_lengths.maximum(1).float()
    return reduce_losses("ctc_loss", losses, reduction)


def _positions(targets: Tensor[Any, Any, Int]) -> Tensor[Any, Any, Int]:
    return arange(targets.shape[1], device=targets.device).reshape((1, targets.shape[1]))


def _check_lengths(label: str, lengths: Tensor[Any, Any, Int], longest: int) -> None:
    backend = lengths.backend
    if not lengths.size or backend.is_traced(lengths.primitive):
        return
    host = backend.to_host(lengths.primitive)
    if host.min() < 0 or host.max() > longest:
        raise RangeError(f"ctc_loss: {label}_lengths must be between 0 and {longest}, got {host.tolist()}")
