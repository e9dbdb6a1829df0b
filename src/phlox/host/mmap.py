"""Memory-mapped files, whose pages an engine may use as its own arrays, without a copy."""

from __future__ import annotations

import mmap
from typing import Any, final

import numpy as np


@final
class Pages(mmap.mmap):
    """A private (copy-on-write) mapping of a file: writing to it does not change the file.

    Arrays over it are read-only, because all arrays over a page see what is written to it. An engine without read-only
    arrays may still use the memory (`taken_over`): no operation of the contract writes to arrays.
    """

    @property
    def address(self) -> int:
        """The address of the first page."""
        return address_of(np.frombuffer(self, np.uint8))


def taken_over(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """A writeable array over a read-only array's memory, if that belongs to `Pages`, which it keeps alive; else None.

    >>> import numpy as np
    >>> taken_over(np.ones(2)) is None
    True
    """
    pages: Any = array
    while isinstance(pages, np.ndarray):
        pages = pages.base
    if isinstance(pages, memoryview):
        pages = pages.obj
    if not isinstance(pages, Pages) or not array.size:
        return None
    flags = array.flags
    if flags.writeable or not flags.c_contiguous:
        return None
    return np.ndarray(array.shape, array.dtype, pages, address_of(array) - pages.address)


def address_of(array: np.ndarray[Any, Any]) -> int:
    """The address of its first element."""
    return array.__array_interface__["data"][0]
