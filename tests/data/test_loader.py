"""Loaders: batches that are functions of seed, epoch and number, whoever makes them and however many share them.

Serves: phlox/data/workers.py, phlox/data/maker.py
"""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Jax, NumPy, Torch
from phlox.data import ByLength, Loader, Pad, Weighted
from phlox.errors import DataError, DataWarning
from tests.data.transforms import Once, dying, failing, negated, noisy

X = np.arange(103 * 2, dtype=np.float32).reshape(103, 2)
Y = np.arange(103)


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before = threading.active_count()

    def is_left() -> bool:
        return threading.active_count() > before or bool(multiprocessing.active_children())

    yield
    if is_left():
        gc.collect()  # an iterator that nobody exhausted ends its threads and processes when it is collected
    deadline = time.monotonic() + 5.0
    while is_left() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_left()


def loader(**options: Any) -> Loader:
    chosen: dict[str, Any] = {"batch_size": 10, "shuffle": True, "seed": 7, "transform": [noisy, negated], **options}
    return Loader({"x": X, "y": Y}, **chosen)


def same(found: Any, expected: Any) -> None:
    found, expected = list(found), list(expected)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_an_epoch_has_every_row_once() -> None:
    batches = list(loader().epoch(3))
    assert [len(batch["y"]) for batch in batches] == [10] * 10 + [3] and len(loader()) == 11
    assert sorted(np.concatenate([batch["y"] for batch in batches])) == list(range(103))
    for batch in batches:
        np.testing.assert_array_equal(batch["row"], batch["y"])
        noise = -batch["x"] - X[batch["y"]]
        assert ((noise >= 0.0) & (noise < 1.0)).all()
    assert len(list(loader(drop_last=True))) == len(loader(drop_last=True)) == 10
    assert next(loader().epoch(4))["y"].tolist() != batches[0]["y"].tolist()
    assert next(loader(shuffle=False).epoch(4))["y"].tolist() == list(range(10))


WAYS: dict[str, dict[str, Any]] = {
    "one thread ahead": {"prefetch": 3},
    "two threads": {"workers": 2},
    "four threads": {"workers": 4, "prefetch": 1},
    "two processes": {"workers": 2, "worker_type": "process"},
}


@pytest.mark.parametrize("way", WAYS)
def test_batches_do_not_depend_on_who_makes_them(way: str) -> None:
    expected = [list(loader().epoch(epoch)) for epoch in (0, 5)]
    with loader(**WAYS[way]) as found:
        for batches, epoch in zip(expected, (0, 5), strict=True):
            same(found.epoch(epoch), batches)
        same(found.epoch(5, start=8), expected[1][8:])
    if WAYS[way].get("worker_type") != "process":
        same(loader(**WAYS[way]).epoch(5), expected[1])  # without a scope


@pytest.mark.parametrize("parts", [2, 3])
@pytest.mark.parametrize(
    "options", [{}, {"order": Weighted(1.0 + Y), "shuffle": False}, {"order": ByLength(Y % 10), "shuffle": False}]
)
def test_shards_are_parts_of_each_batch(parts: int, options: dict[str, Any]) -> None:
    whole = list(loader(**options).epoch(2))
    shards = [list(loader(**options).shard(part, parts).epoch(2)) for part in range(parts)]
    for number, batch in enumerate(whole):
        for name in batch:
            np.testing.assert_array_equal(batch[name], np.concatenate([shard[number][name] for shard in shards]))
    one = loader(drop_last=True, **options)
    nested = [one.shard(0, 2).shard(1, 2), one.shard(1, 4)] if parts == 2 else []
    for number in range(10 * bool(nested)):
        assert nested[0].rows(2, number).tolist() == nested[1].rows(2, number).tolist()


def test_a_for_goes_on_where_it_stood() -> None:
    expected = [batch["y"].tolist() for epoch in range(3) for batch in loader().epoch(epoch)]
    one = loader()
    found = [batch["y"].tolist() for _ in range(3) for batch in one]
    assert found == expected
    two, taken = loader(), list[Any]()
    for batch in two:
        taken.append(batch["y"].tolist())
        if len(taken) == 4:
            break
    state = two.state_dict()
    resumed = loader(workers=2)
    resumed.load_state_dict(state)
    taken += [batch["y"].tolist() for _ in range(3) for batch in resumed]
    assert taken == expected
    assert state == {**state, "epoch": 0, "batch": 4, "seed": 7, "batch_size": 10, "rows": 103, "order": "Shuffled"}


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"seed": 8}, "whose seed is 7, but here it is 8"),
        ({"batch_size": 5}, "whose batch_size is 10"),
        ({"drop_last": True}, "whose rows is 103, but here it is 100"),
        ({"shuffle": False}, "whose order is 'Shuffled', but here it is 'InOrder'"),
    ],
)
def test_a_position_of_other_batches_is_refused(other: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as error:
        loader(**other).load_state_dict(loader().state_dict())
    assert said in str(error.value)
    with pytest.raises(DataError, match="'batch'"):
        loader().load_state_dict({"epoch": 1})


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch()], ids=repr)
@pytest.mark.parametrize("way", ["workers", "none"])
def test_batches_on_a_device(backend: Any, way: str) -> None:
    on_device = Loader(
        {"x": X, "y": Y, "name": [str(y) for y in Y.tolist()]}, 50, workers=2 * (way == "workers"), device=backend
    )
    batches = list(on_device)
    assert isinstance(batches[0]["x"], px.Tensor) and batches[0]["x"].backend == backend
    np.testing.assert_array_equal(np.concatenate([batch["x"].numpy() for batch in batches]), X)
    assert batches[1]["y"].kind is px.Int and batches[1]["y"].numpy().tolist() == list(range(50, 100))
    assert batches[2]["name"].tolist() == ["100", "101", "102"]
    assert type(next(on_device.on_device(None).epoch())["x"]) is np.ndarray
    assert type(next(iter(Loader({"x": X}, 50).numbered(device=backend)))[1]["x"]) is px.Tensor


class Broken:
    """Rows 5 and 17 cannot be read."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, rows: Any) -> Any:
        for row in rows:
            if row in (5, 17):
                raise OSError(f"disk error at {row}")
        return {"x": np.asarray(rows)}


class AllBroken(Broken):
    def __getitem__(self, rows: Any) -> Any:
        raise OSError("gone")


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_that_cannot_be_read(workers: int) -> None:
    with pytest.raises(
        DataError, match="row 5 of the source cannot be read: OSError: disk error at 5; on_error='skip'"
    ):
        list(Loader(Broken(), 4, workers=workers))
    skipping = Loader(Broken(), 4, workers=workers, on_error="skip")
    with pytest.warns(DataWarning, match="row 5 .* left out"):
        batches = [batch["x"].tolist() for batch in skipping]
    assert batches == [[0, 1, 2, 3], [4, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15], [16, 18, 19]]
    assert [(row, error) for row, error in skipping.skipped] == [
        (5, "OSError: disk error at 5"),
        (17, "OSError: disk error at 17"),
    ]
    with (
        pytest.raises(DataError, match=r"no row of epoch 0 can be read; row 19: OSError: gone"),
        pytest.warns(DataWarning, match="row 0 .* left out"),
    ):
        list(Loader(AllBroken(), 4, workers=workers, on_error="skip"))


@pytest.mark.parametrize("way", WAYS)
def test_an_error_of_a_transform_comes_at_its_batch(way: str) -> None:
    batches = loader(shuffle=False, transform=failing, **WAYS[way]).epoch()
    assert [next(batches)["y"][0], next(batches)["y"][0]] == [0, 10]
    with pytest.raises(ZeroDivisionError, match="in a transform"):
        next(batches)


@pytest.mark.parametrize(("hangs", "said"), [(False, r"died \(exit code 3\)"), (True, "made nothing for 2 s")])
def test_a_process_that_dies_or_hangs_is_replaced(hangs: bool, said: str, tmp_path: Path) -> None:
    expected = [batch["y"].tolist() for batch in loader(shuffle=False, transform=None)]
    once = Once(tmp_path / "flag", hangs)
    with pytest.warns(DataWarning, match=f"{said}.* while it made batch 2 of epoch 0"):
        found = list(loader(shuffle=False, workers=1, worker_type="process", transform=once, timeout=2.0))
    assert [batch["y"].tolist() for batch in found] == expected


def test_a_batch_that_ends_every_process_is_an_error() -> None:
    with (
        pytest.raises(
            DataError, match=r"died \(exit code 3\) while it made batch 2 of epoch 0, and so did 2 before it"
        ),
        pytest.warns(DataWarning),
    ):
        list(loader(shuffle=False, workers=1, worker_type="process", transform=dying))


def test_a_thread_that_hangs_is_replaced() -> None:
    release, first = threading.Event(), [True]

    def waits(batch: Any) -> Any:
        if batch["y"][0] == 20 and first:
            first.clear()
            release.wait(30)
        return batch

    with pytest.warns(DataWarning, match="batch 2 of epoch 0 for 0.3 s"):
        found = [batch["y"][0] for batch in loader(shuffle=False, transform=waits, workers=2, timeout=0.3)]
    assert found == list(range(0, 103, 10))
    release.set()


def test_a_loop_that_is_left_ends_its_workers() -> None:
    for _ in loader(workers=2):
        break
    batches = loader(workers=2).epoch()
    next(batches)
    del batches


def test_what_a_process_cannot_be_sent() -> None:
    with pytest.raises(DataError, match="cannot be pickled.*functions of a module, or threads"):
        list(loader(transform=lambda batch: batch, workers=1, worker_type="process"))


def test_rows_of_different_lengths() -> None:
    rows = [np.arange(n) for n in (3, 1, 2)]
    with pytest.raises(DataError, match=r"row 1 of the batch has shape \(1,\).*collate=Pad"):
        list(Loader(rows, 3))
    batch, mask = next(Loader(rows, 3, collate=Pad(value=-1)).epoch())
    assert batch.tolist() == [[0, 1, 2], [0, -1, -1], [0, 1, -1]] and mask.sum() == 6
    doubled = next(Loader({"x": Y}, 3, collate=lambda rows: [row["x"] * 2 for row in rows]).epoch())
    assert doubled == [0, 2, 4]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "batch_size is 0; give a whole number of 1 or more"),
        ({"batch_size": 2.0}, "batch_size is 2.0"),
        ({"batch_size": True}, "batch_size is True"),
        ({"batch_size": 200, "drop_last": True}, "103 rows make no batch of 200"),
        ({"seed": -1}, "seed is -1"),
        ({"workers": -1}, "workers is -1"),
        ({"prefetch": -1}, "prefetch is -1"),
        ({"worker_type": "fork"}, "give 'thread' or 'process'"),
        ({"on_error": "ignore"}, "give 'raise' or 'skip'"),
        ({"timeout": 0.0}, "timeout is 0.0"),
        ({"order": Weighted(Y + 1.0)}, "shuffle=True and an order"),
        ({"order": "random", "shuffle": False}, "order is 'random'"),
        ({"order": Weighted([1.0]), "shuffle": False}, "1 weights for 103 rows"),
        ({"transform": 3}, "int"),
        ({"transform": [3]}, "transform holds 3"),
        ({"transform": lambda a, b, c: a}, "takes 3 arguments"),
        ({"collate": 3}, "collate is 3"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], said: str) -> None:
    with pytest.raises((DataError, TypeError)) as error:
        loader(**options)
    assert said in str(error.value)


def test_wrong_places() -> None:
    for call in (lambda: loader().epoch(0, 12), lambda: loader().epoch(-1), lambda: loader().rows(0, 11)):
        with pytest.raises(DataError):
            call()
    with pytest.raises(DataError, match="a batch of 3 rows has none for some of 4 processes"):
        loader().shard(0, 4)
    with pytest.raises(DataError, match="part is 2"):
        loader().shard(2, 2)


def test_no_array_of_all_rows_is_made() -> None:
    class Endless:
        def __len__(self) -> int:
            return 10**12

        def __getitem__(self, rows: Any) -> Any:
            return np.asarray(rows)

    one = Loader(Endless(), 256, shuffle=True)
    with warnings.catch_warnings():
        first, far = next(one.epoch(0)), next(one.epoch(0, start=10**9))
    assert len({*first.tolist(), *far.tolist()}) == 512


def test_a_part_of_one_number_or_another() -> None:
    loader = Loader(np.arange(23), 10, shuffle=True, seed=2)
    whole = list(loader.epoch(1))
    assert loader.part == (0, 1) and loader.shard(1, 2).part == (1, 2)
    third = loader.shard(1, 2).with_part(2, 5)  # of the whole, whatever it gave out before
    assert third.part == (2, 5)
    parts = [list(loader.with_part(part, 5).epoch(1)) for part in range(5)]
    for number, batch in enumerate(whole):
        assert np.array_equal(np.concatenate([part[number] for part in parts]), batch)
    assert [len(part[2]) for part in parts] == [0, 1, 0, 1, 1]
    with pytest.raises(DataError, match="part"):
        loader.with_part(5, 5)


def test_an_epoch_that_stops_before_its_end() -> None:
    loader = Loader(np.arange(50), 10, workers=1)
    assert [batch[0] for batch in loader.epoch(0, 1, 3)] == [10, 20]
    assert [batch[0] for batch in loader.epoch(0, 3, 99)] == [30, 40]
    assert list(loader.epoch(0, 2, 2)) == []
