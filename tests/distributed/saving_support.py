"""What the tests of saving in shards share: processes that are threads, and records that are cut over them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from phlox.backend.sharding import Index, Shard
from phlox.backend.store import OwnStore
from phlox.distributed.checkpoints.savers import Group
from phlox.errors import DistributedError
from phlox.record import LazyTensor, Record, TensorEntry

T = TypeVar("T")


class Board(OwnStore):
    """A store in memory, on which threads wait for each other."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[str] = set()
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes, reads: int | None = None) -> None:
        with self._changed:
            assert key not in self._told, f"{key} is told twice"
            self._told.add(key)
            super().set(key, value, reads)
            self._changed.notify_all()

    def get(self, key: str, timeout: float | None = None, rank: int | None = None) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: self.peek(key) is not None, timeout):
                raise DistributedError(f"nothing came from process {rank} in {timeout} s")
            return super().get(key, timeout, rank)

    @property
    def is_empty(self) -> bool:
        """Has all been read that was told?"""
        return not self._values


def groups(size: int, run: str = "", timeout: float = 20.0) -> list[Group]:
    board = Board()
    return [Group(rank, size, run, board, timeout) for rank in range(size)]


def together(members: list[Group], work: Callable[[Group], T]) -> list[T | BaseException]:
    """What `work` gives for each process, or raises, all at the same time."""
    results: list[Any] = [None] * len(members)

    def run(group: Group) -> None:
        try:
            results[group.rank] = work(group)
        except BaseException as error:
            results[group.rank] = error

    threads = [threading.Thread(target=run, args=(group,)) for group in members]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive(), "a process waits for ever"
    return results


def sharded(array: np.ndarray, rank: int, cuts: Mapping[int, list[Index]], path: str = "tensor") -> TensorEntry:
    """A tensor whose parts are given out: rank -> the parts that this process saves."""
    whole = LazyTensor.from_array(array, path)

    def shards() -> list[Shard]:
        return [Shard(index, lambda index=index: array[index]) for index in cuts.get(rank, [])]

    def read() -> np.ndarray:
        raise AssertionError("the whole is nowhere")

    return TensorEntry(LazyTensor(whole.shape, whole.dtype, whole.dtype, read, path, shards=shards))


def in_rows(array: np.ndarray, size: int) -> dict[int, list[Index]]:
    """Rows for each process."""
    each = -(-len(array) // size)
    rest = [slice(0, length) for length in array.shape[1:]]
    return {
        rank: [(slice(rank * each, min(len(array), (rank + 1) * each)), *rest)]
        for rank in range(size)
        if rank * each < len(array)
    }


def in_tiles(array: np.ndarray, rows: int, columns: int) -> dict[int, list[Index]]:
    """Tiles of a matrix, one for each process."""
    high, wide = array.shape[0] // rows, array.shape[1] // columns
    return {
        i * columns + j: [(slice(i * high, (i + 1) * high), slice(j * wide, (j + 1) * wide))]
        for i in range(rows)
        for j in range(columns)
    }


ARRAYS: dict[str, np.ndarray] = {
    "layers.0.weight": np.arange(96, dtype=np.float32).reshape(8, 12) / 7,
    "layers.1.weight": np.arange(48, dtype=np.float64).reshape(4, 12) / 3,
    "embedding": np.arange(60, dtype=np.int32).reshape(10, 3, 2),
    "bias": np.array([0.5, -0.0, np.inf, np.nan], np.float16),
    "mask": np.array([[True], [False]]),
    "count": np.array(7, np.int64),
    "empty": np.zeros((0, 3), np.float32),
}
VALUES: dict[str, Any] = {"step": 90, "settings": {"lr": 0.1, "best": float("nan"), "names": ["é", None]}}


def record_of_rank(rank: int, size: int = 4) -> Record:
    """A record with tensors in rows, in tiles, and whole."""
    entries: dict[str, Any] = dict(ARRAYS)
    first, second = ARRAYS["layers.0.weight"], ARRAYS["embedding"]
    tiles = in_tiles(first, 2, size // 2) if size > 1 else in_rows(first, 1)
    entries["layers.0.weight"] = sharded(first, rank, tiles, "layers.0.weight")
    entries["embedding"] = sharded(second, rank, in_rows(second, size), "embedding")
    entries["bias"] = TensorEntry(LazyTensor.from_array(ARRAYS["bias"]), f"id-{rank}")
    return Record({**entries, **VALUES}, {"module": "Model", "kind": "ü"}, aliases={"tied": "layers.0.weight"})


def whole_record(run: str | None = "") -> Record:
    """What all processes together save; the id is one that they have in common, or that of a process alone."""
    id = "id-0" if run is None else hashlib.sha256(f"{run}\0bias".encode()).hexdigest()[:32]
    entries: dict[str, Any] = {**ARRAYS, "bias": TensorEntry(LazyTensor.from_array(ARRAYS["bias"]), id)}
    return Record({**entries, **VALUES}, {"module": "Model", "kind": "ü"}, aliases={"tied": "layers.0.weight"})
