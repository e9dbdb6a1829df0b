"""Work on host memory on several cores: NumPy and zlib use one core, and release the interpreter lock meanwhile.

Starting a thread takes a tenth of a millisecond or more, so threads are started only for enough work.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TypeVar

from phlox.host.threads import cores

_T = TypeVar("_T")


def parallel_for(work: Callable[[int, int], None], size: int, least: int, most: int = 64) -> None:
    """Calls `work(start, stop)` for parts that make up `range(size)`, on as many cores as this process may use.

    Every thread has the caller's context variables. Inside a `parallel_for` or `parallel_map` no more threads are
    started: idle threads take parts, and the caller takes all others.

    Args:
        work: must be able to run in several threads.
        size: the end of the range.
        least: the size of a part that is worth a thread.
        most: the largest number of parts, for instance if each needs memory of its own.

    Raises the error of the first part that fails, after all have ended.

    >>> import numpy as np
    >>> squares = np.arange(6)
    >>> def work(start, stop):
    ...     squares[start:stop] **= 2
    >>> parallel_for(work, len(squares), least=2)
    >>> squares.tolist()
    [0, 1, 4, 9, 16, 25]
    """
    count = max(1, min(cores(), size // least, most))
    pool = _pool.get()
    if count == 1:
        work(0, size)
    elif pool is not None:
        pool.share(work, size, count)
    else:
        with _Pool((), count) as pool:
            pool.share(work, size, count)


def parallel_map(
    work: Callable[[int], _T],
    sizes: Sequence[int],
    least: int,
    most: int = 64,
    *,
    large: int | None = None,
    in_order: bool = False,
) -> list[_T]:
    """`[work(0), work(1), ...]`, several at the same time, the largest first.

    Idle threads take the parts of a `parallel_for` inside `work`.

    Args:
        work: must be able to run in several threads.
        sizes: the amount of work of each call.
        least: the amount of work that is worth a thread.
        most: the largest number of calls at the same time.
        large: calls of more work than this run one after the other, for instance if each takes much memory.
        in_order: calls that are not large start in the order of `sizes`.

    Raises the error of the first call that fails, like a loop; some later calls may have run by then.

    >>> parallel_map(lambda i: 10 * i, [1, 1, 1], least=2)
    [0, 10, 20]
    """
    total = sum(sizes)
    if total < 2 * least:
        return [work(i) for i in range(len(sizes))]
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    num_large = 0 if large is None else sum(size > large for size in sizes)
    if in_order:
        order[num_large:] = sorted(order[num_large:])
    results: dict[int, _T] = {}
    failed: dict[int, Exception] = {}

    def run(*indices: int) -> None:
        for i in indices:
            if failed and i > min(tuple(failed)):
                continue  # only earlier calls still matter
            try:
                results[i] = work(i)
            except Exception as error:
                failed[i] = error

    most = min(most, cores()) if _pool.get() is None else 1
    if most < 2:
        run(*order)
    else:
        tasks = [partial(run, i) for i in order]
        if num_large:
            tasks[:num_large] = [partial(run, *order[:num_large])]
        with _Pool(tasks, min(most, total // least)):
            pass
    if failed:
        raise failed[min(failed)]
    return [results[i] for i in range(len(sizes))]


class _Pool:
    """Threads that take tasks until none is left, and then parts of shared work, until all are idle.

    The thread that opened the scope becomes one of them at the end of the scope.
    """

    def __init__(self, tasks: Sequence[Callable[[], None]], count: int) -> None:
        self._tasks = deque(tasks)
        self._shared: list[_SharedWork] = []
        self._changed = threading.Condition()
        self._num_active = 1
        self._stopped_by: BaseException | None = None
        self._count = count
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> _Pool:
        self._token = _pool.set(self)
        with contextlib.suppress(RuntimeError):  # the system has no more threads; the others do all the work
            for _ in range(self._count - 1):
                thread = threading.Thread(target=contextvars.copy_context().run, args=(self._work,))
                thread.start()
                self._threads.append(thread)
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
        """Run `work` in `count` parts: the caller takes the first, and all that no idle thread takes."""
        shared = _SharedWork(work, size, count)
        first = shared.pending.popleft()
        with self._changed:
            self._shared.append(shared)
            self._changed.notify_all()
        shared.run(first)
        while (part := self._next_part(shared)) is not None:
            shared.run(part)
        with self._changed:
            self._changed.wait_for(lambda: len(shared.ended) == count)
            self._shared.remove(shared)
        if shared.failed:
            raise shared.failed[min(shared.failed)]

    def _next_part(self, shared: _SharedWork) -> int | None:
        with self._changed:
            return shared.pending.popleft() if shared.pending else None

    def _work(self) -> None:
        _pool.set(self)
        while (task := self._next()) is not None:
            try:
                task()
            except BaseException as error:
                self._stopped_by = self._stopped_by or error
                self._tasks.clear()
            task = None  # it may hold much memory
            self._leave()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while True:
                if self._tasks:
                    task = self._tasks.popleft()
                elif shared_work := [shared for shared in self._shared if shared.pending]:
                    task = partial(shared_work[0].run, shared_work[0].pending.popleft())
                elif self._num_active:
                    self._changed.wait()
                    continue
                else:
                    return None
                self._num_active += 1
                return task

    def _leave(self) -> None:
        with self._changed:
            self._num_active -= 1
            self._changed.notify_all()


class _SharedWork:
    """Work in parts for several threads."""

    def __init__(self, work: Callable[[int, int], None], size: int, count: int) -> None:
        self.pending = deque(range(count))
        self.ended: list[int] = []
        self.failed: dict[int, BaseException] = {}
        self._work, self._size, self._count = work, size, count
        self._context = contextvars.copy_context()

    def run(self, part: int) -> None:
        """Run this part, and keep its error."""
        start, stop = self._size * part // self._count, self._size * (part + 1) // self._count
        try:
            self._context.copy().run(self._work, start, stop)
        except BaseException as error:
            self.failed[part] = error
        self.ended.append(part)


_pool: contextvars.ContextVar[_Pool | None] = contextvars.ContextVar("phlox_pool", default=None)
"""The pool that the caller's thread is part of."""
