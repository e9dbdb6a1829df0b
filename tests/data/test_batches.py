from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phlox.backend.threefry.generator import random_permutation
from phlox.data import Batches
from phlox.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore:Batches is deprecated:DeprecationWarning")


def rows_of(batches: Batches, epoch: int, start: int = 0) -> list[list[int]]:
    return [rows.tolist() for rows, *_ in batches.epoch(epoch, start)]


def test_in_order_all_rows_are_kept() -> None:
    images, labels = np.arange(10.0).reshape(5, 2), np.arange(5)
    batches = Batches(images, labels, batch_size=2)
    got = list(batches.epoch())
    assert len(batches) == len(got) == 3
    np.testing.assert_array_equal(np.concatenate([x for x, _ in got]), images)
    assert [y.tolist() for _, y in got] == [[0, 1], [2, 3], [4]]


def test_in_order_batches_are_views_and_all_epochs_alike() -> None:
    rows = np.arange(6)
    batches = Batches(rows, batch_size=2)
    (first, *_), *_ = batches.epoch(0)
    assert np.shares_memory(first, rows)
    assert rows_of(batches, 0) == rows_of(batches, 9)


@pytest.mark.parametrize(("shuffle", "drop_last", "count"), [
    (False, None, 3), (True, None, 2), (False, True, 2), (True, False, 3),
])  # fmt: skip
def test_the_last_partial_batch(shuffle: bool, drop_last: bool | None, count: int) -> None:
    batches = Batches(np.arange(5), batch_size=2, shuffle=shuffle, drop_last=drop_last)
    assert len(batches) == len(rows_of(batches, 0)) == count


@given(
    num_rows=st.integers(1, 50),
    batch_size=st.integers(1, 60),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**32 - 2),
    data=st.data(),
)
def test_a_shuffled_epoch_gives_each_row_once_and_resumes_anywhere(
    num_rows: int, batch_size: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    batches = Batches(np.arange(num_rows), batch_size=batch_size, shuffle=True, seed=seed, drop_last=False)
    whole = rows_of(batches, epoch)
    assert sorted(row for batch in whole for row in batch) == list(range(num_rows))
    assert all(len(batch) == batch_size for batch in whole[:-1])
    start = data.draw(st.integers(0, len(batches)))
    again = Batches(np.arange(num_rows), batch_size=batch_size, shuffle=True, seed=seed, drop_last=False)
    assert rows_of(again, epoch, start) == whole[start:]


def test_arrays_stay_together() -> None:
    images = np.arange(40).reshape(20, 2)
    for x, y in Batches(images, images.sum(axis=1), batch_size=3, shuffle=True, seed=5).epoch(2):
        np.testing.assert_array_equal(x.sum(axis=1), y)


def test_seeds_and_epochs_give_orders_of_their_own() -> None:
    rows = np.arange(100)
    orders = {
        tuple(rows_of(Batches(rows, batch_size=100, shuffle=True, seed=seed), epoch)[0])
        for seed in (0, 1, 2**32, 2**32 + 1)
        for epoch in range(5)
    }
    assert len(orders) == 20
    assert tuple(range(100)) not in orders


def test_the_order_is_not_that_of_another_draw_with_the_same_seed() -> None:
    order = rows_of(Batches(np.arange(100), batch_size=100, shuffle=True, seed=7), 3)[0]
    assert order != random_permutation(np.array([0, 7, 3], np.uint32), 100).tolist()


def test_the_order_does_not_depend_on_numpys_generator() -> None:
    batches = Batches(np.arange(50), batch_size=50, shuffle=True)
    np.random.seed(1)  # noqa: NPY002
    first = rows_of(batches, 0)
    np.random.seed(2)  # noqa: NPY002
    assert rows_of(batches, 0) == first


def test_each_place_is_equally_likely() -> None:
    # 5 rows, 4000 epochs: each row is expected 800 times in first place, standard deviation 25.
    batches = Batches(np.arange(5), batch_size=5, shuffle=True, seed=3)
    firsts = np.bincount([rows_of(batches, epoch)[0][0] for epoch in range(4000)], minlength=5)
    assert np.abs(firsts - 800).max() < 5 * 25.3


@pytest.mark.parametrize("arrays", [(), (np.arange(3), np.arange(4)), (np.float32(1.0),)])
def test_arrays_that_do_not_fit_are_refused(arrays: tuple[Any, ...]) -> None:
    with pytest.raises(DataError, match="same length"):
        Batches(*arrays, batch_size=1)


@pytest.mark.parametrize(("options", "message"), [
    ({"batch_size": 0}, "batch_size is 0"),
    ({"batch_size": 1, "seed": -1}, "seed is -1"),
    ({"batch_size": 1, "seed": 2**64}, "seed is 18446744073709551616"),
    ({"batch_size": 5, "shuffle": True}, "4 rows do not fill a batch of 5; give more rows"),
])  # fmt: skip
def test_numbers_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Batches(np.arange(4), **options)


def test_no_rows_are_refused() -> None:
    with pytest.raises(DataError, match="0 rows do not fill a batch"):
        Batches(np.zeros((0, 3)), batch_size=2)


@pytest.mark.parametrize(("epoch", "start"), [(-1, 0), (2**32 - 1, 0), (0, -1), (0, 3)])
def test_a_position_out_of_range_is_refused_at_once(epoch: int, start: int) -> None:
    batches = Batches(np.arange(4), batch_size=2)
    with pytest.raises(DataError, match="epoch is|start is"):
        batches.epoch(epoch, start)
