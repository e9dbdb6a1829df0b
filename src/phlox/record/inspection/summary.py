"""Summaries of a file and its tensors: format and size, totals, and statistics of elements."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from phlox.errors import RecordError
from phlox.record.dtypes import BLOCK, Array
from phlox.record.entry import LazyTensor, TensorEntry
from phlox.record.formats.reader import PathLike
from phlox.record.formats.registry import find, reader_of
from phlox.record.formats.sharded import ShardedReader
from phlox.record.io.compression import Compression, compression_of
from phlox.record.io.files import map_file
from phlox.record.io.source import open_source
from phlox.record.record import Record


@dataclass(frozen=True, slots=True)
class RecordFile:
    """A file, and the record in it."""

    path: Path
    """The path, with its suffix."""
    format: str
    compression: Compression | None
    size: int
    """The size on disk in bytes, including shards."""
    record: Record


def open_file(path: PathLike, *, max_bytes: int | None = None, verify: bool = True) -> RecordFile:
    """The record in a file, like `load`, without reading its tensors, and the format of the file.

    >>> import tempfile
    >>> from phlox.record import save
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = save(Record({"step": 7}), Path(folder) / "state.json.gz")
    ...     file = open_file(Path(folder) / "state")
    ...     file.path.name, file.format, file.compression, file.record["step"]
    ('state.json.gz', 'json', 'gzip', 7)
    """
    file = find(Path(path))
    source = open_source(file, max_bytes, verify)
    reader = reader_of(source, max_bytes)
    record = reader.decode(source)
    data = map_file(file)
    size = len(data)
    if isinstance(reader, ShardedReader):
        shards = set(msgspec.json.decode(source.data)["weight_map"].values())
        size += sum((file.parent / shard).stat().st_size for shard in shards)
    return RecordFile(file, reader.format, compression_of(data), size, record)


@dataclass(frozen=True, slots=True)
class Total:
    """The numbers of tensors, elements and bytes of one dtype."""

    tensors: int
    elements: int
    bytes: int


def totals(entries: Iterable[Any]) -> dict[str, Total]:
    """Short name of a dtype -> the `Total` of the entries with that dtype, the largest first.

    >>> import numpy as np
    >>> totals(Record({"weight": np.zeros((2, 3), np.float32), "step": 7}).tensors.values())
    {'f32': Total(tensors=1, elements=6, bytes=24)}
    """
    by_dtype: dict[str, Total] = {}
    for entry in entries:
        if isinstance(entry, TensorEntry):
            tensor = entry.tensor
            name, nbytes = tensor.stored_as
            so_far = by_dtype.get(name, Total(0, 0, 0))
            by_dtype[name] = Total(so_far.tensors + 1, so_far.elements + tensor.size, so_far.bytes + nbytes)
    return dict(sorted(by_dtype.items(), key=lambda item: -item[1].bytes))


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of the finite elements of a tensor; None if there are none."""

    min: float | int | bool | None
    max: float | int | bool | None
    mean: float | None
    non_finite: int
    """The number of infinite or NaN elements."""


def statistics(tensor: LazyTensor) -> Statistics:
    """Read `tensor` and compute its statistics in small blocks; the mean is computed in float64.

    >>> import numpy as np
    >>> statistics(LazyTensor.from_array(np.array([1.0, np.nan, 4.0], np.float16)))
    Statistics(min=1.0, max=4.0, mean=2.5, non_finite=1)
    """
    low: Any = None
    high: Any = None
    mean, count, odd = 0.0, 0, 0
    for stored in tensor.blocks():
        for start in range(0, stored.size, BLOCK):
            block, strange = _finite(stored[start : start + BLOCK])
            odd += strange
            if block.size:
                least, most = block.min().item(), block.max().item()
                low, high = (least, most) if low is None else (min(low, least), max(high, most))
                # The sum may overflow; the mean of means does not.
                count += block.size
                mean = mean * (1 - block.size / count) + _mean(block) * (block.size / count)
    return Statistics(low, high, mean if count else None, odd)


def _mean(block: Array) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        mean = float(np.mean(block, dtype=np.float64))
        return mean if math.isfinite(mean) else float(np.sum(block / block.size))


def _finite(block: Array) -> tuple[Array, int]:
    if block.dtype.kind in "biu":
        return block, 0
    with np.errstate(all="ignore"):  # signalling NaNs
        wide = block.astype(np.float64)
        finite = np.isfinite(wide)
    strange = block.size - int(np.count_nonzero(finite))
    return (wide[finite] if strange else wide), strange


@dataclass(frozen=True, slots=True)
class Damage:
    """A tensor that cannot be read, and why."""

    path: str
    reason: str


def damages(record: Record) -> list[Damage]:
    """Read every tensor, one at a time; lists those that are unreadable or fail their checksum."""
    damaged: list[Damage] = []
    for path, entry in record.tensors.items():
        try:
            entry.tensor.read()
        except RecordError as error:
            damaged.append(Damage(path, str(error)))
    return damaged
