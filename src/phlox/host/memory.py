"""New memory for arrays, in pages that the system has at hand, and many at a time."""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phlox.host.mmap import address_of
from phlox.host.signal_guard import scope

LARGE = 1 << 22
"""Bytes of an array for which NumPy asks for large pages."""
_PAGE = 1 << 21
"""Bytes of a large page."""
_SLOW = 0.002
"""Seconds for one of them: 0.1 to 0.4 ms where it is there, 4.5 to 9 where the host of the machine has to give it.

Hosts do so for virtual machines that report what is free (virtio-balloon's free page reporting). Small pages are those
that were in use a moment ago: as many bytes take 0.7 ms.
"""
_PAUSE = 20
"""For so many times as long as one was waited for no more are asked for: a twentieth of the time is lost at most."""
_MANY = 1 << 17
"""Bytes of a part for which it is worth asking for all its pages at once."""
_NO_LARGE_PAGES, _POPULATE = 15, 23
"""MADV_NOHUGEPAGE and MADV_POPULATE_WRITE of Linux; the latter is not known before Linux 5.14."""

_CHUNK, _ALIGNMENT = 1 << 25, 64
"""Bytes of what small arrays share, and of what each of them begins at a multiple of."""

_slow_until = 0.0


def large_pages_come_quickly() -> bool:
    """Are there large pages that nobody had to wait for lately?

    It is best then if a single thread gets and fills them: several take as long (8 ms for 134 MB that are cast, of
    which the pages take 5.5), and what a thread has let go of the system keeps for the core that it ran on, so that
    others may have to wait.
    """
    return _has_large_pages() and time.monotonic() >= _slow_until


@cache
def _has_large_pages() -> bool:
    """Does the system give large pages to those who ask, as NumPy does?"""
    try:
        return "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
    except OSError:
        return False


class Buffer:
    """Bytes that have no values yet, of one array or of several small ones; the system is asked for them in parts.

    Several threads may do so at a time, each for parts of its own.

    Args:
        bytes: a new array, of which nothing has been written yet.
    """

    __slots__ = ("_first", "_last", "_place", "bytes", "has_large_pages")

    def __init__(self, bytes: NDArray[np.uint8]) -> None:
        self.bytes = bytes
        self._place = place = address_of(bytes)
        # The system counts in whole small pages: what ends in the last of a large page has that large page.
        whole = -(-(place + bytes.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._first, self._last = -(-place // _PAGE) * _PAGE, whole // _PAGE * _PAGE
        self.has_large_pages = bytes.nbytes >= LARGE and self._first < self._last and _has_large_pages()
        """Does what is not there yet come in large pages? Not so once the system had to wait for one, anywhere."""
        if self.has_large_pages and time.monotonic() < _slow_until:
            self._refuse_large_pages()

    @staticmethod
    def of(nbytes: int) -> Buffer:
        """So many bytes."""
        return Buffer(np.empty(nbytes, np.uint8))

    def get(self, start: int, stop: int) -> None:
        """Gets the pages of a part that is to be written to.

        What they hold stays, so that they may be those of other parts too. Where the system does not know how, or
        cannot, they come when they are written to.
        """
        self.get_large_pages(start, stop)
        if stop - start >= _MANY and sys.platform == "linux":
            first = (self._place + start) // mmap.PAGESIZE * mmap.PAGESIZE
            _madvise()(first, self._place + stop - first, _POPULATE)

    def get_large_pages(self, start: int, stop: int) -> None:
        """Gets those of them that are large, if the system has them at hand; writes to nothing but this part."""
        global _slow_until
        if not self.has_large_pages:
            return
        place, end = max(self._first, self._place + start), min(self._last, self._place + stop)
        while place < end:
            begin = time.monotonic()
            if begin >= _slow_until:
                self.bytes[place - self._place] = 0
                waited = time.monotonic() - begin
                if waited >= _SLOW:
                    _slow_until = begin + _PAUSE * waited
            if begin < _slow_until:
                self._refuse_large_pages()
                return
            place = (place // _PAGE + 1) * _PAGE

    def _refuse_large_pages(self) -> None:
        self.has_large_pages = False
        _madvise()(self._first, self._last - self._first, _NO_LARGE_PAGES)


class Arena:
    """Memory for many arrays that are made one after the other, so that small ones are in large pages too.

    It consists of chunks, each of which is there as long as any of the arrays that share it. Every thread has one of
    its own, for pages that lie side by side are waited for by whoever gets one of them; and nearly all are asked of the
    system at once, for who asks for memory waits until nobody gets pages.

    Args:
        sizes: the bytes of each; those of large ones do not count.
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        needed = sum([_rounded(size) for size in sizes if size < LARGE])
        self._most = min(needed, _CHUNK)
        self._chunks = [self._chunk(0) for _ in range(-(-needed // _CHUNK) + 1)] if needed else []
        self._rest: dict[int, tuple[Buffer, int]] = {}

    def used(self) -> AbstractContextManager[Arena | None]:
        """Within this, `empty` takes from here what is not large."""
        return scope(_arena, self)

    def take(self, nbytes: int) -> tuple[Buffer, int]:
        """A chunk, and where in it so many bytes begin, which are nobody else's."""
        thread, needed = get_ident(), _rounded(nbytes)
        chunk, start = self._rest.get(thread, (None, 0))
        if chunk is None or start + needed > chunk.bytes.size:
            try:
                chunk = self._chunks.pop() if needed <= self._most else self._chunk(needed)
            except IndexError:
                chunk = self._chunk(needed)
            start = -address_of(chunk.bytes) % _ALIGNMENT
        self._rest[thread] = chunk, start + needed
        return chunk, start

    def _chunk(self, needed: int) -> Buffer:
        return Buffer.of(max(self._most, needed) + _ALIGNMENT)


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


_arena: ContextVar[Arena | None] = ContextVar("phlox_arena", default=None)


def empty(shape: Sequence[int], dtype: np.dtype[Any]) -> tuple[NDArray[Any], Buffer, int]:
    """A contiguous array without values, the memory that it is in, and where in that it begins."""
    nbytes, arena = math.prod(shape) * dtype.itemsize, _arena.get()
    memory, start = (Buffer.of(nbytes), 0) if arena is None or nbytes >= LARGE else arena.take(nbytes)
    return memory.bytes[start : start + nbytes].view(dtype).reshape(shape), memory, start


@cache
def _madvise() -> Any:
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
