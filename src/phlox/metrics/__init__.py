"""Streaming metrics of classes, ranks, numbers, sentences and images: exact over batches, shards and processes."""

from __future__ import annotations

from phlox.lazy import lazily
from phlox.metrics.aggregation import Mean, Quantile, StandardDeviation, Throughput
from phlox.metrics.base import Collection, Metric, Results, Rows, Shapes, State, Statistic
from phlox.metrics.classification import (
    F1,
    Accuracy,
    CohenKappa,
    ConfusionMatrix,
    Dice,
    ExactMatch,
    FBeta,
    Hamming,
    IoU,
    MatthewsCorrelation,
    Precision,
    Recall,
    Specificity,
)
from phlox.metrics.image import Psnr, Ssim
from phlox.metrics.inputs import meet, row_weights
from phlox.metrics.probability import CalibrationError, LogLoss, Perplexity
from phlox.metrics.ranking import Auroc, AveragePrecision
from phlox.metrics.regression import (
    R2,
    CosineSimilarity,
    ExplainedVariance,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanSquaredError,
    Pearson,
    RootMeanSquaredError,
    Spearman,
)
from phlox.metrics.sums import Sum, bin_totals, total, totals
from phlox.metrics.text import Bleu, CharacterErrorRate, RougeL, WordErrorRate, tokenize_13a

__all__ = [
    "F1", "R2", "Accuracy", "Auroc", "AveragePrecision", "Bleu", "CalibrationError", "CharacterErrorRate", "CohenKappa",
    "Collection", "ConfusionMatrix", "CosineSimilarity", "Dice", "ExactMatch", "ExplainedVariance", "FBeta", "Hamming",
    "IoU", "LogLoss", "MatthewsCorrelation", "Mean", "MeanAbsoluteError", "MeanAbsolutePercentageError",
    "MeanSquaredError", "Metric", "Pearson", "Perplexity", "Precision", "Psnr", "Quantile", "Recall", "Results",
    "RootMeanSquaredError", "RougeL", "Rows", "Shapes", "Spearman", "Specificity", "Ssim", "StandardDeviation", "State",
    "Statistic", "Sum", "Throughput", "WordErrorRate", "bin_totals", "meet", "row_weights", "tokenize_13a", "total",
    "totals",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__, {})
