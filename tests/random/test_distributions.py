"""What the generator draws, against SciPy: the table of the normal quantile, and distributions on fixed seeds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from phlox.backend.numpy import random as on_numpy
from phlox.backend.quantile import NODES, ORIGIN, STEPS


def state_of(words: tuple[int, int, int]) -> Any:
    return np.array(words, np.uint32)


# ---------------------------------------------------------------------------------------------------------- the table


def test_table_is_the_rounded_quantile() -> None:
    k = np.arange(24 * 512 + 1)
    m = (1 + k % 512 / 512) * 2.0 ** (k // 512)
    exact = -special.ndtri((m - 0.5) / 2**25) * 2**26
    assert NODES.shape == k.shape
    assert NODES.dtype == STEPS.dtype == np.int32
    assert np.abs(NODES - exact).max() < 0.5 + 1e-3  # the rest is SciPy's own rounding
    assert np.array_equal(STEPS[:-1], -np.diff(NODES.astype(np.int64)))


def test_normals_of_all_24_bit_numbers() -> None:
    """No overflow, strictly falling, positive, within 2.2e-7 (3.4e-7 as float32) of SciPy: for each number there is."""
    assert 0 <= STEPS.min() <= STEPS.max() * 0x3FFF < 2**31
    worst, worst_single, previous = 0.0, 0.0, 2**31
    for first in range(0, 2**24, 2**21):
        m = np.arange(first + 1, first + 2**21 + 1, dtype=np.int32)
        bits = m.astype(np.float32).view(np.int32)
        k = (bits >> 14) - ORIGIN
        r = NODES[k] - (STEPS[k] * (bits & 0x3FFF) >> 14)
        assert previous > r[0]
        assert np.all(r[:-1] > r[1:])
        previous = int(r[-1])
        exact = -special.ndtri((m - 0.5) / 2**25)
        worst = max(worst, np.abs(r * 2.0**-26 - exact).max())
        worst_single = max(worst_single, np.abs(r.astype(np.float32) * np.float64(2.0**-26) - exact).max())
    assert previous > 0
    assert worst < 2.2e-7
    assert worst_single < 3.4e-7


# --------------------------------------------------------------------------------------------------------- statistics


def test_uniform_distribution() -> None:
    x = on_numpy.random_uniform(state_of((11, 12, 13)), (500_000,), np.float64)
    assert 0 <= x.min() < 1e-5
    assert 1 - 1e-5 < x.max() < 1
    assert stats.kstest(x, "uniform").pvalue > 1e-3
    assert stats.chisquare(np.bincount((x * 1000).astype(int), minlength=1000)).pvalue > 1e-3


def test_normal_distribution() -> None:
    n = 2_000_000
    x = on_numpy.random_normal(state_of((11, 12, 14)), (n,), np.float64)
    for power, moment, variance in [(1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)]:
        assert abs(np.mean(x**power) - moment) < 3.5 * math.sqrt(variance / n)
    assert stats.kstest(x[:500_000], "norm").pvalue > 1e-3
    for limit in (2.0, 3.0, 4.0, 4.5):  # both tails, far out
        for tail in (x > limit, x < -limit):
            assert stats.binomtest(int(tail.sum()), n, float(stats.norm.sf(limit))).pvalue > 1e-3


@pytest.mark.parametrize("threshold", [1, 6554, 32768, 58982, 65535])
def test_bernoulli_frequency(threshold: int) -> None:
    n = 1_000_001
    x = on_numpy.random_bernoulli(state_of((21, 22, threshold)), (n,), threshold)
    for part in (x, x[: n // 2], x[n // 2 :]):
        assert stats.binomtest(int(part.sum()), part.size, threshold / 65536).pvalue > 1e-3


def test_bernoulli_ends() -> None:
    state = state_of((21, 22, 23))
    assert not on_numpy.random_bernoulli(state, (100_001,), 0).any()
    assert on_numpy.random_bernoulli(state, (100_001,), 65536).all()


@pytest.mark.parametrize("low, high", [(0, 2), (-3, 4), (10, 1010)])
def test_integers_frequency(low: int, high: int) -> None:
    x = on_numpy.random_integers(state_of((31, 32, high)), (300_000,), low, high)
    assert (x.min(), x.max()) == (low, high - 1)
    assert stats.chisquare(np.bincount(x - low)).pvalue > 1e-3


def test_integers_of_a_range_that_is_no_power_of_two() -> None:
    """With 32 bits an element, a third of these would be twice as frequent as the others."""
    x = on_numpy.random_integers(state_of((31, 32, 33)), (300_000,), -(2**31), 2**30).astype(np.int64)
    assert stats.chisquare(np.bincount((x + 2**31) % 3)).pvalue > 1e-3
    assert stats.kstest((x + 2**31) / (3 * 2**30), "uniform").pvalue > 1e-3


def test_permutations_are_equally_frequent() -> None:
    seen: dict[bytes, int] = {}
    for position in range(4800):
        permutation = on_numpy.random_permutation(state_of((41, 42, position)), 4)
        assert sorted(permutation) == [0, 1, 2, 3]
        seen[permutation.tobytes()] = seen.get(permutation.tobytes(), 0) + 1
    assert len(seen) == 24
    assert stats.chisquare(list(seen.values())).pvalue > 1e-3


def test_permutation_of_many() -> None:
    permutation = on_numpy.random_permutation(state_of((41, 42, 43)), 100_000)
    assert np.array_equal(np.sort(permutation), np.arange(100_000))
    assert abs(np.corrcoef(permutation, np.arange(100_000))[0, 1]) < 4 / math.sqrt(100_000)


def test_neighbours_are_independent() -> None:
    """Draws at neighbouring positions, of neighbouring keys and sub-streams, and the halves of one draw."""
    n = 100_000
    key = (51, 52)
    states = [
        (*key, 0),
        (*key, 1),
        (*key, 2**31),
        (51, 53, 0),
        (50, 52, 0),
        (52, 51, 0),
        (*on_numpy.fold_in(key, 0), 0),
        (*on_numpy.fold_in(key, 1), 0),
        (*on_numpy.fold_in(on_numpy.fold_in(key, 0), 0), 0),
    ]
    rows = np.stack([on_numpy.random_normal(state_of(state), (n,)) for state in states])
    rows = np.concatenate([rows, np.roll(rows[:1], 1, axis=1), np.roll(rows[:1], n // 2, axis=1)]).astype(np.float64)
    for table in (rows, rows**2):
        correlations = np.corrcoef(table) - np.eye(len(rows))
        assert np.abs(correlations).max() < 4.5 / math.sqrt(n)
