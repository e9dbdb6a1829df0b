"""Moments of numbers far from zero, beside NumPy in float64 on numbers that are centered first."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import metrics
from phlox.backend import NumPy, Torch
from phlox.metrics import Metric
from tests.metrics.support import batches, each_compiler, on, streamed
from tests.metrics.support import traced_only as traced_only

RNG = np.random.default_rng(0)
N = 64
OFFSETS = {"zero": 0.0, "near": 3.0, "far": 1e8, "below": -1e8, "farthest": 3e15, "small": 1e-20}
KINDS: dict[str, tuple[Metric, int]] = {
    "deviation": (metrics.StandardDeviation(), 1),
    "estimate": (metrics.StandardDeviation(correction=1.0), 1),
    "r2": (metrics.R2(), 2),
    "explained": (metrics.ExplainedVariance(), 2),
    "pearson": (metrics.Pearson(), 2),
}


def numbers(offset: float, float_: Any = np.float32) -> list[np.ndarray[Any, Any]]:
    """Predictions and targets around an offset, whose spread is some units of its last digit."""
    unit = max(abs(float(np.spacing(float_(offset)))) * 3.0, 1e-20 if offset == 1e-20 else 1.0 if offset < 1e3 else 0.0)
    t = RNG.normal(size=N) * 4.0
    p = t + RNG.normal(size=N) + 0.5
    return [(offset + unit * x).astype(float_) for x in (p, t)]


def reference(kind: str, arrays: list[Any], weights: Any = None) -> float:
    w = np.ones(N) if weights is None else weights.astype(np.longdouble)
    p, *rest = (x.astype(np.longdouble) - np.longdouble(arrays[0][-1]) for x in arrays)

    def central(x: Any, y: Any) -> Any:
        x, y = (z - (w * z).sum() / w.sum() for z in (x, y))
        return (w * x * y).sum()

    if kind in ("deviation", "estimate"):
        return float(np.sqrt(central(p, p) / (w.sum() - (kind == "estimate"))))
    t = rest[0]
    if kind == "pearson":
        return float(central(p, t) / np.sqrt(central(p, p) * central(t, t)))
    return float(1 - (central(t - p, t - p) if kind == "explained" else (w * (t - p) ** 2).sum()) / central(t, t))


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("kind", KINDS)
def test_moments_at_any_offset(kind: str, offset: str) -> None:
    metric, count = KINDS[kind]
    for float_, engines in ((np.float32, [NumPy(), Torch()]), (np.float64, [NumPy(float="f64")])):
        arrays = numbers(OFFSETS[offset], float_)[:count]
        for weights in (None, RNG.uniform(0.5, 2.0, N).astype(np.float32) * (np.arange(N) % 5 != 0)):
            want = reference(kind, arrays, weights)
            given = arrays if weights is None else [np.where(weights > 0, x, np.nan) for x in arrays]
            for engine in engines:
                found = metric.compute(streamed(metric, given, weights, engine.device()))
                np.testing.assert_allclose(found, want, rtol=1e-6 if float_ is np.float32 else 1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_moments_merge_in_any_order(kind: str) -> None:
    """Also of parts that lie far from each other, of which one has no rows."""
    metric, count = KINDS[kind]
    arrays = [np.concatenate([x[:9], x[9:40] + np.float32(1e8), x[40:] - 3]) for x in numbers(0.0)[:count]]
    states = [metric.measure(*on("numpy", part)) for part in batches(arrays, (0, 9, 9, 40))]
    a, b, c, d = states
    merge, want = metric.merge, reference(kind, arrays)
    for state in (
        merge(merge(merge(a, b), c), d), merge(a, merge(b, merge(c, d))), merge(merge(d, c), merge(b, a)),
        pickle.loads(pickle.dumps(merge(merge(c, a), merge(d, {})))),  # noqa: S301
    ):  # fmt: skip
        np.testing.assert_allclose(metric.compute(state), want, rtol=1e-9)


@each_compiler
def test_a_compiled_update_at_an_offset(backend: Any, traced_only: None) -> None:
    collection = metrics.Collection({kind: metric for kind, (metric, count) in KINDS.items() if count == 2})
    assert len(collection.measure(*numbers(0.0))) == 1
    arrays = numbers(1e8)
    update = px.compile(lambda state, p, t: collection.update(state, p, t))
    state = collection.init(backend.device())
    for part in batches(arrays, (0, 16, 32, 48)):
        state = update(state, *on(backend.device(), part))
    assert update.traces == 1
    for kind, value in collection.compute(state).items():
        np.testing.assert_allclose(value, reference(kind, arrays), rtol=1e-6)


def test_equal_numbers_have_no_spread() -> None:
    for value in (0.1, 1e8, -7.0, 0.0):
        x = np.full(N, value, np.float32)
        assert metrics.StandardDeviation().compute(streamed(metrics.StandardDeviation(), [x], None, "numpy")) == 0.0
        for kind in ("r2", "explained", "pearson"):
            metric = KINDS[kind][0]
            assert np.isnan(metric.compute(streamed(metric, [numbers(0.0)[0], x], None, "numpy")))
    for spoilt in (np.nan, np.inf):
        assert np.isnan(metrics.StandardDeviation()(np.array([1.0, spoilt, 2.0], np.float32)))


@pytest.mark.every(3)
@pytest.mark.parametrize("device", ["numpy", "torch", "jax"])
def test_integers_are_not_rounded(device: str) -> None:
    large = 2**24 + 1 + 2 * np.arange(4)
    x, other = px.tensor(large, device=device), px.tensor(large - np.array([1, 1, 3, 5]), device=device)
    assert metrics.Mean()(x) == large.mean()
    assert metrics.Mean()(x, weights=px.tensor([1.0, 0.0, 0.0, 0.0], device=device)) == 2**24 + 1
    assert metrics.MeanAbsoluteError()(x, other) == 2.5 and metrics.MeanSquaredError()(x, other) == 9.0
    np.testing.assert_allclose(metrics.StandardDeviation()(x), large.std(), rtol=1e-12)
    ends = px.tensor(np.array([-(2**31), 2**31 - 1]), device=device)
    np.testing.assert_allclose(metrics.StandardDeviation()(ends), 2.0**31 - 0.5, rtol=1e-7)
    np.testing.assert_allclose(metrics.R2()(x, x), 1.0)
    assert metrics.Throughput()(px.tensor(2**24 + 1, device=device), 1.0) == 2**24 + 1
    mask = px.tensor(np.array([True, False, True, False]), device=device)
    np.testing.assert_allclose(metrics.StandardDeviation()(x, weights=mask), 2.0)
