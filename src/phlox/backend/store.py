"""A key-value store that all processes of a group reach: process 0 keeps it, the others connect to it.

It needs no engine, so processes find out what keeps them apart (a version, a seed) before an engine waits for all of
them; and it tells which process has not come, or is gone, by rank. A message is a length of four bytes and MessagePack.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
import weakref
from abc import ABC, abstractmethod
from typing import Any

import msgspec

from phlox.errors import DistributedError

LARGEST = 1 << 26
"""The most bytes of a message: the store is for what is small."""
END = "the end of the program"
"""The barrier after which a process comes to no other."""
_PATIENCE = 15.0
"""The seconds after a time limit at which process 0 must have answered that it is over."""


class Store(ABC):
    """What processes tell each other: bytes by key, and barriers."""

    @abstractmethod
    def set(self, key: str, value: bytes, reads: int | None = None) -> None:
        """Set the value of a key, which is forgotten after so many reads."""

    @abstractmethod
    def get(self, key: str, timeout: float | None = None, rank: int | None = None) -> bytes:
        """The value of a key, once it is set.

        Args:
            key: the key.
            timeout: the seconds to wait; None is the limit of the group.
            rank: the process that sets it, for the error.

        Raises `DistributedError` when the time is over, or when a process is gone.
        """

    @abstractmethod
    def peek(self, key: str) -> bytes | None:
        """The value of a key, or None while it is not set. Raises `DistributedError` when a process is gone."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Forget a key, if it is there."""

    @abstractmethod
    def barrier(self, name: str, timeout: float | None = None) -> None:
        """Wait until all processes have come to the barrier of this name, for the same time each.

        It is no collective of an engine, so it may be used beside one, on any thread. Raises `DistributedError`, which
        names the processes that have not come.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave in peace: the others need not wait for this process any more."""


class OwnStore(Store):
    """The store of a process that is alone."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._reads: dict[str, int] = {}

    def set(self, key: str, value: bytes, reads: int | None = None) -> None:
        self._values[key] = bytes(value)
        if reads is not None:
            self._reads[key] = reads

    def get(self, key: str, timeout: float | None = None, rank: int | None = None) -> bytes:
        if key not in self._values:
            raise DistributedError(f"nothing has set {key!r} in the store, and there is no other process that could")
        value = self._values[key]
        if key in self._reads:
            self._reads[key] -= 1
            if not self._reads[key]:
                self.delete(key)
        return value

    def peek(self, key: str) -> bytes | None:
        return self._values.get(key)

    def delete(self, key: str) -> None:
        self._values.pop(key, None)
        self._reads.pop(key, None)

    def barrier(self, name: str, timeout: float | None = None) -> None:
        pass

    def close(self) -> None:
        pass


def send(connection: socket.socket, message: Any) -> None:
    """Send a message."""
    data = msgspec.msgpack.encode(message)
    if len(data) > LARGEST:
        raise DistributedError(
            f"a message of {len(data):,} bytes is too large for the store (at most {LARGEST:,}); send arrays by a "
            "collective, as px.distributed.broadcast does"
        )
    connection.sendall(struct.pack(">I", len(data)) + data)


def receive(connection: socket.socket) -> Any:
    """The next message; `ConnectionError` where the other side is gone, or talks of something else."""
    (length,) = struct.unpack(">I", _exactly(connection, 4))
    if length > LARGEST:
        raise ConnectionError("not a message of a store")
    try:
        return msgspec.msgpack.decode(_exactly(connection, length))
    except msgspec.DecodeError:
        raise ConnectionError("not a message of a store") from None


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts: list[bytes] = []
    while count:
        part = connection.recv(min(count, 1 << 20))
        if not part:
            raise ConnectionError("the connection was closed")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


class SharedStore(Store):
    """The store of process 0, seen from one of the processes.

    Args:
        host, port: where process 0 keeps it.
        run: the name of the launch; a store of another launch refuses the connection.
        rank: the number of this process.
        size: how many there are.
        timeout: the seconds to wait for process 0, and the limit where none is given.
    """

    def __init__(self, host: str, port: int, run: str, rank: int, size: int, timeout: float) -> None:
        self._where = (host, port)
        self._who = [run, rank, size]
        self.timeout = timeout
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        # As long as this connection stands, process 0 knows that this process lives.
        self._alive = self._connect(timeout)
        try:
            self._tell(self._alive, ["hello", *self._who], timeout)
        except BaseException:
            self._alive.close()
            raise
        _open.add(self)

    def set(self, key: str, value: bytes, reads: int | None = None) -> None:
        self._ask(["set", key, bytes(value), reads], 30.0)

    def get(self, key: str, timeout: float | None = None, rank: int | None = None) -> bytes:
        limit = self.timeout if timeout is None else timeout
        return self._ask(["get", key, limit, -1 if rank is None else rank], limit)

    def peek(self, key: str) -> bytes | None:
        return self._ask(["peek", key], 30.0)

    def delete(self, key: str) -> None:
        self._ask(["delete", key], 30.0)

    def barrier(self, name: str, timeout: float | None = None) -> None:
        limit = self.timeout if timeout is None else timeout
        self._ask(["barrier", name, limit], limit)

    def close(self) -> None:
        try:
            self._tell(self._alive, ["goodbye"], 5.0)
        except (DistributedError, OSError):  # process 0 was faster
            pass
        self.drop()

    def drop(self) -> None:
        """Close the connections without a word."""
        _open.discard(self)
        for connection in [self._alive, *self._idle]:
            connection.close()
        self._idle.clear()

    def _connect(self, limit: float) -> socket.socket:
        end, wait = time.monotonic() + limit, 0.02
        while True:
            try:
                connection = socket.create_connection(self._where, timeout=max(min(end - time.monotonic(), 10.0), 0.1))
            except OSError as error:  # process 0 may come later
                if time.monotonic() + wait > end:
                    raise DistributedError(
                        f"process {self._who[1]} has waited {limit:g} s for process 0 at {self._at()} ({error}); is it "
                        "running there, and can it be reached?"
                    ) from error
                time.sleep(wait)
                wait = min(2 * wait, 0.5)
            else:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return connection

    def _ask(self, message: list[Any], limit: float) -> Any:
        """Send a message over a connection that is idle, or else over a new one: each thread has its own."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self._connect(min(limit, 30.0))
            self._tell(connection, ["again", *self._who], limit)
        try:
            answer = self._tell(connection, message, limit)
        except DistributedError as error:
            if not isinstance(error.__cause__, OSError):
                self._put_back(connection)
            raise
        except BaseException:  # Ctrl-C: the answer may come yet
            connection.close()
            raise
        self._put_back(connection)
        return answer

    def _put_back(self, connection: socket.socket) -> None:
        with self._lock:
            self._idle.append(connection)

    def _tell(self, connection: socket.socket, message: list[Any], limit: float) -> Any:
        try:
            connection.settimeout(limit + _PATIENCE)
            send(connection, message)
            good, answer = receive(connection)
        except OSError as error:
            connection.close()
            what = "does not answer" if isinstance(error, TimeoutError) else "is gone"
            raise DistributedError(
                f"process 0, which keeps the store at {self._at()}, {what} ({error}); process {self._who[1]} cannot "
                "go on without it"
            ) from error
        if not good:
            raise DistributedError(answer)
        return answer

    def _at(self) -> str:
        return f"{self._where[0]}:{self._where[1]}"


_open: weakref.WeakSet[SharedStore] = weakref.WeakSet()


def _in_fork() -> None:
    """A forked worker must not hold the connections of its parent open."""
    for one in list(_open):
        one.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_fork)
