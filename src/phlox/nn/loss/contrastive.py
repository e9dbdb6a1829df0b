"""Losses of pairs: row i of a matrix of logits belongs to column i, and to no other."""

from __future__ import annotations

from phlox.config import config_of
from phlox.nn.loss.base import Loss
from phlox.tensor import Tensor, functional
from phlox.tensor.functional.operands import Reduction


class ContrastiveLoss(Loss):
    """The cross-entropy of choosing the column of each row, and the row of each column (Radford et al. 2021, CLIP).

    The input is the matrix of the logits of n pairs, [n, n], such as scaled cosines of images and texts.

    >>> import phlox as px
    >>> ContrastiveLoss()(px.zeros((4, 4))).exp().item()
    4.0
    """

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)

    def __call__(self, logits: Tensor) -> Tensor:
        return functional.contrastive_loss(logits, reduction=self.reduction)


class SigmoidContrastiveLoss(Loss):
    """The binary cross-entropies of each row with all columns, summed (Zhai et al. 2023, SigLIP).

    The input is the matrix of the logits of n pairs, [n, n].

    >>> import phlox as px
    >>> (SigmoidContrastiveLoss()(px.zeros((4, 4))) / 4.0).exp().item()
    2.0
    """

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)

    def __call__(self, logits: Tensor) -> Tensor:
        return functional.sigmoid_contrastive_loss(logits, reduction=self.reduction)


class ContrastiveLossConfig(config_of(ContrastiveLoss)):
    """Hyper-parameters of `ContrastiveLoss`."""


class SigmoidContrastiveLossConfig(config_of(SigmoidContrastiveLoss)):
    """Hyper-parameters of `SigmoidContrastiveLoss`."""
