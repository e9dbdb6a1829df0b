"""New memory for arrays that are about to be written: one call requests many of its pages."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import cache
from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phlox.host.mmap import address_of
from phlox.host.signal_guard import scope

LARGE = 1 << 22
"""The number of bytes from which an array has memory of its own, and from which NumPy requests large pages."""
_WORTH_A_CALL = 1 << 17
"""The number of bytes from which one request for all pages pays off."""
_NO_HUGE_PAGES, _POPULATE_WRITE = 15, 23
"""MADV_NOHUGEPAGE and MADV_POPULATE_WRITE of Linux; the latter exists from version 5.14 on."""

_CHUNK, _ALIGNMENT = 1 << 25, 64
"""The bytes of a chunk that small arrays share, and the alignment of each array in it."""


class Buffer:
    """Bytes without values yet, of one array or of several small ones.

    They are in small pages. NumPy requests large pages, which are faster if the system has free ones. But if a virtual
    machine has to get them from its host, each may take milliseconds: a first load took three to four times as long.

    Several threads may populate parts of it at the same time.

    Args:
        bytes: a new array that has not been written to.
    """

    __slots__ = ("_address", "bytes")

    def __init__(self, bytes: NDArray[np.uint8]) -> None:
        self.bytes = bytes
        self._address = address_of(bytes)
        if bytes.nbytes >= LARGE:
            self._advise(0, bytes.nbytes, _NO_HUGE_PAGES)

    @staticmethod
    def of(nbytes: int) -> Buffer:
        """A buffer of this number of bytes."""
        return Buffer(np.empty(nbytes, np.uint8))

    def populate(self, start: int, stop: int) -> None:
        """Get the pages of a part that is about to be written, in one call instead of a page fault for each.

        Existing values stay, because other parts may share a page. If the system does not know the call, or refuses
        it, it allocates the pages when they are written to.
        """
        if stop - start >= _WORTH_A_CALL:
            self._advise(start, stop, _POPULATE_WRITE)

    def _advise(self, start: int, stop: int, advice: int) -> None:
        """Call `madvise` for all pages of a part, on Linux."""
        if sys.platform == "linux":
            first = (self._address + start) // mmap.PAGESIZE * mmap.PAGESIZE
            _madvise()(first, self._address + stop - first, advice)


def aligned_copy(array: NDArray[Any]) -> NDArray[Any]:
    """A copy in row-major order whose address is a multiple of 64, so that engines can use it as it is.

    >>> aligned_copy(np.ones((2, 3)).T).ctypes.data % 64
    0
    """
    room = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -address_of(room) % _ALIGNMENT
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class Arena:
    """Memory for many arrays that are made one after the other: small arrays share chunks.

    A chunk lives as long as any of the arrays in it. Every thread has a chunk of its own, because threads that write to
    neighbouring pages wait for each other. Nearly all chunks are allocated at the start, because an allocation waits
    for the page faults of other threads.

    Args:
        sizes: the bytes of each array; large arrays have memory of their own and do not count.
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        needed = sum([_rounded(size) for size in sizes if size < LARGE])
        self._most = min(needed, _CHUNK)
        self._chunks = [self._chunk(0) for _ in range(-(-needed // _CHUNK) + 1)] if needed else []
        self._free: dict[int, tuple[Buffer, int]] = {}

    def used(self) -> AbstractContextManager[Arena | None]:
        """Within this scope, `empty` allocates small arrays here."""
        return scope(_arena, self)

    def allocate(self, nbytes: int) -> tuple[Buffer, int]:
        """Reserve bytes: a chunk, and the position in it at which they begin."""
        thread, needed = get_ident(), _rounded(nbytes)
        chunk, start = self._free.get(thread, (None, 0))
        if chunk is None or start + needed > chunk.bytes.size:
            try:
                chunk = self._chunks.pop() if needed <= self._most else self._chunk(needed)
            except IndexError:
                chunk = self._chunk(needed)
            start = -address_of(chunk.bytes) % _ALIGNMENT
        self._free[thread] = chunk, start + needed
        return chunk, start

    def _chunk(self, needed: int) -> Buffer:
        return Buffer.of(max(self._most, needed) + _ALIGNMENT)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


_arena: ContextVar[Arena | None] = ContextVar("phlox_arena", default=None)


def empty(shape: Sequence[int], dtype: np.dtype[Any]) -> tuple[NDArray[Any], Buffer, int]:
    """A contiguous array without values, the buffer that has it, and its position in the buffer."""
    nbytes, arena = math.prod(shape) * dtype.itemsize, _arena.get()
    buffer, start = (Buffer.of(nbytes), 0) if arena is None or nbytes >= LARGE else arena.allocate(nbytes)
    return buffer.bytes[start : start + nbytes].view(dtype).reshape(shape), buffer, start


@cache
def _madvise() -> Any:
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
