"""`Sink`: where a format writes bytes, and tensors as raw little-endian elements."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import IO

import numpy as np

from phlox.record.dtypes import Array
from phlox.record.entry import LazyTensor
from phlox.record.running import Adder, Checksum

_SMALL, _LARGE = 1 << 20, 1 << 24
"""Bytes that are written at a time: few to a stream that makes something else of them, which takes memory."""


class Sink:
    """Where a format writes: bytes, and tensors as raw little-endian elements, a piece at a time.

    Args:
        stream: to write to.
        can_patch: whether the stream can go back, for `patch`; a compressed one cannot.
    """

    __slots__ = ("_adder", "_stream", "can_patch", "position")

    def __init__(self, stream: IO[bytes], *, can_patch: bool = False) -> None:
        self._stream = stream
        self._adder = Adder()
        self.can_patch = can_patch
        self.position = 0
        """The number of bytes written so far."""

    def close(self) -> None:
        """Ends what it has besides the stream, which stays open."""
        self._adder.close()

    def write(self, data: bytes | memoryview) -> None:
        """Writes all of `data`."""
        self._stream.write(data)
        self.position += len(data)

    def checksum(self, start: int = 0) -> Checksum:
        """A CRC-32 that goes on from `start`, computed while this writes."""
        return Checksum(self._adder, start)

    def tensor(self, tensor: LazyTensor, checksum: int = 0) -> Checksum:
        """Writes the elements of `tensor` in order; reads it now, casts it a small block at a time.

        Gives the CRC-32 of the bytes written, going on from `checksum`: `int` of it, when all is written.
        """
        result = self.checksum(checksum)
        for data in self.blocks(tensor, result):
            self.elements(data)
        return result

    def blocks(self, tensor: LazyTensor, checksum: Checksum) -> Iterator[memoryview]:
        """The bytes of its elements in order, to be written; `checksum` goes on with them.

        A block that was made by casting is added up at once: it is in the cache, and takes memory.
        """
        is_made = tensor.is_cast
        if not is_made:
            self._adder.make_room(tensor.nbytes)
        for block in tensor.blocks():
            data = element_bytes(block)
            checksum.add(data, later=not is_made)
            yield data

    def elements(self, data: memoryview) -> None:
        """Writes all of `data`, however much that is."""
        # Each piece but the first begins at a multiple of 1 MiB: so the system keeps the file in large pages, and who
        # maps it reads it in half the time (measured: 1539 faults on 134 MB written in unaligned quarters, 260 so).
        start, stop = 0, _SMALL - self.position % _SMALL
        while start < len(data):
            self.write(data[start:stop])
            start, stop = stop, stop + (_LARGE if self.can_patch else _SMALL)

    def patch(self, position: int, data: bytes) -> None:
        """Puts `data` in place of as many bytes that were written at `position`."""
        self._stream.seek(position - self.position, 1)
        self._stream.write(data)
        self._stream.seek(self.position - position - len(data), 1)


def element_bytes(array: Array) -> memoryview:
    """The elements of a contiguous array as little-endian bytes; a view, where the machine is little-endian."""
    flat = array if array.ndim == 1 else array.reshape(-1)
    return (flat if sys.byteorder == "little" else flat.byteswap()).view(np.uint8).data
