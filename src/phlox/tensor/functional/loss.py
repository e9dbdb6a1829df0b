"""Losses of values, distributions and vectors. Each takes `reduction`: "mean" (the default), "sum" or "none".

When a training adds up batches, a mean has the number of its losses as its weight; see `phlox.train.Loss`.
"""

from __future__ import annotations

import math

from phlox.backend import Float
from phlox.errors import RangeError, ShapeError
from phlox.tensor.functional.norm import normalize
from phlox.tensor.functional.operands import (
    Reduction,
    check_broadcast,
    check_kind,
    check_largest_shape,
    check_pair,
    check_same_shape,
    reduce_losses,
    weighted_or_zero,
)
from phlox.tensor.functions import at_full_precision, broadcast_arrays, where
from phlox.tensor.tensor import Tensor

__all__ = [
    "cosine_similarity", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss",
    "margin_ranking_loss", "mse_loss", "poisson_nll_loss", "smooth_l1_loss", "triplet_margin_loss",
]  # fmt: skip

# --- regression


@at_full_precision
def mse_loss(prediction: Tensor, target: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """The mean squared error: (prediction - target)^2. The shapes must be equal.

    The weight of the mean is the number of elements.

    >>> import phlox as px
    >>> px.functional.mse_loss(px.tensor([1.0, 4.0]), px.tensor([1.0, 2.0])).item()
    2.0
    """
    check_pair("mse_loss", prediction, target)
    return reduce_losses("mse_loss", (prediction - target).square(), reduction)


@at_full_precision
def l1_loss(prediction: Tensor, target: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """The mean absolute error: |prediction - target|. The shapes must be equal.

    The weight of the mean is the number of elements.

    >>> import phlox as px
    >>> px.functional.l1_loss(px.tensor([1.0, 4.0]), px.tensor([0.0, 2.0]), reduction="sum").item()
    3.0
    """
    check_pair("l1_loss", prediction, target)
    return reduce_losses("l1_loss", (prediction - target).abs(), reduction)


@at_full_precision
def huber_loss(prediction: Tensor, target: Tensor, *, delta: float = 1.0, reduction: Reduction = "mean") -> Tensor:
    """With d = prediction - target: d^2 / 2 where |d| <= delta, else delta (|d| - delta / 2) (Huber 1964).

    The weight of the mean is the number of elements.

    >>> import phlox as px
    >>> px.functional.huber_loss(px.tensor([0.0, 0.0]), px.tensor([1.0, 3.0]), reduction="none").tolist()
    [0.5, 2.5]
    """
    check_pair("huber_loss", prediction, target)
    _check_positive("huber_loss", "delta", delta)
    return reduce_losses("huber_loss", _huber(prediction, target, delta), reduction)


@at_full_precision
def smooth_l1_loss(prediction: Tensor, target: Tensor, *, beta: float = 1.0, reduction: Reduction = "mean") -> Tensor:
    """`huber_loss` with delta = beta, divided by beta: |d|, smoothed near zero. beta = 0 gives |d|.

    The weight of the mean is the number of elements.

    >>> import phlox as px
    >>> px.functional.smooth_l1_loss(px.tensor([0.0, 0.0]), px.tensor([1.0, 3.0]), beta=2.0, reduction="none").tolist()
    [0.25, 2.0]
    """
    check_pair("smooth_l1_loss", prediction, target)
    if beta == 0:
        return l1_loss(prediction, target, reduction=reduction)
    _check_positive("smooth_l1_loss", "beta", beta)
    return reduce_losses("smooth_l1_loss", _huber(prediction, target, beta) * (1.0 / beta), reduction)


def _huber(prediction: Tensor, target: Tensor, delta: float) -> Tensor:
    """c (d - c / 2), where c is d clipped to [-delta, delta]: both branches of the Huber loss in one formula."""
    difference = prediction - target
    cut = difference.clip(-delta, delta)
    return cut * (difference - cut * 0.5)


def _check_positive(name: str, option: str, value: float) -> None:
    if not value > 0:
        raise RangeError(f"{name}: {option} must be positive, got {value}")


# --- distributions


@at_full_precision
def kl_div(log_p: Tensor, target: Tensor, *, log_target: bool = False, reduction: Reduction = "mean") -> Tensor:
    """target (log target - log_p), elementwise. Its sum is the divergence KL(target || p) (Kullback, Leibler 1951).

    The target holds probabilities, or their logarithms if `log_target`. Where the target is zero, the loss is zero. The
    "mean" is over elements. For the mean divergence of a batch, use "sum" and divide by the batch size.

    The weight of the mean is the number of elements.

    >>> import phlox as px
    >>> p = px.tensor([0.25, 0.75])
    >>> px.functional.kl_div(p.log(), p, reduction="sum").item()
    0.0
    """
    check_pair("kl_div", log_p, target)
    if log_target:
        # log 0 is minus infinity, for the target and possibly for p too.
        none = target == -math.inf
        gap = where(none, 0.0, target) - where(none, 0.0, log_p)
        return reduce_losses("kl_div", where(none, 0.0, target.exp() * gap), reduction)
    none = target == 0.0
    losses = where(none, 0.0, target * (where(none, 1.0, target).log() - where(none, 0.0, log_p)))
    return reduce_losses("kl_div", losses, reduction)


@at_full_precision
def poisson_nll_loss(
    prediction: Tensor,
    target: Tensor,
    *,
    log_input: bool = True,
    full: bool = False,
    epsilon: float = 1e-8,
    reduction: Reduction = "mean",
) -> Tensor:
    """The negative log-likelihood of counts under Poisson distributions, without the constant log(target!).

    By default the prediction is the log of the rate: exp(prediction) - target prediction. With `log_input=False` it is
    the rate: prediction - target log(prediction + epsilon). `full` adds Stirling's formula where the target is above 1.

    The weight of the mean is the number of elements.

    >>> import phlox as px
    >>> px.functional.poisson_nll_loss(px.tensor([0.0]), px.tensor([3.0])).item()
    1.0
    """
    check_pair("poisson_nll_loss", prediction, target)
    if log_input:
        losses = prediction.exp() - weighted_or_zero(target, prediction)
    else:
        losses = prediction - target.xlogy(prediction + epsilon)
    if full:
        above_one = target > 1.0
        count = where(above_one, target, 2.0)
        losses = losses + where(above_one, count * count.log() - count + (count * (2.0 * math.pi)).log() * 0.5, 0.0)
    return reduce_losses("poisson_nll_loss", losses, reduction)


@at_full_precision
def gaussian_nll_loss(
    prediction: Tensor,
    target: Tensor,
    variance: Tensor,
    *,
    full: bool = False,
    epsilon: float = 1e-6,
    reduction: Reduction = "mean",
) -> Tensor:
    """The negative log-likelihood under normal distributions: (log variance + (prediction - target)^2 / variance) / 2.

    The variance broadcasts to the prediction, and is at least `epsilon`. `full` adds the constant log(2 pi) / 2.

    The weight of the mean is the number of elements.

    >>> import phlox as px
    >>> px.functional.gaussian_nll_loss(px.tensor([1.0]), px.tensor([3.0]), px.tensor([1.0])).item()
    2.0
    """
    check_pair("gaussian_nll_loss", prediction, target)
    check_kind("gaussian_nll_loss", Float, variance=variance)
    check_broadcast("gaussian_nll_loss", "variance", variance, prediction.shape)
    # A clamped variance still gets a gradient, so that it can grow.
    spread = where(variance < epsilon, variance - variance.detach() + epsilon, variance)
    losses = (spread.log() + (prediction - target).square() / spread) * 0.5
    return reduce_losses("gaussian_nll_loss", losses + 0.5 * math.log(2.0 * math.pi) if full else losses, reduction)


# --- vectors and margins


@at_full_precision
def cosine_similarity(x: Tensor, y: Tensor, *, axis: int = -1, epsilon: float = 1e-8) -> Tensor:
    """The cosine of the angle between vectors along an axis. x and y broadcast. Norms are at least `epsilon`.

    >>> import phlox as px
    >>> px.functional.cosine_similarity(px.tensor([2.0, 0.0]), px.tensor([3.0, 0.0])).item()
    1.0
    """
    check_kind("cosine_similarity", Float, x=x, y=y)
    if not x.ndim or not y.ndim:
        raise ShapeError(f"cosine_similarity: x and y need an axis, got shapes {x.shape} and {y.shape}")
    if x.ndim != y.ndim and axis >= 0:
        axis -= max(x.ndim, y.ndim)
    if not (x.ndim >= -axis <= y.ndim and x.shape[axis] == y.shape[axis]):
        x, y = broadcast_arrays(x, y)  # a broadcast element enters the norm once per position
    return (normalize(x, axis=axis, epsilon=epsilon) * normalize(y, axis=axis, epsilon=epsilon)).sum(axis)


@at_full_precision
def hinge_embedding_loss(
    distance: Tensor, target: Tensor, *, margin: float = 1.0, reduction: Reduction = "mean"
) -> Tensor:
    """The distance for similar pairs (target 1), max(0, margin - distance) for dissimilar ones (target -1).

    The weight of the mean is the number of elements.

    >>> import phlox as px
    >>> px.functional.hinge_embedding_loss(px.tensor([0.25, 0.25]), px.tensor([1.0, -1.0]), reduction="none").tolist()
    [0.25, 0.75]
    """
    check_pair("hinge_embedding_loss", distance, target)
    losses = where(target == 1.0, distance, (margin - distance).relu())
    return reduce_losses("hinge_embedding_loss", losses, reduction)


@at_full_precision
def margin_ranking_loss(
    x: Tensor, y: Tensor, target: Tensor, *, margin: float = 0.0, reduction: Reduction = "mean"
) -> Tensor:
    """max(0, margin - target (x - y)). Target 1: x should be greater; -1: y. The target broadcasts to their shape.

    The weight of the mean is the number of elements.

    >>> import phlox as px
    >>> px.functional.margin_ranking_loss(px.tensor([2.0]), px.tensor([1.0]), px.tensor([-1.0]), margin=0.5).item()
    1.5
    """
    check_kind("margin_ranking_loss", Float, x=x, y=y, target=target)
    check_same_shape("margin_ranking_loss", x=x, y=y)
    check_broadcast("margin_ranking_loss", "target", target, x.shape)
    return reduce_losses("margin_ranking_loss", (margin - target * (x - y)).relu(), reduction)


@at_full_precision
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    margin: float = 1.0,
    p: float = 2.0,
    epsilon: float = 1e-6,
    reduction: Reduction = "mean",
) -> Tensor:
    """max(0, |anchor - positive| - |anchor - negative| + margin) in the p-norm of the last axis (Schroff et al. 2015).

    `epsilon` is added to the differences, so that the gradient of equal vectors is defined.

    The weight of the mean is the number of triplets.

    >>> import phlox as px
    >>> anchor, far = px.zeros((1, 2)), px.tensor([[3.0, 4.0]])
    >>> px.functional.triplet_margin_loss(anchor, far, anchor, epsilon=0.0).item()
    6.0
    """
    check_kind("triplet_margin_loss", Float, anchor=anchor, positive=positive, negative=negative)
    check_largest_shape("triplet_margin_loss", anchor=anchor, positive=positive, negative=negative)
    near, far = ((anchor - other + epsilon).norm(p, -1) for other in (positive, negative))
    return reduce_losses("triplet_margin_loss", (near - far + margin).relu(), reduction)
