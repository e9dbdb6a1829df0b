"""Work on large arrays in blocks that fit the cache, on several threads if there is enough work.

The result of a block depends neither on the other blocks nor on its thread, and the blocks depend only on the shapes.
So results do not depend on the number of threads.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from phlox.backend import settings
from phlox.backend.numpy.sums import ones
from phlox.host.threads import cores, own_threads

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

Block = np.ndarray[Any, Any]

SMALL = 1 << 16
"""Elements in a block on one thread: a handful of buffers stay in the second-level cache."""
LARGE = 1 << 17
"""Elements in a block on several threads: NumPy holds the interpreter's lock between its loops; these must be long."""
SPREAD = 1 << 20
"""The number of elements from which several threads are used."""
_WIDE = 1 << 12
_NARROW = 32
"""Rows of up to so many elements: NumPy takes longer to begin with each than to copy all into columns."""
_MOST = 8  # threads; with more, memory is the bottleneck


@cache
def _pool(process: int) -> tuple[ThreadPoolExecutor, int]:
    """The helper threads and their number; a forked process needs its own."""
    from concurrent.futures import ThreadPoolExecutor  # slow to import

    helpers = min(settings.applied().threads or own_threads("numpy") or cores(), _MOST) - 1
    return ThreadPoolExecutor(max(helpers, 1), "phlox-numpy"), helpers


def in_blocks(work: Callable[[int, int], None], items: int, size: int) -> None:
    """`work(start, stop)` for consecutive parts of range(items), where an item is `size` elements of work.

    Parts have about `SMALL` elements, or `LARGE` if several threads work at once. Infinities and NaNs give no
    warning.
    """
    spread = items * size >= SPREAD
    step = max(1, (LARGE if spread else SMALL) // max(size, 1))
    with np.errstate(all="ignore"):
        if not spread or step >= items:
            for start in range(0, items, step):
                work(start, min(start + step, items))
            return
        pool, helpers = _pool(os.getpid())
        starts = iter(range(0, items, step))

        def help_out() -> None:
            for start in starts:
                work(start, min(start + step, items))

        # Each helper needs the caller's error state. A helper that has not begun when the work is done is cancelled.
        others: list[Future[None]] = [pool.submit(copy_context().run, help_out) for _ in range(helpers)]
        help_out()
        for other in others:
            if not other.cancel():
                other.result()


def by_blocks(fn: Callable[..., None], *arrays: Block) -> Block:
    """`fn(*blocks, out)` for every block of arrays of one shape and type, elementwise; the `out`s joined."""
    flat: list[Block] = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
    out: Block = np.empty_like(flat[0])

    def work(start: int, stop: int) -> None:
        fn(*(array[start:stop] for array in flat), out[start:stop])

    in_blocks(work, out.size, 1)
    return out.reshape(arrays[0].shape)


def by_rows(fn: Callable[..., None], *arrays: Block) -> Block:
    """`fn(*blocks, out)` for blocks of whole rows of arrays of one shape [..., width] and type; the `out`s joined."""
    rows = [rows_of(array) for array in arrays]
    out = np.empty_like(rows[0])

    def work(start: int, stop: int) -> None:
        fn(*(array[start:stop] for array in rows), out[start:stop])

    in_blocks(work, *out.shape)
    return out.reshape(arrays[0].shape)


def rows_of(x: Block) -> Block:
    """An array [..., width], width not zero, as [rows, width] in order."""
    return np.ascontiguousarray(x).reshape(-1, x.shape[-1])


def dot(x: Block, y: Block) -> Block:
    """The products of rows [rows, width], as [rows, 1]; with a row of ones, their sums.

    Wide rows are summed pairwise: more accurate, and without a BLAS that might use threads of its own.
    """
    if x.shape[1] <= _WIDE:
        return np.vecdot(x, y)[:, None]
    return np.add.reduce(np.multiply(x, y, out=scratch(x, -1)), 1, keepdims=True)


def row_sums(x: Block) -> Block:
    """The sums along the last axis, which stays with size one."""
    width = x.shape[-1]
    return np.vecdot(x, ones(width, x.dtype))[..., None] if width <= _WIDE else np.add.reduce(x, -1, keepdims=True)


def row_maxima(x: Block) -> Block:
    """The maxima along the last axis, which stays with size one."""
    width = x.shape[-1]
    if width > _NARROW:
        return np.maximum.reduce(x, -1, keepdims=True)
    # NumPy starts anew for each row; columns take one start each.
    columns = np.ascontiguousarray(x.reshape(-1, width).T)
    return np.maximum.reduce(columns, 0).reshape(*x.shape[:-1], 1)


_thread_buffers = threading.local()


def scratch(like: Block, slot: int = 0, shape: tuple[int, ...] | None = None) -> Block:
    """Memory of this thread, with the dtype of `like`, and its shape or another.

    The next call for this slot returns the same memory again.
    """
    size = like.size if shape is None else math.prod(shape)
    buffers = cast("dict[Any, Block]", _thread_buffers.__dict__)
    buffer = buffers.get((slot, like.dtype))
    if buffer is None or buffer.size < size:
        buffer = np.empty(max(size, SMALL), like.dtype)
        if size <= 4 * LARGE:
            buffers[slot, like.dtype] = buffer
    return buffer[:size].reshape(like.shape if shape is None else shape)
