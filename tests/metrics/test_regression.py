"""Metrics of numbers, beside scikit-learn and SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics.functional as tmf
from scipy import stats as scipy_stats
from sklearn import metrics as sklearn_metrics

from phlox import metrics
from phlox.errors import RangeError, ShapeError
from tests.metrics.support import agrees, compiled_agrees, each_compiler, traced_only  # noqa: F401

sk: Any = sklearn_metrics  # of loose types
stats: Any = scipy_stats
RNG = np.random.default_rng(3)
N = 40
T = (RNG.normal(size=(N, 3)) * [1.0, 5.0, 0.1] + [0.0, 100.0, -3.0]).astype(np.float32)
P = (T + RNG.normal(size=(N, 3)) * 0.3).astype(np.float32)
W = RNG.uniform(0.0, 3.0, N).astype(np.float32)
W64, T64, P64 = (x.astype(np.float64) for x in (W, T, P))
MAPE = {"epsilon": float(np.finfo(np.float64).eps)}

KINDS: list[tuple[Any, Any, dict[str, Any]]] = [
    (metrics.MeanAbsoluteError, sk.mean_absolute_error, {}),
    (metrics.MeanSquaredError, sk.mean_squared_error, {}),
    (metrics.RootMeanSquaredError, sk.root_mean_squared_error, {}),
    (metrics.MeanAbsolutePercentageError, sk.mean_absolute_percentage_error, MAPE),
    (metrics.R2, sk.r2_score, {}),
    (metrics.ExplainedVariance, sk.explained_variance_score, {}),
]


@pytest.mark.parametrize("weights", [None, W], ids=["alike", "weighted"])
@pytest.mark.parametrize("metric, reference, options", KINDS, ids=lambda x: getattr(x, "__name__", ""))
def test_of_scikit_learn(metric: Any, reference: Any, options: Any, weights: Any) -> None:
    o = {"sample_weight": None if weights is None else W64}
    agrees(metric(**options), (P[:, 0], T[:, 0]), reference(T64[:, 0], P64[:, 0], **o), weights=weights)
    for how in ("uniform_average", "raw_values", "variance_weighted"):
        if how == "variance_weighted" and not issubclass(metric, (metrics.R2, metrics.ExplainedVariance)):
            continue
        want = reference(T64, P64, multioutput=how, **o)
        agrees(metric(num_outputs=3, multioutput=how, **options), (P, T), want, weights=weights, merged=1e-10)


def test_correlations() -> None:
    p, t = P[:, 0], T[:, 0]
    agrees(metrics.Pearson(), (p, t), stats.pearsonr(P64[:, 0], T64[:, 0]).statistic, rtol=1e-10)
    want = [stats.pearsonr(P64[:, k], T64[:, k]).statistic for k in range(3)]
    agrees(metrics.Pearson(num_outputs=3, multioutput="raw_values"), (P, T), want, rtol=1e-8)
    agrees(metrics.Spearman(), (p.round(0), t.round(0)), stats.spearmanr(p.round(0), t.round(0)).statistic)
    counts = RNG.integers(0, 4, N)
    for metric in (metrics.Spearman(), metrics.Pearson()):
        want = metric(np.repeat(p.round(0), counts), np.repeat(t.round(0), counts))
        agrees(metric, (p.round(0), t.round(0)), want, weights=counts.astype(np.float32))


def test_large_means_cancel_as_little_as_in_float64() -> None:
    t = (RNG.normal(size=5000) + 1000.0).astype(np.float32)
    p = (t + RNG.normal(size=5000) * 0.1).astype(np.float32)
    want = sk.r2_score(t.astype(np.float64), p.astype(np.float64))
    assert metrics.R2()(p, t) == pytest.approx(want, abs=1e-7)
    sums = [(x.astype(np.float32) ** 2).sum(dtype=np.float32) - x.sum(dtype=np.float32) ** 2 / 5000 for x in (t,)]
    assert abs(sums[0] / ((t - t.mean(dtype=np.float64)) ** 2).sum() - 1.0) > 1e-3  # what sums in f32 make of it


def test_cosine_similarity() -> None:
    want = tmf.cosine_similarity(torch.tensor(P), torch.tensor(T), reduction="mean").item()
    agrees(metrics.CosineSimilarity(), (P, T), want)
    each = tmf.cosine_similarity(torch.tensor(P), torch.tensor(T), reduction="none").numpy()
    agrees(metrics.CosineSimilarity(), (P, T), np.average(each, weights=W), weights=W)
    assert metrics.CosineSimilarity(axis=0)(P.T, T.T) == pytest.approx(want)
    assert metrics.CosineSimilarity()(np.zeros((1, 3)), np.ones((1, 3))) == 0.0


def test_nothing_one_row_and_constants() -> None:
    one, same = (np.array([1.0]), np.array([2.0])), (np.array([1.0, 2.0, 4.0]), np.full(3, 0.1))
    for kind in (metrics.R2, metrics.ExplainedVariance, metrics.Pearson, metrics.Spearman):
        assert np.isnan(kind()(np.zeros(0), np.zeros(0))) and np.isnan(kind()(*one)) and np.isnan(kind()(*same))
    for kind in (metrics.MeanSquaredError, metrics.MeanAbsoluteError, metrics.RootMeanSquaredError):
        assert np.isnan(kind()(np.zeros(0), np.zeros(0))) and kind()(*one) == 1.0
        assert np.isnan(kind()(np.array([np.nan]), np.zeros(1)))
    assert metrics.R2()(same[0], same[0]) == 1.0
    assert np.isnan(metrics.Spearman()([1.0, np.nan], [1.0, 2.0]))


LOOSE: Any = metrics  # what type checkers refuse is tried, too
BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda: LOOSE.R2(num_outputs=0), RangeError, "R2: num_outputs must be a positive integer or None, got 0"),
    (lambda: LOOSE.Pearson(multioutput="mean"), RangeError, "Pearson: multioutput is 'uniform_average'"),
    (lambda: LOOSE.MeanSquaredError(multioutput="variance_weighted"), RangeError, "MeanSquaredError: multioutput"),
    (lambda: LOOSE.MeanAbsolutePercentageError(epsilon=0.0), RangeError, "epsilon must be positive"),
    (lambda: LOOSE.MeanAbsolutePercentageError(num_outputs=0), RangeError, "Error: num_outputs must be a positive"),
    (lambda: LOOSE.MeanAbsolutePercentageError(multioutput="mean"), RangeError, "Error: multioutput is 'uniform_aver"),
    (
        lambda: LOOSE.Pearson()(P, T[:4]),
        ShapeError,
        "Pearson: predictions of shape (40, 3) and targets of shape (4, 3)",
    ),
    (lambda: LOOSE.R2(num_outputs=2)(P, T), ShapeError, "R2: predictions of shape (40, 3) have no num_outputs=2"),
    (
        lambda: LOOSE.CosineSimilarity(axis=2)(P, T),
        ShapeError,
        "CosineSimilarity: predictions of shape (40, 3) have no",
    ),
    (lambda: LOOSE.R2(num_outputs=3)(P, T, weights=P), ShapeError, "R2: weights of shape (40, 3) do not fit rows of"),
]


@pytest.mark.parametrize("bad, kind, words", BAD)
def test_bad_input(bad: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as error:
        bad()
    assert words in str(error.value)


@pytest.mark.every(2)
@each_compiler
@pytest.mark.usefixtures("traced_only")
def test_compiled(backend: Any) -> None:
    compiled_agrees(backend, metrics.R2(num_outputs=3), (P, T), W)
    compiled_agrees(backend, metrics.MeanAbsoluteError(), (P, T))
    compiled_agrees(backend, metrics.Spearman(), (P, T))
