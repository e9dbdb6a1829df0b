"""The files that one process writes for a record in shards: their parts, and their bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from phlox.backend.sharding import Index
from phlox.host.thread_pool import parallel_map
from phlox.record import LazyTensor, Record
from phlox.record.dtypes import SHORT_NAMES, Array
from phlox.record.formats.assembled import Part, text_of
from phlox.record.formats.parts import BLOCK
from phlox.record.io.sink import Sink
from phlox.record.limits import check_json

LARGEST = 1 << 32
"""The bytes after which a process begins another file."""
_ALIGNMENT = 64
_SHARE = 1 << 20
_ITEMSIZES = (8, 4, 2, 1)


class Piece(NamedTuple):
    """A part of the tensor at `path` that this process writes."""

    path: str
    region: Index
    tensor: LazyTensor
    """Its values."""

    @property
    def name(self) -> str:
        """Its name in a file of safetensors."""
        return f"{self.path}@{text_of(self.region)[1:-1]}"


def pieces_of(record: Record, rank: int, size: int) -> list[Piece]:
    """The pieces that process `rank` of `size` writes: its shards, and its share of the tensors that are not sharded.

    The latter are distributed by size, in the same way in all processes.
    """
    pieces: list[Piece] = []
    unsharded: list[tuple[str, LazyTensor]] = []
    for path, entry in record.tensors.items():
        tensor = entry.tensor
        if not tensor.size:
            continue
        if tensor.shards is None:
            unsharded.append((path, tensor))
            continue
        for shard in tensor.shards():
            shape = tuple([axis_slice.stop - axis_slice.start for axis_slice in shard.index])
            if math.prod(shape):
                values = LazyTensor.from_function(shape, tensor.dtype, shard.read, path, tensor.recast)
                pieces.append(Piece(path, shard.index, values))
    loads = [0] * size
    for path, tensor in sorted(unsharded, key=lambda item: -item[1].nbytes):
        least = loads.index(min(loads))
        loads[least] += tensor.nbytes
        if least == rank:
            pieces.append(Piece(path, tuple([slice(0, length) for length in tensor.shape]), tensor))
    # Safetensors allows no gaps, so wide elements come first: then all are aligned.
    return sorted(pieces, key=lambda piece: (_ITEMSIZES.index(piece.tensor.dtype.itemsize), piece.name))


def copied(pieces: list[Piece]) -> list[Piece]:
    """The pieces with copies of their values, which no training step writes to or releases."""

    def copy(i: int) -> Piece:
        path, region, tensor = pieces[i]
        array = tensor.read()
        if not (tensor.is_cast and array.flags.owndata):
            array = np.array(array, order="C", copy=True)
        return Piece(path, region, LazyTensor.from_array(array, path))

    return parallel_map(copy, [piece.tensor.nbytes for piece in pieces], _SHARE)


def files_of(pieces: list[Piece], stem: str) -> dict[str, list[Piece]]:
    """The pieces by the name of their file; no file is larger than `LARGEST`, except one with a single piece."""
    files: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        if not files or piece.tensor.nbytes > room:
            files.append([])
            room = LARGEST
        files[-1].append(piece)
        room -= piece.tensor.nbytes
    if len(files) < 2:
        return {f"{stem}.safetensors": file for file in files}
    return {f"{stem}-{number}.safetensors": file for number, file in enumerate(files)}


def header_of(pieces: list[Piece]) -> bytes:
    """The beginning of a file of safetensors with these pieces, up to the first element."""
    header: dict[str, Any] = {"__metadata__": {"format": "phlox parts"}}
    end = 0
    for piece in pieces:
        start, end = end, end + piece.tensor.nbytes
        header[piece.name] = {
            "dtype": SHORT_NAMES[piece.tensor.dtype].upper(),
            "shape": list(piece.tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    check_json(text)
    return len(text).to_bytes(8, "little") + text


def write_file(name: str, pieces: list[Piece], sink: Sink) -> list[tuple[str, Part]]:
    """Write a safetensors file; returns the position of each part, with its checksums."""
    sink.write(header_of(pieces))
    offset = sink.position
    counts = [-(-piece.tensor.nbytes // BLOCK) for piece in pieces]
    blocks = [(block, 0) for piece in pieces for block in _blocks(piece.tensor)]
    sums = iter(sink.tensors(blocks))
    parts: list[tuple[str, Part]] = []
    for piece, count in zip(pieces, counts, strict=True):
        parts.append((piece.path, Part(piece.region, name, offset, tuple([next(sums) for _ in range(count)]))))
        offset += piece.tensor.nbytes
    return parts


def _blocks(tensor: LazyTensor) -> Iterator[LazyTensor]:
    """The elements in order, in tensors of `BLOCK` bytes; each is read and cast when it is written."""
    size = BLOCK // tensor.dtype.itemsize
    count = -(-tensor.size // size)
    shared_read = _SharedRead(tensor.stored, count)
    for start in range(0, tensor.size, size):
        stop = min(start + size, tensor.size)
        read = partial(shared_read.part, start, stop)
        yield LazyTensor(
            (stop - start,), tensor.dtype, tensor.source_dtype, read, tensor.path, tensor.recast, tensor.underflow
        )


class _SharedRead:
    """An array that is read for its first part, and released with the last one."""

    def __init__(self, read: Callable[[], Array], count: int) -> None:
        self._read = read
        self._reads_left = count
        self._array: Array | None = None
        self._lock = Lock()

    def part(self, start: int, stop: int) -> Array:
        with self._lock:
            array = self._read() if self._array is None else self._array
            self._reads_left -= 1
            self._array = array if self._reads_left > 0 else None
        return array[start:stop]
