"""New memory for arrays, in pages that the system has at hand, and many at a time."""

from __future__ import annotations

import ctypes
import mmap
import sys
import time
from functools import cache
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

_slow_until = 0.0


def get_large_page(array: NDArray[Any], start: int, stop: int) -> bool:
    """Gets the large page that begins in a part that is to be written; False if the array will have no more of them.

    So it is where the system has to wait for it: what comes after is given small ones then. `array` is 1-d and
    contiguous. Nothing outside of the part is written to, for others may have written there.
    """
    global _slow_until
    base, width = array.__array_interface__["data"][0], array.itemsize
    first = -(-(base + start * width) // _PAGE) * _PAGE
    last = (base + array.nbytes) // _PAGE * _PAGE
    if first >= last or sys.platform != "linux":
        return False
    if first >= base + stop * width:
        return True
    begin = time.monotonic()
    if begin >= _slow_until:
        array.view(np.uint8)[first - base] = 0
        if time.monotonic() - begin < _SLOW:
            return True
        _slow_until = time.monotonic() + _REMEMBERED
    _madvise()(first, last - first, _NO_LARGE_PAGES)
    return False


def get_pages(array: NDArray[Any], start: int, stop: int) -> None:
    """Gets the pages of a part that is to be written, small ones in 0.6 of the time that it takes when each is missed.

    `array` is 1-d and contiguous. What the pages hold stays, so that they may be those of other parts too. Where the
    system does not know how, or cannot, they come when they are written to.
    """
    if (stop - start) * array.itemsize < _MANY or sys.platform != "linux":
        return
    base, width, page = array.__array_interface__["data"][0], array.itemsize, mmap.PAGESIZE
    first = (base + start * width) // page * page
    last = -(-(base + stop * width) // page) * page
    _madvise()(first, last - first, _POPULATE)


@cache
def _madvise() -> Any:
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function
