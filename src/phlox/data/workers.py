"""Threads and processes that make batches in the background, and the iteration over these batches in order.

`in_order(workers, tasks, ...)` is all that a loader needs: it yields each task with its batch, and has some made ahead.
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

_GUARD = "put the code that makes the loader and trains below `if __name__ == '__main__':`"
_CAUSES = 8
"""The number of causes that are sent with an error through a pipe."""


class Failure(NamedTuple):
    """An exception of a worker, which the consumer of the batches raises."""

    error: BaseException


class _PickledError(NamedTuple):
    """An exception and its causes, each pickled as itself, or as its class, arguments and state."""

    errors: list[bytes]

    def failure(self) -> Failure:
        unpickled: list[Any] = [pickle.loads(error) for error in self.errors]  # noqa: S301 (from a process of our own)
        errors: list[BaseException] = [_to_exception(cause) for cause in unpickled]
        for error, cause in pairwise(errors):
            error.__cause__ = cause
        return Failure(errors[0])


def _to_exception(unpickled: Any) -> BaseException:
    """The exception; made of class, arguments and state if its constructor takes other arguments than it keeps."""
    if isinstance(unpickled, BaseException):
        return unpickled
    kind, arguments, state = unpickled
    error: BaseException = kind.__new__(kind, *arguments)
    error.__dict__.update(state)
    return error


class Workers(ABC):
    """Threads or processes that make batches. A task is any value that identifies a batch."""

    count: int

    @abstractmethod
    def submit(self, task: Any) -> None:
        """Queue this task for the next free worker."""

    @abstractmethod
    def receive(self, timeout: float) -> list[tuple[Any, Any]]:
        """The finished batches, each with its task; waits at most `timeout` seconds for one."""

    @abstractmethod
    def replace_hung(self, task: Any, timeout: float) -> None:
        """This task has taken longer than `timeout` seconds."""

    @abstractmethod
    def close(self) -> None:
        """End all workers; returns when none is left."""


class Threads(Workers):
    """Threads of this process. NumPy, decoders and files release the GIL, so most transforms run in parallel."""

    def __init__(self, make: Make, count: int) -> None:
        self.count = count
        self._make = make
        self._tasks: SimpleQueue[tuple[Any] | None] = SimpleQueue()
        self._results: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
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
                result = self._make(*task)
            except BaseException as error:  # the iterating thread raises it
                result = Failure(error)
            self._results.put((task[0], result))
            del result, task

    def submit(self, task: Any) -> None:
        self._tasks.put((task,))

    def receive(self, timeout: float) -> list[tuple[Any, Any]]:
        results = list[tuple[Any, Any]]()
        with contextlib.suppress(Empty):
            results.append(self._results.get(timeout=timeout))
            while True:
                results.append(self._results.get_nowait())
        return [(task, result) for task, result in results if self._is_first_result(task)]

    def _is_first_result(self, task: Any) -> bool:
        """Is it the first batch of this task? A thread that hung may finish after another thread made its batch."""
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
            "batch again. A thread cannot be ended; a process can: worker_type='process'",
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

    def __init__(self, context: Any, pickled_make: bytes) -> None:
        self.connection, child_end = context.Pipe()
        self.process = context.Process(target=_serve, args=(child_end, pickled_make), name="phlox loader", daemon=True)
        self.process.start()
        child_end.close()
        self.tasks: deque[Any] = deque()
        self.is_ready = False
        """Has it loaded the function that makes batches? Until then, no time limit applies."""


class Processes(Workers):
    """Processes, for transforms in plain Python. A fork server starts them; they are never forked from this process.

    (A fork copies locks, such as those of JAX, but not the threads that hold them.) The function that makes batches is
    sent once to each process as a pickle; the batches come back through a pipe.
    """

    _AHEAD = 2
    _DEATHS = 3

    def __init__(self, make: Make, count: int) -> None:
        self.count = count
        self._context = multiprocessing.get_context(
            "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        )
        try:
            self._pickled_make = pickle.dumps(make)
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
        """Has any process started to make batches?"""
        self._workers = [self._begin() for _ in range(count)]

    def _begin(self) -> _Process:
        return _Process(self._context, self._pickled_make)

    def submit(self, task: Any) -> None:
        self._waiting.append(task)
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting:
            idlest = min(self._workers, key=lambda worker: len(worker.tasks))
            if len(idlest.tasks) >= self._AHEAD:
                return
            task = self._waiting.popleft()
            idlest.tasks.append(task)
            with contextlib.suppress(OSError):  # it has died; `receive` will notice
                idlest.connection.send(task)

    def receive(self, timeout: float) -> list[tuple[Any, Any]]:
        results = list[tuple[Any, Any]]()
        ready = wait([worker.connection for worker in self._workers], 0.0 if self._failed else timeout)
        for index, worker in enumerate(self._workers):
            if worker.connection not in ready:
                continue
            try:
                batch = _receive(worker.connection)
            except (EOFError, OSError):
                self._replace(index, "died")
                continue
            if worker.is_ready:
                results.append((worker.tasks.popleft(), batch.failure() if isinstance(batch, _PickledError) else batch))
            worker.is_ready = self._has_begun = True
        results += self._failed
        self._failed.clear()
        self._hand_out()
        return results

    def _replace(self, index: int, reason: str) -> None:
        """Replace a process and queue its tasks again; a task at which several processes have ended fails."""
        worker = self._workers[index]
        worker.connection.close()
        worker.process.join(1.0 if reason == "died" else 0.0)
        worker.process.kill()
        worker.process.join()
        tasks = list(worker.tasks)
        if reason == "died" and not self._has_begun:
            raise DataError(
                f"a process of the loader ended before it began (exit code {worker.process.exitcode}); each runs the "
                f"script that started it: {_GUARD} (or see the error of that process above)"
            )
        deaths = self._deaths[tasks[0] if tasks else None] = self._deaths.get(tasks[0] if tasks else None, 0) + 1
        during = f" while it made {tasks[0]}" if tasks else ""
        summary = f"a process of the loader {reason} (exit code {worker.process.exitcode}){during}"
        if deaths < self._DEATHS:
            warnings.warn(f"{summary}; another one takes its place", DataWarning, stacklevel=2)
        else:
            error = DataError(f"{summary}, and so did {deaths - 1} before it; try workers=0 to see why")
            if not tasks:
                raise error
            self._failed.append((tasks.pop(0), Failure(error)))
        self._workers[index] = self._begin()
        self._waiting.extendleft(reversed(tasks))

    def replace_hung(self, task: Any, timeout: float) -> None:
        for index, worker in enumerate(self._workers):
            if task in worker.tasks and worker.is_ready:
                self._replace(index, f"made nothing for {timeout:g} s")
        self._hand_out()

    def close(self) -> None:
        for worker in self._workers:
            worker.connection.close()  # the process ends when it asks for its next task
        for worker in self._workers:
            worker.process.join(0.2)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
        self._workers.clear()


def _receive(connection: Connection) -> Any:
    """Receive a batch: its pickle, then the memory of its arrays, which is read directly into their buffers."""
    header, sizes = pickle.loads(connection.recv_bytes())  # noqa: S301 (from a process of our own)
    buffers = [bytearray(size) for size in sizes]
    for buffer in buffers:
        if buffer:
            connection.recv_bytes_into(buffer)
    return pickle.loads(header, buffers=buffers)  # noqa: S301


def _send(connection: Connection, result: Any) -> None:
    """Send a batch as `_receive` reads it."""
    buffers = list[pickle.PickleBuffer]()
    try:
        header = pickle.dumps(result, protocol=5, buffer_callback=buffers.append)
        raw = [buffer.raw() for buffer in buffers]
    except Exception as error:
        message = (
            f"a process of the loader cannot send its batch: {error}; return arrays, numbers and texts, or use threads"
        )
        _send(connection, _pickle_error(DataError(message)))
        return
    connection.send_bytes(pickle.dumps((header, [len(part) for part in raw])))
    for part in raw:
        if part.nbytes:
            connection.send_bytes(part)


def _serve(connection: Connection, pickled_make: bytes) -> None:
    """The main loop of a process: makes the requested batches until its input ends."""
    try:
        make: Any = pickle.loads(pickled_make)  # noqa: S301
    except BaseException as error:
        make = _raises(error)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):  # the parent has ended
        _send(connection, None)  # ready
        while True:
            task = connection.recv()
            try:
                result = make(task)
            except Exception as error:
                result = _pickle_error(error)
            _send(connection, result)


def _raises(error: BaseException) -> Make:
    def make(_: Any) -> Any:
        raise DataError(f"a process of the loader could not load the function that makes batches: {error}")

    return make


def _pickle_error(error: BaseException) -> _PickledError:
    frames = traceback.extract_tb(error.__traceback__)
    if frames:
        error.add_note(f"in a process of the loader, at {frames[-1].filename}:{frames[-1].lineno}, {frames[-1].name}")
    errors, current = list[bytes](), error
    while current is not None and len(errors) < _CAUSES:
        errors.append(_pickle(current))
        current = current.__cause__
    return _PickledError(errors)


def _pickle(error: BaseException) -> bytes:
    for form in (error, (type(error), error.args, vars(error))):
        try:
            data = pickle.dumps(form)
            str(_to_exception(pickle.loads(data)))  # noqa: S301
            return data
        except Exception:  # a user's class may raise anything
            continue
    plain = DataError(f"{type(error).__name__}: {error}")
    for note in getattr(error, "__notes__", []):
        plain.add_note(note)
    return pickle.dumps(plain)


def _check_guard() -> None:
    """Refuse to start processes from a script without a guard: each process would run the whole script.

    A script that is only partly guarded is found later: its first process ends before it has begun.
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

    If a batch takes longer than `timeout` seconds, a warning is given, and another worker makes it again. A consumer in
    another thread ends the iteration by `is_over`.
    """
    pending: deque[Any] = deque()
    finished: dict[Any, Any] = {}
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
        while first not in finished:
            finished.update(workers.receive(min(timeout, 1.0)))
            if is_over():
                return
            if first not in finished and time.monotonic() - since >= timeout:
                workers.replace_hung(first, timeout)
                since = time.monotonic()
        result = finished.pop(first)
        if isinstance(result, Failure):
            raise result.error
        yield first, result
        del result
