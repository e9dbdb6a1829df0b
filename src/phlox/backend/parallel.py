"""Work on host memory, spread over the cores: NumPy and zlib use one, and let other threads run while they do.

A thread takes a tenth of a millisecond and more to begin, so that it has to be worth it.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TypeVar

_T = TypeVar("_T")


def spread(work: Callable[[int, int], None], size: int, least: int, most: int = 64) -> None:
    """Calls `work(start, stop)` for parts that make up `range(size)`, on as many cores as there are for it.

    Context variables are the caller's in every thread. Within what is spread already, whatever threads have nothing
    left to do take parts, and the caller all others.

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
    pool = _pool.get()
    if count == 1:
        work(0, size)
    elif pool is not None:
        pool.share(work, size, count)
    else:
        with _Pool((), count) as pool:
            pool.share(work, size, count)


def each(
    work: Callable[[int], _T],
    sizes: Sequence[int],
    least: int,
    most: int = 64,
    *,
    in_order: bool = False,
    alone: Callable[[], bool] = bool,
) -> list[_T]:
    """`[work(0), work(1), ...]`, several at the same time, the largest first.

    What one of them would spread is taken by threads for which nothing else is left.

    Args:
        work: must be able to run in several threads.
        sizes: for each how much there is to do.
        least: what is worth a thread, of all of it together.
        most: at the same time.
        in_order: they come as they are given.
        alone: while it says so, the caller takes one after the other, and no thread is begun.

    Raises what the first one raises that fails, as a loop would; some of those after it have been tried by then.

    >>> each(lambda i: 10 * i, [1, 1, 1], least=2)
    [0, 10, 20]
    """
    places = range(len(sizes)) if in_order else sorted(range(len(sizes)), key=lambda i: -sizes[i])
    made: dict[int, _T] = {}
    failed: dict[int, Exception] = {}

    def take(i: int) -> None:
        if failed and i > min(tuple(failed)):
            return  # only those before it matter any more
        try:
            made[i] = work(i)
        except Exception as error:
            failed[i] = error

    waiting = deque(places)
    while waiting and alone():
        take(waiting.popleft())
    count = min(_cores(), sum([sizes[i] for i in waiting]) // least, most)
    tasks = [partial(take, i) for i in waiting]
    if count <= 1 or len(tasks) == 1 or _pool.get() is not None:
        for task in tasks:
            task()
    else:
        with _Pool(tasks, count):
            pass
    if failed:
        raise failed[min(failed)]
    return [made[i] for i in range(len(sizes))]


class _Pool:
    """Threads that take tasks until there are none, and nobody is left who could add some.

    Entered by a thread that is one of them from when it leaves; until then it may add tasks.
    """

    def __init__(self, tasks: Sequence[Callable[[], None]], count: int) -> None:
        self._waiting = deque(tasks)
        self._changed = threading.Condition()
        self._at_work = 1
        self._stopped_by: BaseException | None = None
        self._threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(self._work,)) for _ in range(count - 1)
        ]

    def __enter__(self) -> _Pool:
        self._token = _pool.set(self)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave()
        self._work()
        for thread in self._threads:
            thread.join()
        _pool.reset(self._token)
        if error is None and self._stopped_by is not None:
            raise self._stopped_by

    def share(self, work: Callable[[int, int], None], size: int, count: int) -> None:
        """`work` in so many parts, of which the caller takes the first, and all that no idle thread takes."""
        left, ended, failed = deque(range(1, count)), list[int](), dict[int, BaseException]()

        def run(i: int) -> None:
            try:
                work(size * i // count, size * (i + 1) // count)
            except BaseException as error:
                failed[i] = error
            with self._changed:
                ended.append(i)
                self._changed.notify_all()

        def take() -> None:
            try:
                i = left.popleft()
            except IndexError:
                return  # the caller was there before
            run(i)

        with self._changed:
            self._waiting.extend([partial(contextvars.copy_context().run, take) for _ in left])
            self._changed.notify_all()
        contextvars.copy_context().run(run, 0)
        while left:
            contextvars.copy_context().run(take)
        with self._changed:
            self._changed.wait_for(lambda: len(ended) == count)
        if failed:
            raise failed[min(failed)]

    def _work(self) -> None:
        _pool.set(self)
        while (task := self._next()) is not None:
            try:
                task()
            except BaseException as error:
                self._stopped_by = self._stopped_by or error
                self._waiting.clear()
            self._leave()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._at_work)
            if not self._waiting:
                return None
            self._at_work += 1
            return self._waiting.popleft()

    def _leave(self) -> None:
        with self._changed:
            self._at_work -= 1
            self._changed.notify_all()


_pool: contextvars.ContextVar[_Pool | None] = contextvars.ContextVar("phlox_pool", default=None)
"""The threads that the caller is one of."""


def _cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
