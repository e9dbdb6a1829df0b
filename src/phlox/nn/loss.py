"""Losses, averaged over the batch."""

from __future__ import annotations

from typing import Any

from phlox.backend import Int
from phlox.errors import ShapeError
from phlox.tensor import Tensor, functional


def mse_loss(prediction: Tensor, target: Tensor) -> Tensor:
    """The mean squared difference; the shapes must be the same."""
    if prediction.shape != target.shape:
        raise ShapeError(f"mse_loss: prediction of shape {prediction.shape}, target of shape {target.shape}")
    return (prediction - target).square().mean()


def cross_entropy_loss(logits: Tensor, targets: Tensor[Any, Any, Int]) -> Tensor:
    """The mean negative log-likelihood of class numbers `targets` [...] under softmax of `logits` [..., classes]."""
    return functional.cross_entropy(logits, targets).mean()
