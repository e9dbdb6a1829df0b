"""What is drawn, against SciPy: the table of the normal quantile, and distributions on fixed seeds.

Serves: phlox/random/draws.py, phlox/backend/threefry/half_normal.py
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.backend.threefry import generator as on_numpy
from phlox.backend.threefry.half_normal import NODES, ORIGIN, STEPS


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


# ------------------------------------------------------------------------------------- what is made of several draws

BACKENDS = [NumPy(), NumPy(float="f64"), Jax(), Torch(), NumPy(float="f16"), Jax(float="bf16"), Autodiff(NumPy())]
ENGINES = [Jax(), Torch(), Autodiff(Torch())]
MADE: dict[str, tuple[Any, Any]] = {
    "exponential": (lambda d: px.random.exponential((40_000,), 2.0, device=d), stats.expon(0.0, 2.0)),
    "gumbel": (lambda d: px.random.gumbel((40_000,), 1.0, 0.5, device=d), stats.gumbel_r(1.0, 0.5)),
    "laplace": (lambda d: px.random.laplace((40_000,), -1.0, 2.0, device=d), stats.laplace(-1.0, 2.0)),
    "truncated normal": (lambda d: px.random.truncated_normal((40_000,), device=d), stats.truncnorm(-2.0, 2.0)),
    "truncated in the tail": (
        lambda d: px.random.truncated_normal((40_000,), 1.0, 0.5, 2.0, 4.0, device=d),
        stats.truncnorm(2.0, 4.0, 1.0, 0.5),
    ),
}


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("name", MADE)
def test_made_distributions(name: str, backend: Any) -> None:
    draw, wanted = MADE[name]
    with px.random.stream(61):
        x = draw(backend)
    assert x.backend is backend and x.kind is px.Float and x.numpy().dtype == backend.host_float_dtype
    values = x.numpy().astype(np.float64)
    assert np.isfinite(values).all()
    if backend.float_element in ("f16", "bf16"):
        with px.random.stream(61):
            single = draw(type(backend)())
        np.testing.assert_array_equal(x.numpy(), single.numpy().astype(backend.host_float_dtype))
        return
    assert stats.kstest(values, wanted.cdf).pvalue > 1e-3
    assert abs(values.mean() - wanted.mean()) < 4 * wanted.std() / math.sqrt(values.size)
    assert abs(values.std() / wanted.std() - 1.0) < 0.05


@pytest.mark.parametrize("name", MADE)
def test_made_distributions_are_the_same_on_every_engine(name: str) -> None:
    draw, _ = MADE[name]
    with px.random.stream(62):
        wanted = draw(NumPy()).numpy()
    for backend in ENGINES:
        with px.random.stream(62):
            got = draw(backend).numpy()
        if name.startswith("truncated"):  # made of integers
            np.testing.assert_array_equal(got, wanted)
        else:
            np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=2e-6)


def test_truncated_normals_of_all_integers() -> None:
    """Over a line that holds nearly everything, the table's own numbers, in order."""
    from phlox.random.distributions import _quantile

    for first in (0, 2**24 - 2**16, 2**25 - 2**16):
        j = np.arange(first, first + 2**16)
        got = _quantile(px.tensor(j, device=NumPy(float="f64")), NumPy(float="f64").device()).numpy()
        assert np.all(np.diff(got) > 0.0)
        assert np.abs(got - special.ndtri((j + 0.5) / 2**25)).max() < 2.2e-7


def test_truncated_normal_keeps_its_bounds() -> None:
    for low, high in ((-1.0, 0.5), (0.0, 1.0), (-4.0, -3.0), (-50.0, 1.5)):
        with px.random.stream(63):
            x = px.random.truncated_normal((20_000,), low=low, high=high).numpy()
        assert low <= x.min() <= x.max() <= high
        assert stats.kstest(x, stats.truncnorm(low, high).cdf).pvalue > 1e-3


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_categorical_frequencies(backend: Any) -> None:
    weights = np.array([[0.0, 1.0, 0.0, 2.0, 5.0, 0.0], [3.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
    with px.random.stream(64):
        probs = px.tensor(weights, device=backend)
        by_probs = px.random.categorical(probs=probs, shape=(100, 200))
        by_logits = px.random.categorical(probs.log().T, (100, 200), axis=0)
    for drawn in (by_probs, by_logits):
        assert drawn.kind is px.Int and drawn.shape == (100, 200, 2) and drawn.backend is backend
        for row, one in zip(weights, np.moveaxis(drawn.numpy(), -1, 0), strict=True):
            seen = np.bincount(one.ravel(), minlength=row.size)
            assert not seen[row == 0.0].any()
            likely = row > 0.0
            wanted = row[likely] / row.sum() * one.size
            assert stats.chisquare(seen[likely], wanted).pvalue > 1e-3


@pytest.mark.full
def test_categorical_is_the_same_on_every_backend() -> None:
    logits = np.random.default_rng(0).normal(size=(7, 50)) * 3.0
    found = []
    for backend in (NumPy(), Jax(), Torch(), Autodiff(NumPy())):
        with px.random.stream(65):
            found.append(px.random.categorical(px.tensor(logits, device=backend), (500,)).numpy())
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_categorical_of_nothing_and_of_one() -> None:
    assert px.random.categorical(px.zeros((0, 3))).shape == (0,)
    assert px.random.categorical(px.zeros((3,)), (0, 2)).shape == (0, 2)
    assert px.random.categorical(px.zeros((4, 1))).tolist() == [0, 0, 0, 0]
    assert px.random.categorical(px.zeros((3,))).shape == ()


@pytest.mark.full
def test_draws_of_a_compiled_function_are_the_eager_ones() -> None:
    logits = px.tensor([[0.0, 1.0, 2.0], [2.0, 1.0, -30.0]], device=Jax())

    def draws(x: Any) -> Any:
        r = px.random
        return (
            r.categorical(x, (20,)), r.choice(x, (2, 2), axis=1), r.shuffle(x, 1),
            r.truncated_normal((9,), device=x.device),
            r.choice(3, (2,), replace=False, probs=x[0].exp(), device=x.device), r.gumbel((4,), device=x.device),
        )  # fmt: skip

    px.random.seed(66)
    eager = draws(logits)
    px.random.seed(66)
    for one, other in zip(px.compile(draws)(logits), eager, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-6, atol=1e-6)


def test_choice() -> None:
    px.random.seed(67)
    x = px.arange(12).reshape(3, 4)
    assert px.random.choice(x, (2, 5), axis=1).shape == (3, 2, 5)
    assert sorted(px.random.choice(x, (4,), replace=False, axis=1)[0].tolist()) == [0, 1, 2, 3]
    assert px.random.choice(7).shape == () and px.random.choice(0, (0,)).shape == (0,)
    seen = np.bincount(px.random.choice(4, (20_000,), probs=px.tensor([1.0, 0.0, 2.0, 1.0])).numpy(), minlength=4)
    assert seen[1] == 0 and stats.chisquare(seen[[0, 2, 3]], [5000, 10_000, 5000]).pvalue > 1e-3


def test_choice_by_weight_without_replacement() -> None:
    """The first is drawn by weight, the second by the weights of those that are left."""
    px.random.seed(68)
    weights = np.array([1.0, 2.0, 0.0, 3.0])
    pairs = [tuple(px.random.choice(4, (2,), replace=False, probs=px.tensor(weights)).tolist()) for _ in range(3000)]
    assert all(a != b and 2 not in (a, b) for a, b in pairs)
    names = [(a, b) for a in (0, 1, 3) for b in (0, 1, 3) if a != b]
    wanted = [weights[a] / 6.0 * weights[b] / (6.0 - weights[a]) * len(pairs) for a, b in names]
    assert stats.chisquare([pairs.count(pair) for pair in names], wanted).pvalue > 1e-3


@pytest.mark.parametrize("backend", [NumPy(), Jax(), NumPy(float="f16"), Autodiff(Torch())], ids=repr)
def test_bernoulli_of_a_tensor(backend: Any) -> None:
    chances = np.array([[0.0], [0.125], [0.75], [1.0]])
    with px.random.stream(70):
        drawn = px.random.bernoulli((4, 20_000), px.tensor(chances, device=backend))
    assert drawn.kind is px.Bool and drawn.backend is backend
    for seen, p in zip(drawn.numpy().sum(1), chances[:, 0], strict=True):
        assert stats.binomtest(int(seen), 20_000, float(p)).pvalue > 1e-3
    with px.random.stream(70):
        assert np.array_equal(px.random.bernoulli((4, 20_000), px.tensor(chances)).numpy(), drawn.numpy())


def test_shuffle_and_likeness() -> None:
    px.random.seed(69)
    x = px.arange(2000).reshape(2, 1000)
    shuffled = px.random.shuffle(x, 1)
    assert shuffled.kind is px.Int and np.array_equal(shuffled.numpy()[1] - 1000, shuffled.numpy()[0])
    assert np.array_equal(np.sort(shuffled.numpy()[0]), np.arange(1000))
    u, n = px.random.uniform_like(x, 2.0, 3.0), px.random.normal_like(x, 5.0, 0.1)
    assert u.shape == n.shape == x.shape and u.kind is n.kind is px.Float
    assert u.min().item() >= 2.0 and u.max().item() <= 3.0 and abs(n.mean().item() - 5.0) < 0.02
