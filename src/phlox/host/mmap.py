"""Files in memory whose pages an engine may take over as its own, instead of copying them."""

from __future__ import annotations

import mmap
from typing import Any, final

import numpy as np


@final
class Pages(mmap.mmap):
    """A file in memory, private: whoever writes there writes to a copy of the page, and the file stays as it is.

    It is to be shown read-only, for all that look at one page see what is written there. An engine that has no
    read-only arrays may take the memory all the same (`taken_over`): no operation of the contract writes to arrays.
    """

    @property
    def address(self) -> int:
        """Where in memory they begin."""
        return address_of(np.frombuffer(self, np.uint8))


def taken_over(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """The very memory of a read-only array, to be written to, if it is that of `Pages`, which live as long as it does.

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
    """Where in memory its first element is."""
    return array.__array_interface__["data"][0]
