"""Metrics of numbers that are measured elsewhere, beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import metrics
from phlox.errors import RangeError, ShapeError
from tests.metrics.support import agrees, compiled_agrees, each_compiler, traced_only  # noqa: F401

RNG = np.random.default_rng(6)
X = (RNG.normal(size=(30, 2)) * 3.0 + 50.0).astype(np.float32)
W = RNG.uniform(0.0, 3.0, 30).astype(np.float32)
X64, W64 = X.astype(np.float64), W.astype(np.float64)
COUNTS = RNG.integers(0, 4, 30)


def test_mean_and_standard_deviation() -> None:
    agrees(metrics.Mean(), (X,), X64.mean(), rtol=1e-12)
    agrees(metrics.Mean(), (X,), np.average(X64.mean(1), weights=W64), weights=W, rtol=1e-12)
    agrees(metrics.Mean(), (X[:, 0].astype(int),), X[:, 0].astype(int).mean(), rtol=1e-12)
    for correction in (0.0, 1.0):
        metric = metrics.StandardDeviation(correction=correction)
        agrees(metric, (X,), X64.std(ddof=int(correction)), rtol=1e-10)
        agrees(metric, (X,), np.repeat(X64, COUNTS, 0).std(ddof=int(correction)), weights=COUNTS, rtol=1e-10)
    assert np.isnan(metrics.StandardDeviation(correction=1.0)([2.0])) and metrics.StandardDeviation()([2.0]) == 0.0


def test_the_mean_of_batches() -> None:
    mean = metrics.Mean()
    state = mean.init()
    for loss, rows in ((1.0, 3), (px.tensor(5.0), 1)):
        state = mean.update(state, loss, weights=rows)
    assert mean.compute(state) == 2.0


@pytest.mark.parametrize("q", [0.0, 0.3, 0.5, 1.0, (0.1, 0.25, 0.9)])
def test_quantiles(q: Any) -> None:
    agrees(metrics.Quantile(q=q), (X,), np.quantile(X64, q), rtol=1e-10)
    agrees(metrics.Quantile(q=q), (X,), np.quantile(np.repeat(X64, COUNTS, 0), q), weights=COUNTS, rtol=1e-10)
    binned = metrics.Quantile(q=q, bins=400, range=(30.0, 70.0))
    np.testing.assert_allclose(binned(X), np.quantile(X64, q, method="inverted_cdf"), atol=0.1)
    agrees(binned, (X,), binned(np.repeat(X, 2, 0), weights=None), weights=W * 0 + 2.0)


def test_a_quantile_of_a_histogram_lies_within_its_bin() -> None:
    """NumPy's `histogram` and `interp`: the rank grows evenly from the lower edge of a bin to its upper one."""
    x = np.concatenate([RNG.normal(52.0, 2.0, 200), RNG.normal(61.0, 1.0, 50)]).astype(np.float32)
    weights = RNG.uniform(0.2, 3.0, x.size).astype(np.float32)
    q = np.array([0.03, 0.25, 0.5, 0.77, 0.96])
    metric = metrics.Quantile(q=q.tolist(), bins=8, range=(40.0, 72.0))
    for given in (None, weights):
        rows, edges = np.histogram(x.astype(np.float64), 8, (40.0, 72.0), weights=given)
        ranks = np.concatenate([[0.0], np.cumsum(rows, dtype=np.float64)])
        agrees(metric, (x,), np.interp(q * ranks[-1], ranks, edges), weights=given, rtol=1e-10)


def test_throughput() -> None:
    metric = metrics.Throughput()
    state = metric.init()
    for count, seconds in ((100, 0.5), (px.tensor(200), 1.0)):
        state = metric.update(state, count, seconds)
    assert metric.compute(state) == 200.0
    assert np.isnan(metric(0, 0.0))


LOOSE: Any = metrics  # what type checkers refuse is tried, too
BAD: list[tuple[Any, type[Exception], str]] = [
    (lambda: LOOSE.Quantile(q=1.5), RangeError, "Quantile: q lies between 0 and 1, got 1.5"),
    (lambda: LOOSE.Quantile(bins=3), RangeError, "Quantile: bins= and range= are given together"),
    (lambda: LOOSE.Quantile(bins=0, range=(0.0, 1.0)), RangeError, "Quantile: bins must be a positive integer"),
    (lambda: LOOSE.Quantile(bins=3, range=(1.0, 0.0)), RangeError, "Quantile: range is two numbers, the lower one"),
    (lambda: LOOSE.Mean()([1.0, 2.0], weights=[1.0]), ShapeError, "Mean: weights of shape (1,) do not fit rows of"),
    (lambda: LOOSE.Mean()([1.0, 2.0], weights=[1.0, -1.0]), RangeError, "Mean: weights must be finite"),
    (lambda: LOOSE.Throughput()(1, 1.0, weights=[1]), RangeError, "Throughput has no weights"),
]


@pytest.mark.parametrize("bad, kind, words", BAD)
def test_bad_input(bad: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind) as error:
        bad()
    assert words in str(error.value)


@each_compiler
@pytest.mark.usefixtures("traced_only")
def test_compiled(backend: Any) -> None:
    compiled_agrees(backend, metrics.StandardDeviation(), (X,), W)
    compiled_agrees(backend, metrics.Quantile(q=[0.1, 0.9], bins=10, range=(40.0, 60.0)), (X,))
    compiled_agrees(backend, metrics.Quantile(), (X,))
