"""New memory for arrays, in pages that the system has at hand, and many at a time."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGE = 1 << 22
"""Bytes of an array for which NumPy asks for large pages."""
_PAGE = 1 << 21
"""Bytes of a large page."""
_SLOW = 0.002
"""Seconds for one of them: 0.1 to 0.4 ms where it is there, 6 to 9 where the host of the machine has to give it.

Hosts do so for virtual machines that report what is free (virtio-balloon's free page reporting). Small pages are those
that were in use a moment ago: as many bytes take 0.7 ms.
"""
_REMEMBERED = 10.0
"""Seconds for which no large pages are waited for where one was slow."""
_MANY = 1 << 17
"""Bytes of a part for which it is worth asking for all its pages at once."""
_NO_LARGE_PAGES, _POPULATE = 15, 23
"""MADV_NOHUGEPAGE and MADV_POPULATE_WRITE of Linux; the latter is not known before Linux 5.14."""

_CHUNK, _ALIGNMENT = 1 << 25, 64
"""Bytes of what small arrays share, and of what each of them begins at a multiple of."""

_slow_until = 0.0


class Memory:
    """Bytes that have no values yet, of one array or of several small ones; the system is asked for them in parts."""

    __slots__ = ("_has_large_pages", "bytes")

    def __init__(self, nbytes: int) -> None:
        self.bytes: NDArray[np.uint8] = np.empty(nbytes, np.uint8)
        self._has_large_pages = nbytes >= LARGE

    def get(self, start: int, stop: int) -> None:
        """Gets the pages of a part that is to be written to; several threads may do so."""
        self.get_large_pages(start, stop)
        get_pages(self.bytes, start, stop)

    def get_large_pages(self, start: int, stop: int) -> None:
        """Those of them that are large, if the system has them at hand."""
        if self._has_large_pages:
            self._has_large_pages = get_large_pages(self.bytes, start, stop)


class Room:
    """Memory for many arrays that are made one after the other, so that small ones are in large pages too.

    A chunk of it is there as long as any of those that share it.

    Args:
        sizes: the bytes of each; those of large ones do not count.
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        self._left = sum([_rounded(size) for size in sizes if size < LARGE])
        self._chunk = Memory(0)
        self._at = 0
        self._lock = Lock()

    @contextmanager
    def used(self) -> Generator[None]:
        """Within this, `empty` takes from here what is not large."""
        token = _room.set(self)
        try:
            yield
        finally:
            _room.reset(token)

    def take(self, nbytes: int) -> tuple[Memory, int]:
        """A chunk, and where in it so many bytes begin, which are nobody else's.

        It is one of their own where large pages are not waited for: in small ones they gain nothing by sharing.
        """
        with self._lock:
            needed = _rounded(nbytes)
            if self._at + needed > self._chunk.bytes.size:
                if time.monotonic() < _slow_until:
                    return Memory(nbytes), 0
                self._chunk = Memory(max(min(self._left, _CHUNK), needed) + _ALIGNMENT)
                self._at = -_address(self._chunk.bytes) % _ALIGNMENT
            start = self._at
            self._at += needed
            self._left -= needed
            return self._chunk, start


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


_room: ContextVar[Room | None] = ContextVar("phlox_room", default=None)


def empty(shape: Sequence[int], dtype: np.dtype[Any]) -> tuple[NDArray[Any], Memory, int]:
    """A contiguous array without values, the memory that it is in, and where in that it begins."""
    nbytes, room = math.prod(shape) * dtype.itemsize, _room.get()
    memory, start = (Memory(nbytes), 0) if room is None or nbytes >= LARGE else room.take(nbytes)
    return memory.bytes[start : start + nbytes].view(dtype).reshape(shape), memory, start


def get_large_pages(array: NDArray[Any], start: int, stop: int) -> bool:
    """Gets the large pages of a part that is to be written to; False if the array will have no more of them.

    So it is where the system has to wait for one: what is not there yet is given small ones then. `array` is 1-d and
    contiguous. Nothing outside of the part is written to, for others may have written there.
    """
    global _slow_until
    base, width = _address(array), array.itemsize
    first, last = -(-base // _PAGE) * _PAGE, (base + array.nbytes) // _PAGE * _PAGE
    if first >= last or sys.platform != "linux":
        return False
    place, end = max(first, base + start * width), min(last, base + stop * width)
    while place < end:
        begin = time.monotonic()
        if begin >= _slow_until:
            array.view(np.uint8)[place - base] = 0
            if time.monotonic() - begin >= _SLOW:
                _slow_until = time.monotonic() + _REMEMBERED
        if begin < _slow_until:
            _madvise()(first, last - first, _NO_LARGE_PAGES)
            return False
        place = (place // _PAGE + 1) * _PAGE
    return True


def get_pages(array: NDArray[Any], start: int, stop: int) -> None:
    """Gets the pages of a part that is to be written, small ones in 0.6 of the time that it takes when each is missed.

    `array` is 1-d and contiguous. What the pages hold stays, so that they may be those of other parts too. Where the
    system does not know how, or cannot, they come when they are written to.
    """
    if (stop - start) * array.itemsize < _MANY or sys.platform != "linux":
        return
    base, width, page = _address(array), array.itemsize, mmap.PAGESIZE
    first = (base + start * width) // page * page
    last = -(-(base + stop * width) // page) * page
    _madvise()(first, last - first, _POPULATE)


def _address(array: NDArray[Any]) -> int:
    return array.__array_interface__["data"][0]


@cache
def _madvise() -> Any:
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
