"""Copies of records in host memory, so that a training may go on while they are written."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from phlox.backend.sharding import Shard
from phlox.errors import DistributedError
from phlox.host.thread_pool import parallel_map
from phlox.record import LazyTensor, Record, TensorEntry
from phlox.record.record import Entry

_WORTH = 1 << 23
"""The number of bytes above which a thread of its own copies them."""


def in_memory(record: Record) -> Record:
    """A record with its tensors copied to host memory, so that their sources may change."""
    sources = [record[path] for path in record]

    def copied(number: int) -> np.ndarray[Any, Any] | None:
        entry = sources[number]
        return np.array(entry.tensor.read()) if isinstance(entry, TensorEntry) else None

    # In several threads, because the training waits for the copy.
    sizes = [entry.tensor.nbytes if isinstance(entry, TensorEntry) else 0 for entry in sources]
    entries: dict[str, Entry] = {}
    for path, entry, array in zip(record, sources, parallel_map(copied, sizes, _WORTH), strict=True):
        if isinstance(entry, TensorEntry):
            entry = TensorEntry(LazyTensor.from_array(array, path), entry.id, entry.state)
        entries[path] = entry
    return Record(entries, record.metadata, aliases=record.aliases)


def in_parts(record: Record) -> Record:
    """As `in_memory`, but of tensors in shards only the shards that this process saves; these cannot be read."""
    entries: dict[str, Entry] = {}
    for path in record:
        entry = record[path]
        if isinstance(entry, TensorEntry) and entry.tensor.shards is not None:
            kept = [Shard(shard.index, partial(_same, np.array(shard.read()))) for shard in entry.tensor.shards()]
            entry = TensorEntry(_of_shards(entry.tensor, kept), entry.id, entry.state)
        elif isinstance(entry, TensorEntry):
            entry = TensorEntry(LazyTensor.from_array(np.array(entry.tensor.read()), path), entry.id, entry.state)
        entries[path] = entry
    return Record(entries, record.metadata, aliases=record.aliases)


def _of_shards(tensor: LazyTensor, shards: list[Shard]) -> LazyTensor:
    def read() -> Any:
        raise DistributedError(f"{tensor.path}: only the parts that this process saves were kept")

    return LazyTensor.from_function(tensor.shape, tensor.dtype, read, tensor.path, shards=lambda: shards)


def _same(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array
