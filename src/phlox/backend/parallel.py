"""Work on host memory, spread over the cores: NumPy and zlib use one, and let other threads run while they do.

A thread takes a tenth of a millisecond and more to begin, so that it has to be worth it.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")
_is_spread: contextvars.ContextVar[bool] = contextvars.ContextVar("_is_spread", default=False)
"""Is this a part of what is spread already?"""


def spread(work: Callable[[int, int], None], size: int, least: int, most: int = 64) -> None:
    """Calls `work(start, stop)` for parts that make up `range(size)`, all at the same time, each on a core.

    Context variables are the caller's in every thread. What `work` itself would spread runs as one part.

    Args:
        work: must be able to run in several threads.
        size: of the whole.
        least: of a part that is worth a thread.
        most: parts, for instance since each needs memory of its own.

    Raises what a part raises, the first one that does, when all have ended.

    >>> import numpy as np
    >>> squares = np.arange(6)
    >>> def work(start, stop):
    ...     squares[start:stop] **= 2
    >>> spread(work, len(squares), least=2)
    >>> squares.tolist()
    [0, 1, 4, 9, 16, 25]
    """
    count = max(1, min(_cores(), size // least, most))
    if count == 1 or _is_spread.get():
        work(0, size)
        return
    failed: dict[int, BaseException] = {}

    def run(i: int) -> None:
        _is_spread.set(True)
        try:
            work(size * i // count, size * (i + 1) // count)
        except BaseException as error:
            failed[i] = error

    threads = [threading.Thread(target=contextvars.copy_context().run, args=(run, i)) for i in range(1, count)]
    for thread in threads:
        thread.start()
    contextvars.copy_context().run(run, 0)
    for thread in threads:
        thread.join()
    if failed:
        raise failed[min(failed)]


def each(
    work: Callable[[int], _T],
    sizes: Sequence[int],
    least: int,
    most: int = 64,
    alone: int | None = None,
    *,
    in_order: bool = False,
) -> list[_T]:
    """`[work(0), work(1), ...]`, several at the same time, the largest first.

    Args:
        work: must be able to run in several threads.
        sizes: for each how much there is to do.
        least: what is worth a thread, of all of it together.
        most: at the same time.
        alone: what is larger than this comes one by one before the others, and may itself be spread.
        in_order: the others come as they are given.

    Raises what the first one raises that fails, as a loop would; some of those after it have been tried by then.

    >>> each(lambda i: 10 * i, [1, 1, 1], least=2)
    [0, 10, 20]
    """
    places = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    large = 0 if alone is None else sum(size > alone for size in sizes)
    waiting = deque(places[:large])
    made: dict[int, _T] = {}
    failed: dict[int, Exception] = {}

    def take(_start: int, _stop: int) -> None:
        while True:
            try:
                i = waiting.popleft()
            except IndexError:
                return
            if failed and i > min(tuple(failed)):
                continue  # only those before it matter any more
            try:
                made[i] = work(i)
            except Exception as error:
                failed[i] = error
            except BaseException:
                waiting.clear()
                raise

    take(0, large)
    waiting.extend(sorted(places[large:]) if in_order else places[large:])
    spread(take, sum(sizes[i] for i in waiting), least, min(most, len(waiting)))
    if failed:
        raise failed[min(failed)]
    return [made[i] for i in range(len(sizes))]


def _cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
