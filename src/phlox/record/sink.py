"""`Sink`: where a format writes bytes, and tensors as raw little-endian elements."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import IO

import numpy as np

from phlox.record.crc32 import crc32, is_fast
from phlox.record.dtypes import Array
from phlox.record.entry import LazyTensor

_MUCH = 1 << 21
"""Bytes whose checksum is worth a thread, if it takes long."""

PIECE = 1 << 20
"""Bytes that are written at a time: few enough to stay in the cache between their checksum and their copy."""


class Sink:
    """Where a format writes: bytes, and tensors as raw little-endian elements, a piece at a time.

    Args:
        stream: to write to.
        can_patch: whether the stream can go back, for `patch`; a compressed one cannot.
    """

    __slots__ = ("_stream", "can_patch", "position")

    def __init__(self, stream: IO[bytes], *, can_patch: bool = False) -> None:
        self._stream = stream
        self.can_patch = can_patch
        self.position = 0
        """The number of bytes written so far."""

    def write(self, data: bytes | memoryview) -> None:
        """Writes all of `data`."""
        self._stream.write(data)
        self.position += len(data)

    def tensor(self, tensor: LazyTensor, checksum: int = 0) -> int:
        """Writes the elements of `tensor` in order; reads it now, casts it a small block at a time.

        Gives the CRC-32 of the bytes written, going on from `checksum`.
        """
        for block in tensor.blocks():
            checksum = self.elements(element_bytes(block), checksum)
        return checksum

    def elements(self, data: memoryview, checksum: int = 0) -> int:
        """Writes `data` and gives its CRC-32, going on from `checksum`."""
        if len(data) < _MUCH or is_fast():
            for piece in self._pieces(data):
                self.write(piece)
                checksum = crc32(piece, checksum)  # which is in the cache now
            return checksum
        found = [checksum]
        # Neither holds the interpreter: the disk's share is copied while another core adds up.
        worker = threading.Thread(target=lambda: found.append(crc32(data, checksum)))
        worker.start()
        try:
            for piece in self._pieces(data):
                self.write(piece)
        finally:
            worker.join()
        return found[-1]

    def _pieces(self, data: memoryview) -> Iterator[memoryview]:
        # Each but the first begins at a multiple of PIECE: so the system keeps the file in large pages, and whoever
        # maps it reads it in half the time (measured: 1539 faults on 134 MB written in unaligned quarters, 260 so).
        start, stop = 0, PIECE - self.position % PIECE
        while start < len(data):
            yield data[start:stop]
            start, stop = stop, stop + PIECE

    def patch(self, position: int, data: bytes) -> None:
        """Puts `data` in place of as many bytes that were written at `position`."""
        self._stream.seek(position - self.position, 1)
        self._stream.write(data)
        self._stream.seek(self.position - position - len(data), 1)


def element_bytes(array: Array) -> memoryview:
    """The elements of a contiguous array as little-endian bytes; a view, where the machine is little-endian."""
    flat = array.reshape(-1)
    return (flat if sys.byteorder == "little" else flat.byteswap()).view(np.uint8).data
