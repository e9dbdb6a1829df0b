"""Sums that lose nothing, beside `math.fsum`."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Jax, NumPy, Torch
from phlox.metrics import Mean, Sum, bin_totals, total, totals
from phlox.metrics.sums import add, on_host, products

RNG = np.random.default_rng(0)
ENGINES = [NumPy(), Torch(), NumPy(float="f64")]


def spread(n: int) -> Any:
    """Numbers of both signs and six orders of magnitude."""
    return (RNG.normal(size=n) * 10.0 ** RNG.uniform(-3, 3, n)).astype(np.float32)


@pytest.mark.every(3)
@pytest.mark.parametrize("backend", ENGINES, ids=repr)
@pytest.mark.parametrize("n", [1, 100, 5001, 70001])
def test_a_batch_is_added_up_exactly(backend: Any, n: int) -> None:
    x, w, bins = spread(n), RNG.uniform(0, 9, n).astype(np.float32), RNG.integers(0, 7, n)
    tx, tw, places = (px.tensor(part, device=backend) for part in (x, w, bins))
    wide, scale = x.astype(np.float64), math.fsum(np.abs(x))
    assert abs(on_host(total(tx)) - math.fsum(wide)) <= 1e-14 * scale
    assert abs(on_host(total(tx, tw)) - math.fsum(wide * w)) <= 1e-14 * 9 * scale
    squares = on_host(totals((tx, tx), (tx, tw), weights=tw))
    np.testing.assert_allclose(squares[0], math.fsum(wide * wide * w), rtol=1e-13)
    assert abs(squares[1] - math.fsum(wide * w * w)) <= 1e-14 * 81 * scale
    np.testing.assert_allclose(on_host(bin_totals(places, 7, tw)), np.bincount(bins, w.astype(float), 7), rtol=1e-13)
    assert (on_host(bin_totals(places, 7)) == np.bincount(bins, minlength=7)).all()
    assert on_host(total(tx > 0.0, tw)) == pytest.approx(math.fsum(w[x > 0]), rel=1e-14)


@pytest.mark.parametrize("seed", range(20))
def test_what_cancels_leaves_what_is_small(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=5001) * 10.0 ** rng.uniform(-3, 3, 5001)).astype(np.float32)
    x[0] -= np.float32(math.fsum(x) + 100.0)
    assert abs(on_host(total(px.tensor(x))) - math.fsum(x)) <= 1e-15 * math.fsum(np.abs(x))


def test_engines_agree_to_the_bit() -> None:
    x = spread(1000)
    found = [on_host(total(px.tensor(x, device=backend))) for backend in (NumPy(), Torch(), Jax())]
    assert found[0] == found[1] == found[2]


def test_large_integers_are_exact() -> None:
    numbers = np.array([2**31 - 1, 2**31 - 2, -(2**31) + 1, 16777217, 5], np.int64)
    assert on_host(total(px.tensor(numbers))) == numbers.sum()
    assert on_host(total(px.tensor(numbers), px.tensor(np.array([1.0, 3.0, 0.0, 1.0, 0.5])))) == (
        2**31 - 1 + 3 * (2**31 - 2) + 16777217 + 2.5
    )


def test_extremes() -> None:
    assert on_host(total(px.tensor([3e38, -3e38, 1.0]))) in (0.0, 1.0)  # beside 3e38, 1 is beyond 50 bits
    assert on_host(total(px.tensor([1e-30, 2e-30]))) == pytest.approx(3e-30, rel=1e-6)
    assert on_host(total(px.zeros((4,)))) == 0.0
    assert on_host(total(px.zeros((0,)))) == 0.0
    assert np.isnan(on_host(total(px.tensor([1.0, math.nan]))))
    assert np.isnan(on_host(total(px.tensor([1.0, math.inf]))))
    columns = on_host(total(px.tensor([[1.0, math.nan], [2.0, 1.0]])))
    assert columns[0] == 3.0 and np.isnan(columns[1])
    masked = total(px.tensor([1.0, math.nan]), px.tensor([True, False]))
    weighed = total(px.tensor([1.0, math.nan]), px.tensor([2.0, 0.0]))
    assert on_host(masked) == 1.0 and on_host(weighed) == 2.0


@pytest.mark.parametrize("element", ["f32", "f64"])
def test_products_are_not_rounded(element: Any) -> None:
    """Factors of all digits and just above a power of two, beside fractions of integers."""
    dtype, digits = (np.float32, 24) if element == "f32" else (np.float64, 53)
    half = 2.0 ** -(digits // 2)
    values = [1.0 + half, 1.0 + 2.0 * half, 2.0 - 2.0 * half, 1.0 + 2.0 ** (1 - digits), 2.0 - 2.0 ** (1 - digits)]
    x = np.array([*values, *RNG.uniform(1.0, 2.0, 50)], dtype)
    for left, right in ((x, x), (x, x[::-1].copy())):
        tensors = [px.tensor(part, device=NumPy(float=element)) for part in (left, right)]
        parts = [part.numpy().tolist() for part in products(*tensors)]
        for terms, a, b in zip(zip(*parts, strict=True), left.tolist(), right.tolist(), strict=True):
            assert sum(map(Fraction, terms)) == Fraction(a) * Fraction(b)


def test_as_many_of_the_largest_numbers_as_fit_a_batch() -> None:
    """The limbs do not overflow: the sum is an infinity of the right sign, or what is left where it cancels."""
    largest = np.full(2**14, np.finfo(np.float32).max)
    with np.errstate(over="ignore"):
        for sign in (1.0, -1.0):
            assert on_host(total(px.tensor(largest * sign))) == sign * math.inf
    signs = np.where(np.arange(2**14) % 2, 1.0, -1.0)
    assert on_host(total(px.tensor(np.append((largest * signs)[:-1], 0.0)))) == -float(largest[0])


def test_a_million_batches_in_one_program() -> None:
    """On XLA, which undoes neither the two-sum nor the splitting of products."""
    n = 1_000_000
    x = (RNG.normal(size=n) + 3.0).astype(np.float32)
    device = Jax().device()

    def step(so_far: Sum, batch: px.Tensor) -> tuple[Sum, None]:
        return add(so_far, Sum(batch, batch * 0.0)), None

    run = px.compile(lambda start, xs: px.scan(step, start, xs)[0])
    zero = px.zeros((), device=device)
    found = on_host(run(Sum(zero, zero), px.tensor(x, device=device)))
    assert abs(found / math.fsum(x) - 1.0) < 1e-12
    assert abs(float(np.cumsum(x, dtype=np.float32)[-1]) / math.fsum(x) - 1.0) > 1e-6  # what f32 makes of it


@pytest.mark.parametrize("backend", [Jax(), Torch()], ids=repr)
def test_a_compiled_update_is_the_eager_one_to_the_bit(backend: Any) -> None:
    """With Inductor's own code, where a C++ compiler is."""
    mean, device = Mean(), backend.device()
    update = px.compile(lambda state, x: mean.update(state, x))
    compiled, eager = mean.init(device), mean.init(device if backend.name == "torch" else None)
    for _ in range(200):
        x = px.tensor(spread(16), device=device)
        compiled = update(compiled, x)
        if backend.name == "torch":
            eager = mean.update(eager, x)
        else:
            eager = mean.update(eager, px.tensor(x.numpy()))
    assert update.traces == 1
    assert mean.compute(compiled) == mean.compute(eager)
    assert (compiled["moments"].error.numpy() == eager["moments"].error.numpy()).all()
