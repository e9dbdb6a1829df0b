"""Orders of rows: permutations by index, sampling by weight, rows of similar length together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from phlox.data import ByLength, ClassBalanced, Weighted
from phlox.data.order import key_of, permute, uniform_at
from phlox.errors import DataError


@pytest.mark.parametrize("n", [1, 2, 7, 4096, 4097, 4099, 10_000, 65_536, 100_003])
def test_a_permutation_has_every_entry_once(n: int) -> None:
    found = permute(np.arange(n), n, (3, n))
    np.testing.assert_array_equal(np.sort(found), np.arange(n))


@pytest.mark.parametrize("n", [1000, 10_000, 10**9, 10**12])
def test_an_entry_does_not_depend_on_what_else_is_asked_for(n: int) -> None:
    positions = np.array([n - 1, 0, 17, n // 2, 17])
    together = permute(positions, n, (1, 2))
    assert together.dtype == np.int64 and ((together >= 0) & (together < n)).all()
    assert [int(permute(positions[i : i + 1], n, (1, 2))[0]) for i in range(5)] == together.tolist()
    assert len(set(together.tolist())) == 4


@pytest.mark.parametrize(("n", "keys"), [(64, 400), (5000, 150)])
def test_permutations_look_random(n: int, keys: int) -> None:
    """Where an entry goes, and how neighbours lie, over many keys: by chi-squared and by correlation."""
    found = np.stack([permute(np.arange(n), n, key_of(0, epoch)) for epoch in range(keys)])
    for position in (0, 1, n // 2, n - 1):
        counts = np.histogram(found[:, position], bins=8, range=(0, n))[0]
        assert stats.chisquare(counts).pvalue > 1e-4, (position, counts)
    steps = (found[:, 1:] - found[:, :-1]) % n
    counts = np.histogram(steps, bins=16, range=(0, n))[0]
    assert stats.chisquare(counts).pvalue > 1e-4 or n == 64, counts  # of few entries, a step of 0 cannot be
    correlation = [np.corrcoef(row, np.arange(n))[0, 1] for row in found]
    assert abs(np.mean(correlation)) < 5 / np.sqrt(keys * n) and abs(np.std(correlation) * np.sqrt(n) - 1) < 0.25


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [permute(np.arange(5000), 5000, key_of(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)]
    for i, one in enumerate(orders):
        for other in orders[i + 1 :]:
            assert (one == other).sum() < 20


def test_uniform_numbers_by_position() -> None:
    for key in [(0, 0), (5, 7)]:
        numbers = uniform_at(np.arange(100_000), key)
        assert stats.kstest(numbers, "uniform").pvalue > 1e-4
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.02
        assert abs(np.corrcoef(numbers, uniform_at(np.arange(100_000), key, 1))[0, 1]) < 0.02


def drawn(order: Any, n: int, **options: Any) -> Any:
    length = order.length(n)
    return order.rows(np.arange(length), n, **{"seed": 0, "epoch": 0, "batch_size": 10, **options})


def test_rows_are_drawn_by_weight() -> None:
    weights = np.array([0.0, 1.0, 2.0, 5.0])
    rows = drawn(Weighted(weights, num_samples=20_000), 4)
    counts = np.bincount(rows, minlength=4)
    assert counts[0] == 0 and stats.chisquare(counts[1:], 20_000 * weights[1:] / 8).pvalue > 1e-4
    assert Weighted(weights).length(4) == 4
    assert (rows != drawn(Weighted(weights, num_samples=20_000), 4, epoch=1)).any()


def test_classes_are_drawn_alike() -> None:
    labels = np.repeat([3, 5, 9], [900, 90, 10])
    found = labels[drawn(ClassBalanced(labels, 9000), 1000)]
    assert stats.chisquare([(found == label).sum() for label in (3, 5, 9)]).pvalue > 1e-4


def test_rows_of_similar_length_share_a_batch() -> None:
    lengths = np.random.default_rng(0).integers(1, 1000, 1003)
    order = ByLength(lengths, batches=20)
    rows = drawn(order, 1003)
    np.testing.assert_array_equal(np.sort(rows), np.arange(1003))
    spread = [np.ptp(lengths[rows[start : start + 10]]) for start in range(0, 1000, 10)]
    assert np.mean(spread) < 100  # of a thousand
    assert rows.tolist() != drawn(order, 1003, epoch=1).tolist()
    parts = [
        order.rows(np.arange(start, start + 17), 1003, seed=0, epoch=0, batch_size=10) for start in range(0, 1003, 17)
    ]
    np.testing.assert_array_equal(np.concatenate(parts[:-1]), rows[: 17 * (len(parts) - 1)])
    still = ByLength(lengths, batches=200, shuffle=False)
    assert (np.diff(lengths[drawn(still, 1003)]) >= 0).all()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Weighted([1.0, -2.0]), "weight 1 is -2.0; give one finite number of at least 0"),
        (lambda: Weighted([1.0, float("nan")]), "weight 1 is nan"),
        (lambda: Weighted([0.0, 0.0]), "all weights are zero"),
        (lambda: Weighted([]), "all weights are zero"),
        (lambda: Weighted(np.array([[1.0]])), "its shape is (1, 1)"),
        (lambda: Weighted([1.0], 0), "num_samples is 0"),
        (lambda: Weighted([1.0, 1.0]).length(3), "2 weights for 3 rows"),
        (lambda: ByLength([1, 2]).length(3), "2 lengths for 3 rows"),
        (lambda: ByLength([1, 2], batches=0), "batches is 0"),
    ],
)
def test_what_cannot_be_an_order(make: Any, said: str) -> None:
    with pytest.raises(DataError) as error:
        make()
    assert said in str(error.value)
