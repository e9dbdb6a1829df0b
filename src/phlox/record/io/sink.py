"""`Sink`: the output of a format: bytes, and tensors as raw little-endian elements."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from threading import Lock
from typing import IO

from phlox.host.thread_pool import parallel_for, parallel_map
from phlox.record.dtypes import Array, element_bytes
from phlox.record.entry import LARGE, LazyTensor
from phlox.record.io.crc32 import crc32, of_parts
from phlox.record.io.files import CALL, EagerFile

_SHARE = 1 << 20
"""Minimum number of bytes, or of elements of one tensor, for a thread."""
_THREADS = 2
"""Maximum number of threads, each with a tensor or a part of one; more would wait, since writes are serialised."""


class Sink:
    """The output of a format, for bytes and for tensors as raw little-endian elements.

    Args:
        stream: the stream to write to.
        can_patch: whether the stream can seek back, for `patch`; a compressed one cannot.
    """

    __slots__ = ("_raw", "_stream", "can_patch", "position")

    def __init__(self, stream: IO[bytes], *, can_patch: bool = False) -> None:
        self._stream = stream
        raw = getattr(stream, "raw", None)
        self._raw = raw if isinstance(raw, EagerFile) and hasattr(os, "pwrite") else None
        self.can_patch = can_patch
        self.position = 0
        """The number of bytes written so far."""

    def write(self, data: bytes | memoryview) -> None:
        """Write all of `data`."""
        self._stream.write(data)
        self.position += len(data)

    def tensor(self, tensor: LazyTensor, checksum: int = 0) -> int:
        """Read `tensor` and write its elements in order, cast in small blocks.

        Returns the CRC-32 of the bytes written, continued from `checksum`.
        """
        return self.tensors([(tensor, checksum)])[0]

    def tensors(self, tensors: Iterable[tuple[LazyTensor, int]]) -> list[int]:
        """`tensor` for each pair (tensor, checksum), consecutive in the file, in parallel on all cores."""
        if self._raw is not None:
            return self._write_in_parallel(list(tensors), self._raw)
        sums: list[int] = []
        for tensor, checksum in tensors:
            for data in self.blocks(tensor):
                checksum = crc32(data, checksum)
                self.write(data)
            sums.append(checksum)
        return sums

    def blocks(self, tensor: LazyTensor) -> Iterator[memoryview]:
        """The bytes of the elements in order, in small blocks if the whole is not needed."""
        for block in tensor.blocks():
            data = element_bytes(block)
            for start in range(0, len(data), CALL):
                yield data[start : start + CALL]

    def patch(self, position: int, data: bytes) -> None:
        """Overwrite bytes written at `position` with `data`."""
        self._stream.seek(position - self.position, 1)
        self._stream.write(data)
        self._stream.seek(self.position - position - len(data), 1)

    def _write_in_parallel(self, tensors: list[tuple[LazyTensor, int]], raw: EagerFile) -> list[int]:
        self._stream.flush()
        start = self._stream.tell()
        positions = list(itertools.accumulate((tensor.nbytes for tensor, _ in tensors), initial=start))
        pieces = _Pieces(raw, start, positions[-1])

        def write(i: int) -> int:
            tensor, checksum = tensors[i]
            source, parts = tensor.stored(), dict[int, tuple[int, int]]()

            def work(first: int, last: int) -> None:
                result = _write_part(tensor, source, slice(first, last), pieces, positions[i], 0 if first else checksum)
                parts[first] = (last - first) * tensor.dtype.itemsize, result

            parallel_for(work, source.size, _SHARE, _THREADS)
            return of_parts(parts)

        sizes = [max(tensor.nbytes, tensor.size * tensor.source_dtype.itemsize) for tensor, _ in tensors]
        # In file order, so that shared pieces are completed early.
        sums = parallel_map(write, sizes, _SHARE, _THREADS, large=LARGE, in_order=True)
        self._stream.seek(positions[-1])  # past the bytes that were written in parallel
        self.position += positions[-1] - start
        return sums


class _Pieces:
    """A part of a file, in pieces of `CALL` bytes, each of which the system should keep in one folio.

    The system does so only for bytes of one call. So if several writes share a piece, the first one writes all of it.
    """

    def __init__(self, raw: EagerFile, start: int, stop: int) -> None:
        self._raw, self._start, self._stop = raw, start, stop
        self._missing: dict[int, int] = {}
        """For each shared piece that was started: the number of bytes still missing."""
        self._lock = Lock()

    def write_at(self, data: memoryview, position: int) -> None:
        """Write all of `data` at `position`; thread-safe."""
        while len(data):
            number, at = divmod(position, CALL)
            part = data[: CALL - at]
            start, stop = max(number * CALL, self._start), min((number + 1) * CALL, self._stop)
            if len(part) == stop - start:
                self._raw.write_at(part, position)
            else:
                self._write_share(part, position, number, start, stop)
            data, position = data[len(part) :], position + len(part)

    def _write_share(self, data: memoryview, position: int, number: int, start: int, stop: int) -> None:
        with self._lock:
            is_begun = number in self._missing
            missing = self._missing[number] = self._missing.get(number, stop - start) - len(data)
            if not is_begun:
                self._raw.write_among(data, position, start, stop)
        if is_begun:
            self._raw.write_at(data, position, is_whole=False)
        if not missing:
            self._raw.begin(start, stop - start)


def _write_part(tensor: LazyTensor, source: Array, part: slice, file: _Pieces, start: int, checksum: int) -> int:
    """Write a part of `tensor`, starting at `start`; returns the CRC-32, continued from `checksum`.

    It works in small blocks, each of which is cast, checksummed and written while it is in the cache of one core.
    """
    at, width = part.start, tensor.dtype.itemsize
    while at < part.stop:
        position = start + at * width
        stop = min(at + max(1, (CALL - position % CALL) // width), part.stop)
        data = element_bytes(tensor.cast(source[at:stop]))
        checksum = crc32(data, checksum)
        file.write_at(data, position)
        del data  # so that the next block can reuse its place in the cache
        at = stop
    return checksum
