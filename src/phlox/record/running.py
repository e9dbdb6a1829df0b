"""`Checksum`: a CRC-32 that is computed while what it is of is being written."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeAlias

from phlox.record.crc32 import crc32

if TYPE_CHECKING:
    from queue import SimpleQueue

BATCH = 1 << 23
"""Bytes that are given to the thread, and written, together."""
_WORTH = 1 << 20
"""Bytes that are worth waking another thread."""


class Checksum:
    """The CRC-32 of what is added to it; `int` of it waits for what is still being added up."""

    __slots__ = ("_adder", "_is_behind", "_value")

    def __init__(self, adder: Adder, start: int) -> None:
        self._adder = adder
        self._is_behind = False
        self._value = start

    def add(self, data: memoryview, *, later: bool = False) -> None:
        """Goes on with `data`: now, or `later` on another core; then nobody may change it before `int` is asked."""
        if later:
            self._is_behind = True
            self._adder.give(self, data)
        else:
            self._value = crc32(data, int(self))

    def catch_up(self, data: memoryview) -> None:
        """Goes on with what was to be added later."""
        self._value = crc32(data, self._value, spare=1)  # the writer's

    def __int__(self) -> int:
        if self._is_behind:
            self._adder.finish()
            self._is_behind = False
        return self._value


class Adder:
    """Adds up on a thread of its own what is worth one: neither that nor writing holds the interpreter.

    What has been given is kept until it is added up: at most one piece of any size, and less than 16 MiB besides.
    """

    __slots__ = ("_batches", "_bytes", "_done", "_failure", "_open", "_waiting")

    def __init__(self) -> None:
        self._waiting: _Batch = []
        self._bytes = 0
        self._batches: SimpleQueue[_Batch | None] | None = None
        self._done: SimpleQueue[None] | None = None
        self._open = 0
        """The number of batches given to the thread and not known to be done."""
        self._failure: BaseException | None = None

    def make_room(self, size: int) -> None:
        """Waits where there is too little for so many bytes; to be called before they are read, to be given."""
        if self._bytes + size >= BATCH:
            self._wait()

    def give(self, checksum: Checksum, data: memoryview) -> None:
        """Has `checksum` go on with `data`, after all that was given before."""
        self._waiting.append((checksum, data))
        self._bytes += len(data)
        if self._bytes >= BATCH:
            self.start()

    def start(self) -> None:
        """Has the thread begin with what was given, if it is worth that: to be called before what takes its time."""
        if self._bytes < _WORTH:
            return
        if self._batches is None:
            from queue import SimpleQueue  # only for writing: to load, less is needed

            self._batches, self._done = SimpleQueue(), SimpleQueue()
            threading.Thread(target=self._work, args=(self._batches, self._done), daemon=True).start()
        self._batches.put(self._waiting)
        self._open += 1
        self._waiting, self._bytes = [], 0

    def finish(self) -> None:
        """Until everything is added up. Raises what the thread has raised."""
        self._wait()
        if self._failure is not None:
            raise self._failure
        _add_up(self._waiting)
        self._waiting, self._bytes = [], 0

    def close(self) -> None:
        """Ends the thread; what it has not begun is left."""
        if self._batches is not None:
            self._batches.put(None)

    def _wait(self) -> None:
        while self._done is not None and self._open:
            self._done.get()
            self._open -= 1

    def _work(self, batches: SimpleQueue[_Batch | None], done: SimpleQueue[None]) -> None:
        while (batch := batches.get()) is not None:
            try:
                _add_up(batch)
            except BaseException as error:
                self._failure = error
            del batch  # or else it is kept until there is another one
            done.put(None)


_Batch: TypeAlias = list[tuple[Checksum, memoryview]]


def _add_up(batch: _Batch) -> None:
    for checksum, data in batch:
        checksum.catch_up(data)
