"""Losses of pairs: row i of a matrix of logits belongs to column i, and to no other.

Each takes `reduction`: "mean" (the default), "sum", or "none" for the losses of the pairs. The weight of the mean is
the number of pairs. The loss of a pair depends on the whole matrix, so a batch in parts has another loss.
"""

from __future__ import annotations

from typing import Any

from phlox.backend import Bool, Float
from phlox.errors import ShapeError
from phlox.tensor.creation import arange
from phlox.tensor.functional.classification import binary_cross_entropy_with_logits
from phlox.tensor.functional.operands import Reduction, check_kind, reduce_losses
from phlox.tensor.functions import where
from phlox.tensor.tensor import Tensor

__all__ = ["contrastive_loss", "sigmoid_contrastive_loss"]


def contrastive_loss(logits: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """The cross-entropy of choosing the column of each row, and the row of each column (Radford et al. 2021, CLIP).

    `logits` of n pairs are [n, n], such as scaled cosines of images and texts. The loss of a pair is the mean of the
    two. The weight of the mean is the number of pairs.

    >>> import phlox as px
    >>> px.functional.contrastive_loss(px.zeros((4, 4))).exp().item()
    4.0
    """
    name = "contrastive_loss"
    # A mask, not an index along the columns: on several devices, those of rows that are split are split themselves.
    wanted = where(_is_pair(name, logits), logits, 0.0).sum(1)
    return reduce_losses(name, (logits.logsumexp(1) + logits.logsumexp(0)) * 0.5 - wanted, reduction)


def sigmoid_contrastive_loss(logits: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """The binary cross-entropies of each row with all columns, summed (Zhai et al. 2023, SigLIP).

    `logits` of n pairs are [n, n]. The weight of the mean is the number of pairs.

    >>> import phlox as px
    >>> (px.functional.sigmoid_contrastive_loss(px.zeros((4, 4))) / 4.0).exp().item()
    2.0
    """
    name = "sigmoid_contrastive_loss"
    is_pair = _is_pair(name, logits).float()
    return reduce_losses(name, binary_cross_entropy_with_logits(logits, is_pair, reduction="none").sum(1), reduction)


def _is_pair(name: str, logits: Tensor) -> Tensor[Any, Any, Bool]:
    check_kind(name, Float, logits=logits)
    if logits.ndim != 2 or logits.shape[0] != logits.shape[1]:
        raise ShapeError(f"{name}: the logits of n pairs must be a matrix [n, n], got shape {logits.shape}")
    index = arange(logits.shape[0], device=logits.device)
    return index == index.expand_dims(-1)
