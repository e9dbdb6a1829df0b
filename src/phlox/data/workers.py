"""Batches made in the background, by threads or processes, and given out in order.

`in_order(make, numbers, ...)` is all that a loader needs: `make(number)` for each number, some of them ahead.
"""

from __future__ import annotations

import contextlib
import inspect
import linecache
import multiprocessing
import pickle
import sys
import threading
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from multiprocessing.connection import Connection, wait
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from phlox.errors import DataError, DataWarning

Make = Callable[[Any], Any]

_GUARD = "put what makes the loader and trains below `if __name__ == '__main__':`"
_CAUSES = 8
"""So many causes of an error are kept on its way through a pipe."""


class Failure(NamedTuple):
    """An exception of a worker, on its way to who asked for the batch."""

    error: BaseException


class _Sent(NamedTuple):
    """An exception and its causes on their way through a pipe, each as a pickle of itself or of what it is made of."""

    errors: list[bytes]

    def failure(self) -> Failure:
        loaded: list[Any] = [pickle.loads(one) for one in self.errors]  # noqa: S301 (from a process of our own)
        errors: list[BaseException] = [_rebuilt(one) for one in loaded]
        for error, cause in pairwise(errors):
            error.__cause__ = cause
        return Failure(errors[0])


def _rebuilt(sent: Any) -> BaseException:
    """An exception, or one whose constructor takes other arguments than it keeps, of its class, arguments and state."""
    if isinstance(sent, BaseException):
        return sent
    kind, arguments, state = sent
    error: BaseException = kind.__new__(kind, *arguments)
    error.__dict__.update(state)
    return error


class Workers(ABC):
    """Those who make batches. Tasks are any values that tell one batch from another."""

    count: int

    @abstractmethod
    def submit(self, task: Any) -> None:
        """Have this made, when somebody has time."""

    @abstractmethod
    def receive(self, timeout: float) -> list[tuple[Any, Any]]:
        """The finished batches, each with its task; waits at most `timeout` seconds for one."""

    @abstractmethod
    def replace_hung(self, task: Any, timeout: float) -> None:
        """This task has taken longer than `timeout` seconds."""

    @abstractmethod
    def close(self) -> None:
        """End them all; returns when none is left."""


class Threads(Workers):
    """Threads of this process. NumPy, decoders and files let others run, so they share the work of most transforms."""

    def __init__(self, make: Make, count: int) -> None:
        self.count = count
        self._make = make
        self._tasks: SimpleQueue[tuple[Any] | None] = SimpleQueue()
        self._made: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
        self._hung: set[Any] = set()
        self._late: set[Any] = set()
        self._threads = [self._begin() for _ in range(count)]

    def _begin(self) -> threading.Thread:
        # A daemon, so that a thread that hangs in a transform does not keep the program from ending.
        thread = threading.Thread(target=self._work, name="phlox loader", daemon=True)
        thread.start()
        return thread

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                made = self._make(*task)
            except BaseException as error:  # the one who iterates raises it
                made = Failure(error)
            self._made.put((task[0], made))
            del made, task

    def submit(self, task: Any) -> None:
        self._tasks.put((task,))

    def receive(self, timeout: float) -> list[tuple[Any, Any]]:
        found = list[tuple[Any, Any]]()
        with contextlib.suppress(Empty):
            found.append(self._made.get(timeout=timeout))
            while True:
                found.append(self._made.get_nowait())
        return [(task, made) for task, made in found if self._is_wanted(task)]

    def _is_wanted(self, task: Any) -> bool:
        """Is it the first batch of this task? A thread that hung may come back when another one has made its batch."""
        if task in self._late:
            self._late.remove(task)
            return False
        if task in self._hung:
            self._hung.remove(task)
            self._late.add(task)
        return True

    def replace_hung(self, task: Any, timeout: float) -> None:
        warnings.warn(
            f"a loader's thread has been at {task} for {timeout:g} s; another one takes its place, and makes that "
            "batch again. A thread cannot be ended: with worker_type='process' it would be",
            DataWarning,
            stacklevel=2,
        )
        self._hung.add(task)
        self._threads.append(self._begin())
        self.submit(task)

    def close(self) -> None:
        with contextlib.suppress(Empty):
            while True:
                self._tasks.get_nowait()
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join(0.0 if self._hung or self._late else None)


class _Process:
    """One worker process, and its tasks."""

    def __init__(self, context: Any, made_by: bytes) -> None:
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, made_by), name="phlox loader", daemon=True)
        self.process.start()
        theirs.close()
        self.asked: deque[Any] = deque()
        self.is_ready = False
        """Has it loaded what makes the batches? Until then it is not hung, however long that takes."""


class Processes(Workers):
    """Processes, for transforms in plain Python. They are started by a server of their own, never forked from this one.

    (A fork copies the locks of threads that it does not copy, such as those of JAX.) What makes the batches is pickled
    once for each process; the batches come back through a pipe.
    """

    _AHEAD = 2
    _DEATHS = 3

    def __init__(self, make: Make, count: int) -> None:
        self.count = count
        self._context = multiprocessing.get_context(
            "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        )
        try:
            self._made_by = pickle.dumps(make)
        except Exception as error:
            raise DataError(
                f"a loader with worker_type='process' sends its source, transforms and collate to its processes, and "
                f"one of them cannot be pickled: {error}; use functions of a module, or threads"
            ) from error
        _check_guard()
        self._waiting: deque[Any] = deque()
        self._deaths: dict[Any, int] = {}
        self._failed: list[tuple[Any, Any]] = []
        self._has_begun = False
        """Has any process got so far that it makes batches?"""
        self._workers = [self._begin() for _ in range(count)]

    def _begin(self) -> _Process:
        return _Process(self._context, self._made_by)

    def submit(self, task: Any) -> None:
        self._waiting.append(task)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting:
            idlest = min(self._workers, key=lambda worker: len(worker.asked))
            if len(idlest.asked) >= self._AHEAD:
                return
            task = self._waiting.popleft()
            idlest.asked.append(task)
            with contextlib.suppress(OSError):  # it has died: `receive` finds out
                idlest.connection.send(task)

    def receive(self, timeout: float) -> list[tuple[Any, Any]]:
        found = list[tuple[Any, Any]]()
        ready = wait([worker.connection for worker in self._workers], 0.0 if self._failed else timeout)
        for place, worker in enumerate(self._workers):
            if worker.connection not in ready:
                continue
            try:
                made = _received(worker.connection)
            except (EOFError, OSError):
                self._replace(place, "died")
                continue
            if worker.is_ready:
                found.append((worker.asked.popleft(), made.failure() if isinstance(made, _Sent) else made))
            worker.is_ready = self._has_begun = True
        found += self._failed
        self._failed.clear()
        self._hand_out()
        return found

    def _replace(self, place: int, what: str) -> None:
        """Another process in the place of one, with its tasks; the first fails, if it has cost several processes."""
        worker = self._workers[place]
        worker.connection.close()
        worker.process.join(1.0 if what == "died" else 0.0)
        worker.process.kill()
        worker.process.join()
        tasks = list(worker.asked)
        if what == "died" and not self._has_begun:
            raise DataError(
                f"a process of the loader ended before it began (exit code {worker.process.exitcode}); each runs the "
                f"script that started it: {_GUARD} (or see the error of that process above)"
            )
        deaths = self._deaths[tasks[0] if tasks else None] = self._deaths.get(tasks[0] if tasks else None, 0) + 1
        during = f" while it made {tasks[0]}" if tasks else ""
        said = f"a process of the loader {what} (exit code {worker.process.exitcode}){during}"
        if deaths < self._DEATHS:
            warnings.warn(f"{said}; another one takes its place", DataWarning, stacklevel=2)
        else:
            error = DataError(f"{said}, and so did {deaths - 1} before it; try workers=0 to see why")
            if not tasks:
                raise error
            self._failed.append((tasks.pop(0), Failure(error)))
        self._workers[place] = self._begin()
        self._waiting.extendleft(reversed(tasks))

    def replace_hung(self, task: Any, timeout: float) -> None:
        for place, worker in enumerate(self._workers):
            if task in worker.asked and worker.is_ready:
                self._replace(place, f"made nothing for {timeout:g} s")
        self._hand_out()

    def close(self) -> None:
        for worker in self._workers:
            worker.connection.close()  # which ends it, when it looks for its next task
        for worker in self._workers:
            worker.process.join(0.2)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers.clear()


def _received(connection: Connection) -> Any:
    """A batch: its pickle, then the memory of its arrays, which is read to where it stays."""
    header, sizes = pickle.loads(connection.recv_bytes())  # noqa: S301 (from a process of our own)
    buffers = [bytearray(size) for size in sizes]
    for buffer in buffers:
        if buffer:
            connection.recv_bytes_into(buffer)
    return pickle.loads(header, buffers=buffers)  # noqa: S301


def _send(connection: Connection, made: Any) -> None:
    """See `_received`."""
    buffers = list[pickle.PickleBuffer]()
    try:
        header = pickle.dumps(made, protocol=5, buffer_callback=buffers.append)
        raw = [buffer.raw() for buffer in buffers]
    except Exception as error:
        said = (
            f"a process of the loader cannot send its batch: {error}; return arrays, numbers and texts, or use threads"
        )
        _send(connection, _sendable(DataError(said)))
        return
    connection.send_bytes(pickle.dumps((header, [len(part) for part in raw])))
    for part in raw:
        if part.nbytes:
            connection.send_bytes(part)


def _serve(connection: Connection, made_by: bytes) -> None:
    """The main loop of a process: makes the requested batches until its input ends."""
    try:
        make: Any = pickle.loads(made_by)  # noqa: S301
    except BaseException as error:
        make = _raises(error)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):  # who asked has gone
        _send(connection, None)  # ready
        while True:
            task = connection.recv()
            try:
                made = make(task)
            except Exception as error:
                made = _sendable(error)
            _send(connection, made)


def _raises(error: BaseException) -> Make:
    def make(_: Any) -> Any:
        raise DataError(f"a process of the loader could not load what makes the batches: {error}")

    return make


def _sendable(error: BaseException) -> _Sent:
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        error.add_note(f"in a process of the loader, at {frames[-1].filename}:{frames[-1].lineno}, {frames[-1].name}")
    errors, one = list[bytes](), error
    while one is not None and len(errors) < _CAUSES:
        errors.append(_pickled(one))
        one = one.__cause__
    return _Sent(errors)


def _pickled(error: BaseException) -> bytes:
    for what in (error, (type(error), error.args, vars(error))):
        try:
            sent = pickle.dumps(what)
            str(_rebuilt(pickle.loads(sent)))  # noqa: S301
            return sent
        except Exception:  # whatever a class of the user's meets
            continue
    plain = DataError(f"{type(error).__name__}: {error}")
    for note in getattr(error, "__notes__", []):
        plain.add_note(note)
    return pickle.dumps(plain)


def _check_guard() -> None:
    """Refuse to start processes from a script without a guard: each of them would run it as a whole.

    What is guarded by halves shows when the first process ends before it began.
    """
    main: Any = sys.modules.get("__main__")
    path, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if not path or (spec is not None and spec.name.rpartition(".")[2] == "__main__"):  # a process does not run it
        return
    frame = inspect.currentframe()
    while frame is not None and not (frame.f_code.co_name == "<module>" and frame.f_globals is main.__dict__):
        frame = frame.f_back
    text = "".join(linecache.getlines(path)) if frame is not None else ""
    if text and not any(name in text for name in ("__main__", "parent_process", "current_process")):
        raise DataError(f"a loader with worker_type='process' starts processes that run {path} again; {_GUARD}")


KINDS: dict[str, Callable[[Make, int], Workers]] = {"thread": Threads, "process": Processes}


def in_order(
    workers: Workers, tasks: Iterator[Any], ahead: int, timeout: float, is_over: Callable[[], bool] = lambda: False
) -> Iterator[tuple[Any, Any]]:
    """Each task with its batch, in order, with up to `ahead` tasks running ahead of the returned ones.

    A batch that takes longer than `timeout` seconds is made once more by another worker, which is warned of. Whoever
    takes the batches in another thread ends it by `is_over`.
    """
    pending: deque[Any] = deque()
    made: dict[Any, Any] = {}
    while True:
        while len(pending) <= ahead:
            task = next(tasks, None)
            if task is None:
                break
            pending.append(task)
            workers.submit(task)
        if not pending:
            return
        first = pending.popleft()
        since = time.monotonic()
        while first not in made:
            made.update(workers.receive(min(timeout, 1.0)))
            if is_over():
                return
            if first not in made and time.monotonic() - since >= timeout:
                workers.replace_hung(first, timeout)
                since = time.monotonic()
        found = made.pop(first)
        if isinstance(found, Failure):
            raise found.error
        yield first, found
        del found
