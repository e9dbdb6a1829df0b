"""Memory of freed large arrays: kept for the next arrays, or returned to the system, as the C library does by default.

glibc asks the system for every block of more than about 32 MB, and returns it when it is freed. Other threads, such as
XLA's, have small heaps that shrink as soon as possible. The next array then pays for each page again; kept pages avoid
that. The price is memory: a process keeps the memory of its peak, and the heap may have holes.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

KEEP, SYSTEM = "keep", "system"

DEFAULT = SYSTEM
"""The default."""

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
"""glibc's codes of the options, from its malloc.h."""

_KEPT: tuple[tuple[int, int], ...] = (
    (_MMAP_MAX, 0),  # no block is a mapping of its own, which would be returned when it is freed
    (_TRIM_THRESHOLD, 2**31 - 1),  # the top of the heap is not returned, unless it is very large
    (_ARENA_MAX, 1),  # all threads share one heap; other heaps have at most 64 MB, and shrink
    (_TOP_PAD, 64 << 20),  # the heap grows in large steps
)


def keep_memory() -> bool:
    """Keep freed blocks for the next arrays; returns False, without any effect, if the C library is not glibc.

    It applies to the whole process until its end. Threads that have allocated before keep their heaps, so call it
    before an engine starts its threads.
    """
    mallopt = _mallopt()
    if mallopt is None:
        return False
    return all([mallopt(option, value) == 1 for option, value in _KEPT])  # noqa: C419  (all are set, even if one fails)


def has_glibc() -> bool:
    """Is the C library glibc, whose options can be set?"""
    return _mallopt() is not None


def _mallopt() -> Any:
    """glibc's function, if this process has it."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL(None)
        _ = library.gnu_get_libc_version  # other libraries have no `mallopt`, or a different one
        function: Any = library.mallopt
    except (OSError, AttributeError):
        return None
    function.argtypes, function.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return function
