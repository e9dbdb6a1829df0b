"""Work on host memory on several cores: NumPy and zlib use one, and release the interpreter lock while they do.

Starting a thread takes a tenth of a millisecond or more, so there is one only where it is worth that.
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

    Context variables are the caller's in every thread. Inside a `parallel_for` or `parallel_map` no more threads are
    started: those that are idle take parts, and the caller takes all others.

    Args:
        work: must be able to run in several threads.
        size: of the whole.
        least: the size of a part that is worth a thread.
        most: the number of parts at most, for instance since each needs memory of its own.

    Raises what the first part that fails raises, once all have ended.

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

    The parts of a `parallel_for` inside of `work` are taken by threads that have nothing else to do.

    Args:
        work: must be able to run in several threads.
        sizes: how much there is to do for each.
        least: the amount, of all of it together, that is worth a thread.
        most: how many run at the same time at most.
        large: those larger than this run one after the other, for instance since each takes so much memory.
        in_order: those that are not large start in the order given.

    Raises what the first one that fails raises, as a loop would; some of those after it have been tried by then.

    >>> parallel_map(lambda i: 10 * i, [1, 1, 1], least=2)
    [0, 10, 20]
    """
    to_do = sum(sizes)
    if to_do < 2 * least:
        return [work(i) for i in range(len(sizes))]
    places = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    one_by_one = 0 if large is None else sum(size > large for size in sizes)
    if in_order:
        places[one_by_one:] = sorted(places[one_by_one:])
    made: dict[int, _T] = {}
    failed: dict[int, Exception] = {}

    def take(*numbers: int) -> None:
        for i in numbers:
            if failed and i > min(tuple(failed)):
                continue  # only those before it matter any more
            try:
                made[i] = work(i)
            except Exception as error:
                failed[i] = error

    most = min(most, cores()) if _pool.get() is None else 1
    if most < 2:
        take(*places)
    else:
        tasks = [partial(take, i) for i in places]
        if one_by_one:
            tasks[:one_by_one] = [partial(take, *places[:one_by_one])]
        with _Pool(tasks, min(most, to_do // least)):
            pass
    if failed:
        raise failed[min(failed)]
    return [made[i] for i in range(len(sizes))]


class _Pool:
    """Threads that take tasks until none is left, and then parts of what others share, until all are idle.

    The thread that enters the scope becomes one of them when it leaves it.
    """

    def __init__(self, tasks: Sequence[Callable[[], None]], count: int) -> None:
        self._waiting = deque(tasks)
        self._shared: list[_Shared] = []
        self._changed = threading.Condition()
        self._at_work = 1
        self._stopped_by: BaseException | None = None
        self._count = count
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> _Pool:
        self._token = _pool.set(self)
        with contextlib.suppress(RuntimeError):  # the system has no more threads; those that there are do it all
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
        """`work` in so many parts: the caller takes the first, and all that no idle thread takes."""
        shared = _Shared(work, size, count)
        first = shared.left.popleft()
        with self._changed:
            self._shared.append(shared)
            self._changed.notify_all()
        shared.run(first)
        while (part := self._part_of(shared)) is not None:
            shared.run(part)
        with self._changed:
            self._changed.wait_for(lambda: len(shared.ended) == count)
            self._shared.remove(shared)
        if shared.failed:
            raise shared.failed[min(shared.failed)]

    def _part_of(self, shared: _Shared) -> int | None:
        with self._changed:
            return shared.left.popleft() if shared.left else None

    def _work(self) -> None:
        _pool.set(self)
        while (task := self._next()) is not None:
            try:
                task()
            except BaseException as error:
                self._stopped_by = self._stopped_by or error
                self._waiting.clear()
            task = None  # which may hold much
            self._leave()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while True:
                if self._waiting:
                    task = self._waiting.popleft()
                elif left := [shared for shared in self._shared if shared.left]:
                    task = partial(left[0].run, left[0].left.popleft())
                elif self._at_work:
                    self._changed.wait()
                    continue
                else:
                    return None
                self._at_work += 1
                return task

    def _leave(self) -> None:
        with self._changed:
            self._at_work -= 1
            self._changed.notify_all()


class _Shared:
    """Work in parts, which several threads take."""

    def __init__(self, work: Callable[[int, int], None], size: int, count: int) -> None:
        self.left = deque(range(count))
        self.ended: list[int] = []
        self.failed: dict[int, BaseException] = {}
        self._work, self._size, self._count = work, size, count
        self._context = contextvars.copy_context()

    def run(self, part: int) -> None:
        """Run this part, and keep what it raises."""
        start, stop = self._size * part // self._count, self._size * (part + 1) // self._count
        try:
            self._context.copy().run(self._work, start, stop)
        except BaseException as error:
            self.failed[part] = error
        self.ended.append(part)


_pool: contextvars.ContextVar[_Pool | None] = contextvars.ContextVar("phlox_pool", default=None)
"""The pool that the caller's thread is part of."""
