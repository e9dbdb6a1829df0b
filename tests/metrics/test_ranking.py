"""Areas under curves, beside scikit-learn and torchmetrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics.functional.classification as tm
from sklearn import metrics as sklearn_metrics

from phlox import metrics
from phlox.errors import KindError, RangeError
from tests.metrics.support import agrees, compiled_agrees, each_compiler, traced_only  # noqa: F401

sk: Any = sklearn_metrics  # of loose types
RNG = np.random.default_rng(2)
N, C = 40, 3
LOGITS = RNG.normal(size=(N, C)).astype(np.float32).round(1)  # with equal ones
P = (np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)).round(2)
LABELS = RNG.integers(0, C, N).astype(np.int32)
TRUTHS = (RNG.uniform(size=(N, C)) > 0.6).astype(np.int32)
W = RNG.uniform(0.0, 3.0, N).astype(np.float32)
KINDS: list[tuple[Any, Any]] = [
    (metrics.Auroc, sk.roc_auc_score),
    (metrics.AveragePrecision, sk.average_precision_score),
]


@pytest.mark.parametrize("weights", [None, W], ids=["alike", "weighted"])
@pytest.mark.parametrize("metric, reference", KINDS)
def test_exact(metric: Any, reference: Any, weights: Any) -> None:
    o = {"sample_weight": weights}
    agrees(
        metric(task="binary"), (LOGITS[:, 0], TRUTHS[:, 0]), reference(TRUTHS[:, 0], LOGITS[:, 0], **o), weights=weights
    )
    one_hot = np.eye(C, dtype=np.int32)[LABELS]
    for average in ("macro", "micro", "weighted", None):
        want = reference(one_hot, P, average=average, **o)
        agrees(metric(num_classes=C, average=average), (P, LABELS), want, weights=weights)
        want = reference(TRUTHS, LOGITS, average=average, **o)
        agrees(metric(task="multilabel", num_labels=C, average=average), (LOGITS, TRUTHS), want, weights=weights)
    apart = LOGITS + RNG.uniform(-0.04, 0.04, LOGITS.shape).astype(np.float32)  # no ties for rounding to break
    p = np.exp(apart.astype(np.float64)) / np.exp(apart.astype(np.float64)).sum(-1, keepdims=True)
    want = reference(one_hot, p, average="macro", **o)
    agrees(metric(num_classes=C, from_logits=True), (apart, one_hot), want, weights=weights)


BINNED: list[tuple[Any, Any, Any]] = [
    (metrics.Auroc, tm.binary_auroc, tm.multiclass_auroc),
    (metrics.AveragePrecision, tm.binary_average_precision, tm.multiclass_average_precision),
]


@pytest.mark.parametrize("metric, binary, multiclass", BINNED)
def test_binned(metric: Any, binary: Any, multiclass: Any) -> None:
    p, t = P[:, 0], TRUTHS[:, 0]
    want = binary(torch.tensor(p), torch.tensor(t), thresholds=11).item()
    agrees(metric(task="binary", bins=10), (p, t), want)
    want = multiclass(torch.tensor(P), torch.tensor(LABELS).long(), C, thresholds=11).item()
    agrees(metric(num_classes=C, bins=10), (P, LABELS), want)
    smooth = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    agrees(
        metric(num_classes=C, bins=10, from_logits=True),
        (LOGITS, LABELS),
        metric(num_classes=C, bins=10)(smooth, LABELS),
    )
    for average in ("macro", "micro", "weighted", None):
        fine = metric(num_classes=C, bins=5_000, average=average)(P, LABELS, weights=W)
        assert fine == pytest.approx(metric(num_classes=C, average=average)(P, LABELS, weights=W), abs=1e-6)
    agrees(metric(num_classes=C, bins=1), (P, LABELS), metric(num_classes=C)(P * 0.0 + 0.5, LABELS))


def test_ignored_rows() -> None:
    hidden = np.where(np.arange(N) % 4 == 0, -1, TRUTHS[:, 0])
    kept = hidden >= 0
    spoilt = np.where(kept, LOGITS[:, 0], np.nan).astype(np.float32)
    for bins in (None, 10):
        p = spoilt if bins is None else 1.0 / (1.0 + np.exp(-spoilt))
        metric = metrics.Auroc(task="binary", ignore_index=-1, bins=bins)
        agrees(metric, (p, hidden), metric(p[kept], hidden[kept]))


@pytest.mark.parametrize("bins", [None, 8])
def test_nothing_and_one_class(bins: Any) -> None:
    for kind in (metrics.Auroc, metrics.AveragePrecision):
        assert np.isnan(kind(task="binary", bins=bins)(np.zeros(0, np.float32), np.zeros(0, np.int32)))
        by_class = kind(num_classes=4, average=None, bins=bins)
        scores = np.concatenate([P, np.zeros((N, 1), np.float32)], 1)
        values = by_class(scores, LABELS)
        assert np.isnan(values).tolist() == [False, False, False, True]
        mean = kind(num_classes=4, bins=bins)(scores, LABELS)
        assert mean == pytest.approx(values[:3].mean())
        assert np.isnan(by_class.compute({})).all()
    yes, no = np.ones(3, np.int32), np.zeros(3, np.int32)
    p = np.array([0.1, 0.5, 0.9], np.float32)
    assert np.isnan(metrics.Auroc(task="binary", bins=bins)(p, yes))
    assert np.isnan(metrics.Auroc(task="binary", bins=bins)(p, no))
    assert metrics.AveragePrecision(task="binary", bins=bins)(p, yes) == 1.0
    assert np.isnan(metrics.AveragePrecision(task="binary", bins=bins)(p, no))
    assert np.isnan(metrics.Auroc(task="binary")([0.5, np.nan], [0, 1]))


LOOSE: Any = metrics  # what type checkers refuse is tried, too
BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda: LOOSE.Auroc(), RangeError, "Auroc: give the number of classes: num_classes"),
    (lambda: LOOSE.Auroc(num_classes=3, bins=0), RangeError, "Auroc: bins must be a positive integer"),
    (lambda: LOOSE.Auroc(num_classes=3, average="all"), RangeError, "Auroc: average is"),
    (lambda: LOOSE.Auroc(num_classes=3)([0, 1], [0, 1]), KindError, "Auroc: predictions must be scores (Float)"),
]


@pytest.mark.parametrize("bad, kind, words", BAD)
def test_bad_input(bad: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as error:
        bad()
    assert words in str(error.value)


@each_compiler
@pytest.mark.usefixtures("traced_only")
def test_compiled(backend: Any) -> None:
    compiled_agrees(backend, metrics.Auroc(num_classes=C, bins=10, from_logits=True), (LOGITS, LABELS))
    compiled_agrees(backend, metrics.AveragePrecision(num_classes=C), (P, LABELS), W)
