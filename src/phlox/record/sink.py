"""`Sink`: where a format writes bytes, and tensors as raw little-endian elements."""

from __future__ import annotations

import sys
from typing import IO

import numpy as np

from phlox.record.dtypes import Array
from phlox.record.entry import LazyTensor


class Sink:
    """Where a format writes: bytes, and tensors as raw little-endian elements, a piece at a time."""

    __slots__ = ("_stream", "position")

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.position = 0
        """The number of bytes written so far."""

    def write(self, data: bytes | memoryview) -> None:
        """Writes all of `data`."""
        self._stream.write(data)
        self.position += len(data)

    def tensor(self, tensor: LazyTensor) -> None:
        """Writes the elements of `tensor` in order; reads it now, casts it a small block at a time."""
        for block in tensor.blocks():
            self.write(element_bytes(block))


def element_bytes(array: Array) -> memoryview:
    """The elements of a contiguous array as little-endian bytes; a view, where the machine is little-endian."""
    flat = array.reshape(-1)
    return (flat if sys.byteorder == "little" else flat.byteswap()).view(np.uint8).data
