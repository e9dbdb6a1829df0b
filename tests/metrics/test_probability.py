"""Metrics of probabilities, beside scikit-learn and torchmetrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics.functional.classification as tm
import torchmetrics.functional.text as tmt
from sklearn import metrics as sklearn_metrics

from phlox import metrics
from phlox.errors import KindError, RangeError
from tests.metrics.support import agrees, compiled_agrees, each_compiler, traced_only  # noqa: F401

sk: Any = sklearn_metrics  # of loose types
RNG = np.random.default_rng(1)
N, C = 40, 4
LOGITS = (2.0 * RNG.normal(size=(N, C))).astype(np.float32)
P = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
LABELS = RNG.integers(0, C, N).astype(np.int32)
W = RNG.uniform(0.0, 3.0, N).astype(np.float32)
YES = RNG.uniform(size=N).astype(np.float32)
TRUTH = (RNG.uniform(size=N) < YES).astype(np.int32)


@pytest.mark.parametrize("weights", [None, W], ids=["alike", "weighted"])
def test_log_loss(weights: Any) -> None:
    want = sk.log_loss(
        LABELS, P.astype(np.float64) / P.astype(np.float64).sum(-1, keepdims=True), sample_weight=weights
    )
    agrees(metrics.LogLoss(), (P, LABELS), want, weights=weights)
    agrees(metrics.LogLoss(from_logits=True), (LOGITS, LABELS), want, weights=weights)
    agrees(metrics.Perplexity(), (LOGITS, LABELS), np.exp(want), weights=weights, rtol=5e-6)
    agrees(metrics.Perplexity(from_logits=False), (P, LABELS), np.exp(want), weights=weights, rtol=5e-6)
    want = sk.log_loss(TRUTH, YES, sample_weight=weights)
    agrees(metrics.LogLoss(task="binary"), (YES, TRUTH), want, weights=weights)
    logit = np.log(YES.astype(np.float64) / (1.0 - YES)).astype(np.float32)
    agrees(metrics.LogLoss(task="binary", from_logits=True), (logit, TRUTH), want, weights=weights)


def test_perplexity_of_padded_tokens() -> None:
    logits, tokens = LOGITS.reshape(5, 8, C), LABELS.reshape(5, 8).copy()
    tokens[:, 5:] = -100
    want = tmt.perplexity(torch.tensor(logits), torch.tensor(tokens.astype(np.int64)), ignore_index=-100).item()
    agrees(metrics.Perplexity(ignore_index=-100), (logits, tokens), want, rtol=5e-6)


def test_a_certain_error_is_bounded() -> None:
    assert metrics.LogLoss()(np.array([[1.0, 0.0]]), [1]) == pytest.approx(-np.log(1e-7))
    assert metrics.LogLoss(epsilon=1e-3)(np.array([[1.0, 0.0]]), [1]) == pytest.approx(-np.log(1e-3))
    assert metrics.LogLoss(task="binary", from_logits=True)([80.0], [0]) == pytest.approx(80.0)


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_calibration(norm: Any) -> None:
    want = tm.multiclass_calibration_error(torch.tensor(P), torch.tensor(LABELS), C, 10, norm).item()
    agrees(metrics.CalibrationError(bins=10, norm=norm), (P, LABELS), want, rtol=1e-5)
    agrees(metrics.CalibrationError(bins=10, norm=norm, from_logits=True), (LOGITS, LABELS), want, rtol=1e-5)
    want = tm.binary_calibration_error(torch.tensor(YES), torch.tensor(TRUTH), 10, norm).item()
    agrees(metrics.CalibrationError(task="binary", bins=10, norm=norm), (YES, TRUTH), want, rtol=1e-5)


def test_calibration_of_weights_and_of_equally_filled_bins() -> None:
    counts = RNG.integers(0, 4, N)
    for metric in (
        metrics.CalibrationError(task="binary", bins=7),
        metrics.CalibrationError(task="binary", bins=5, adaptive=True),
    ):
        repeated = metric(np.repeat(YES, counts), np.repeat(TRUTH, counts))
        if not metric.adaptive:
            agrees(metric, (YES, TRUTH), repeated, weights=counts.astype(np.float32), rtol=1e-5)
    order = np.argsort(YES)
    parts = [(abs(YES[part].mean() - TRUTH[part].mean()), len(part)) for part in np.array_split(order, 5)]
    want = np.average([gap for gap, _ in parts], weights=[n for _, n in parts])
    agrees(metrics.CalibrationError(task="binary", bins=5, adaptive=True), (YES, TRUTH), want, rtol=1e-5)


def test_nothing() -> None:
    empty = np.zeros((0, C), np.float32), np.zeros(0, np.int32)
    for metric in (
        metrics.LogLoss(),
        metrics.Perplexity(),
        metrics.CalibrationError(),
        metrics.CalibrationError(adaptive=True),
    ):
        assert np.isnan(metric(*empty))
    assert np.isnan(metrics.LogLoss()(np.array([[np.nan, 1.0]]), [0]))


LOOSE: Any = metrics  # what type checkers refuse is tried, too
BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda: LOOSE.LogLoss(epsilon=0.0), RangeError, "LogLoss: epsilon lies between 0 and 1"),
    (lambda: LOOSE.LogLoss()([0, 1], [0, 1]), KindError, "LogLoss: predictions must be scores (Float)"),
    (lambda: LOOSE.CalibrationError(bins=0), RangeError, "CalibrationError: bins must be a positive integer, got 0"),
    (
        lambda: LOOSE.CalibrationError(norm="l3"),
        RangeError,
        "CalibrationError: norm is 'l1', 'l2' or 'max', got 'l3'",
    ),
    (lambda: LOOSE.CalibrationError(task="multilabel"), RangeError, "CalibrationError: task is"),
]


@pytest.mark.parametrize("bad, kind, words", BAD)
def test_bad_input(bad: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as error:
        bad()
    assert words in str(error.value)


@each_compiler
@pytest.mark.usefixtures("traced_only")
def test_compiled(backend: Any) -> None:
    compiled_agrees(backend, metrics.Perplexity(ignore_index=1), (LOGITS, LABELS))
    compiled_agrees(backend, metrics.CalibrationError(bins=5, from_logits=True), (LOGITS, LABELS), W)
    compiled_agrees(backend, metrics.CalibrationError(task="binary", adaptive=True), (YES, TRUTH))
