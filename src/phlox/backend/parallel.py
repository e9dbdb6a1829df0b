"""Work on host memory, spread over the cores: NumPy and zlib use one, and let other threads run while they do."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


def spread(work: Callable[[int, int], None], size: int, least: int, most: int = 64) -> None:
    """Calls `work(start, stop)` for parts that make up `range(size)`, all at the same time, each on a core.

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
    if count == 1:
        work(0, size)
        return
    failed: dict[int, BaseException] = {}

    def run(i: int) -> None:
        try:
            work(size * i // count, size * (i + 1) // count)
        except BaseException as error:
            failed[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(1, count)]
    for thread in threads:
        thread.start()
    run(0)
    for thread in threads:
        thread.join()
    if failed:
        raise failed[min(failed)]


def _cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
