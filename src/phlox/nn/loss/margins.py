"""Losses of distances and margins, and the similarity of vectors."""

from __future__ import annotations

from phlox.config import config_of
from phlox.module import Module
from phlox.nn.loss.base import Loss
from phlox.tensor import Tensor, functional
from phlox.tensor.functional.operands import Reduction


class CosineSimilarity(Module):
    """The cosine of the angle between vectors along `axis`. x and y broadcast. Norms are at least `epsilon`.

    >>> import phlox as px
    >>> CosineSimilarity()(px.tensor([2.0, 0.0]), px.tensor([3.0, 0.0])).item()
    1.0
    """

    def __init__(self, axis: int = -1, *, epsilon: float = 1e-8) -> None:
        self.axis, self.epsilon = axis, epsilon

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.cosine_similarity(x, y, axis=self.axis, epsilon=self.epsilon)


class HingeEmbeddingLoss(Loss):
    """The distance for similar pairs (target 1), max(0, margin - distance) for dissimilar ones (target -1).

    >>> import phlox as px
    >>> HingeEmbeddingLoss(reduction="none")(px.tensor([0.25, 0.25]), px.tensor([1.0, -1.0])).tolist()
    [0.25, 0.75]
    """

    def __init__(self, *, margin: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.margin = margin

    def __call__(self, distance: Tensor, target: Tensor) -> Tensor:
        return functional.hinge_embedding_loss(distance, target, margin=self.margin, reduction=self.reduction)


class MarginRankingLoss(Loss):
    """max(0, margin - target (x - y)). With target 1, x should be greater; with target -1, y.

    >>> import phlox as px
    >>> MarginRankingLoss(margin=0.5)(px.tensor([2.0]), px.tensor([1.0]), px.tensor([-1.0])).item()
    1.5
    """

    def __init__(self, *, margin: float = 0.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction=reduction)
        self.margin = margin

    def __call__(self, x: Tensor, y: Tensor, target: Tensor) -> Tensor:
        return functional.margin_ranking_loss(x, y, target, margin=self.margin, reduction=self.reduction)


class TripletMarginLoss(Loss):
    """max(0, |anchor - positive| - |anchor - negative| + margin) in the p-norm of the last axis (Schroff et al. 2015).

    `epsilon` is added to the differences, so that the gradient of equal vectors is defined.

    >>> import phlox as px
    >>> anchor, far = px.zeros((1, 2)), px.tensor([[3.0, 4.0]])
    >>> TripletMarginLoss(epsilon=0.0)(anchor, far, anchor).item()
    6.0
    """

    def __init__(
        self, *, margin: float = 1.0, p: float = 2.0, epsilon: float = 1e-6, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction=reduction)
        self.margin, self.p, self.epsilon = margin, p, epsilon

    def __call__(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return functional.triplet_margin_loss(
            anchor,
            positive,
            negative,
            margin=self.margin,
            p=self.p,
            epsilon=self.epsilon,
            reduction=self.reduction,
        )


class CosineSimilarityConfig(config_of(CosineSimilarity)):
    """Hyper-parameters of `CosineSimilarity`."""


class HingeEmbeddingLossConfig(config_of(HingeEmbeddingLoss)):
    """Hyper-parameters of `HingeEmbeddingLoss`."""


class MarginRankingLossConfig(config_of(MarginRankingLoss)):
    """Hyper-parameters of `MarginRankingLoss`."""


class TripletMarginLossConfig(config_of(TripletMarginLoss)):
    """Hyper-parameters of `TripletMarginLoss`."""
