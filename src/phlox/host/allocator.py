"""Memory of freed large arrays: kept for the next ones, or returned to the system, as the C library does by itself.

glibc asks the system for every block of more than some 32 MB and gives it back when it is freed, and has small areas
for other threads, such as XLA's, that shrink as soon as they can; the next array then pays for each page again. Kept,
the pages stay. The price is memory: what a process took at its peak stays with it, and the heap may have holes.
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
    (_MMAP_MAX, 0),  # no block is a mapping of its own, which would be given back when it is freed
    (_TRIM_THRESHOLD, 2**31 - 1),  # nor is the top of the heap, unless it is very large
    (_ARENA_MAX, 1),  # all threads share one heap; those of others are of 64 MB at most, and shrink
    (_TOP_PAD, 64 << 20),  # and it grows by much at a time
)


def keep_memory() -> bool:
    """Keep freed blocks for the next arrays; False, and nothing is done, where the C library is not glibc.

    It holds for the whole process until its end. Threads that have allocated before keep their areas, so it comes
    before an engine starts its own.
    """
    mallopt = _mallopt()
    if mallopt is None:
        return False
    return all([mallopt(option, value) == 1 for option, value in _KEPT])  # noqa: C419  (all are set, come what may)


def has_glibc() -> bool:
    """Is the C library glibc, whose options can be set?"""
    return _mallopt() is not None


def _mallopt() -> Any:
    """glibc's function, if this process has it."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL(None)
        _ = library.gnu_get_libc_version  # others have a `mallopt` that means something else, or none
        found: Any = library.mallopt
    except (OSError, AttributeError):
        return None
    found.argtypes, found.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return found
