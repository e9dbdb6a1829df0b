"""Losses as functions and as modules, under their usual names; see `phlox.functional`."""

from __future__ import annotations

from phlox.nn.loss.classes import (
    BinaryCrossEntropyLoss,
    BinaryCrossEntropyLossConfig,
    BinaryCrossEntropyWithLogitsLoss,
    BinaryCrossEntropyWithLogitsLossConfig,
    CrossEntropyLoss,
    CrossEntropyLossConfig,
    CtcLoss,
    CtcLossConfig,
    NllLoss,
    NllLossConfig,
)
from phlox.nn.loss.contrastive import (
    ContrastiveLoss,
    ContrastiveLossConfig,
    SigmoidContrastiveLoss,
    SigmoidContrastiveLossConfig,
)
from phlox.nn.loss.distributions import (
    GaussianNllLoss,
    GaussianNllLossConfig,
    KlDivLoss,
    KlDivLossConfig,
    PoissonNllLoss,
    PoissonNllLossConfig,
)
from phlox.nn.loss.margins import (
    CosineSimilarity,
    CosineSimilarityConfig,
    HingeEmbeddingLoss,
    HingeEmbeddingLossConfig,
    MarginRankingLoss,
    MarginRankingLossConfig,
    TripletMarginLoss,
    TripletMarginLossConfig,
)
from phlox.nn.loss.regression import (
    HuberLoss,
    HuberLossConfig,
    L1Loss,
    L1LossConfig,
    MseLoss,
    MseLossConfig,
    SmoothL1Loss,
    SmoothL1LossConfig,
)
from phlox.tensor.functional import binary_cross_entropy as binary_cross_entropy_loss
from phlox.tensor.functional import binary_cross_entropy_with_logits as binary_cross_entropy_with_logits_loss
from phlox.tensor.functional import (
    contrastive_loss,
    ctc_loss,
    gaussian_nll_loss,
    hinge_embedding_loss,
    huber_loss,
    l1_loss,
    margin_ranking_loss,
    mse_loss,
    nll_loss,
    poisson_nll_loss,
    sigmoid_contrastive_loss,
    smooth_l1_loss,
    triplet_margin_loss,
)
from phlox.tensor.functional import cross_entropy as cross_entropy_loss
from phlox.tensor.functional import kl_div as kl_div_loss

__all__ = [
    "BinaryCrossEntropyLoss", "BinaryCrossEntropyLossConfig", "BinaryCrossEntropyWithLogitsLoss",
    "BinaryCrossEntropyWithLogitsLossConfig", "ContrastiveLoss", "ContrastiveLossConfig", "CosineSimilarity",
    "CosineSimilarityConfig", "CrossEntropyLoss", "CrossEntropyLossConfig", "CtcLoss", "CtcLossConfig",
    "GaussianNllLoss", "GaussianNllLossConfig", "HingeEmbeddingLoss", "HingeEmbeddingLossConfig", "HuberLoss",
    "HuberLossConfig", "KlDivLoss", "KlDivLossConfig", "L1Loss", "L1LossConfig", "MarginRankingLoss",
    "MarginRankingLossConfig", "MseLoss", "MseLossConfig", "NllLoss", "NllLossConfig", "PoissonNllLoss",
    "PoissonNllLossConfig", "SigmoidContrastiveLoss", "SigmoidContrastiveLossConfig", "SmoothL1Loss",
    "SmoothL1LossConfig", "TripletMarginLoss", "TripletMarginLossConfig", "binary_cross_entropy_loss",
    "binary_cross_entropy_with_logits_loss", "contrastive_loss", "cross_entropy_loss", "ctc_loss",
    "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div_loss", "l1_loss", "margin_ranking_loss",
    "mse_loss", "nll_loss", "poisson_nll_loss", "sigmoid_contrastive_loss", "smooth_l1_loss", "triplet_margin_loss",
]  # fmt: skip
