"""A key-value store that all processes of a group reach: process 0 keeps it, the others connect to it.

It needs no engine, so processes find differences (a version, a seed) before an engine waits for all of them; and it
reports by rank which process has not arrived, or is gone. `phlox.backend.greeting` has the protocol, by which processes
also prove that they belong to one launch.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from phlox.backend.addresses import join_address
from phlox.backend.greeting import LONGEST_WAIT, Codec, answers, framed, greet
from phlox.errors import DistributedError

END = "the end of the program"
"""The last barrier of a process."""
LONGEST_KEY = 1024
"""The most characters of a key, or of the name of a barrier."""
_PATIENCE = 15.0
"""The seconds after a time limit within which process 0 must report the timeout."""
_NAMES = 30.0
"""The seconds for which a name need not resolve: a cluster may create it while processes start."""


class Store(ABC):
    """Values that processes exchange, bytes by key, and barriers."""

    @abstractmethod
    def set(self, key: str, value: bytes, reads: int | None = None) -> None:
        """Set the value of a key, which is deleted after `reads` reads."""

    @abstractmethod
    def get(self, key: str, timeout: float | None = None, rank: int | None = None) -> bytes:
        """The value of a key, once it is set.

        Args:
            key: the key.
            timeout: the seconds to wait; None is the limit of the group.
            rank: the process that sets it, for the error.

        Raises `DistributedError` after the timeout, or when a process is gone.
        """

    @abstractmethod
    def peek(self, key: str) -> bytes | None:
        """The value of a key, or None while it is not set. Raises `DistributedError` when a process is gone."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete a key, if it is set."""

    @abstractmethod
    def barrier(self, name: str, timeout: float | None = None) -> None:
        """Wait until all processes have reached the barrier of this name, as often as this process.

        It is no collective of an engine, so any thread may use it, even during a collective. Raises `DistributedError`,
        which names the processes that have not arrived.
        """

    @abstractmethod
    def close(self) -> None:
        """Leave properly: the other processes do not wait for this process any more."""


class OwnStore(Store):
    """The store of a single process."""

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


Key = Annotated[str, msgspec.Meta(max_length=LONGEST_KEY)]
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=LONGEST_WAIT)]


class Message(msgspec.Struct, array_like=True, tag=str.lower, forbid_unknown_fields=True, frozen=True):
    """A request of a process to the store."""


class Goodbye(Message, frozen=True):
    """This process leaves properly."""


class Set(Message, frozen=True):
    """See `Store.set`."""

    key: Key
    value: bytes
    reads: Annotated[int, msgspec.Meta(ge=1)] | None


class Delete(Message, frozen=True):
    """See `Store.delete`."""

    key: Key


class Get(Message, frozen=True):
    """See `Store.get`."""

    key: Key
    timeout: Seconds
    owner: int


class Peek(Message, frozen=True):
    """See `Store.peek`."""

    key: Key


class Barrier(Message, frozen=True):
    """See `Store.barrier`."""

    name: Key
    timeout: Seconds


class Lost(Message, frozen=True):
    """See `SharedStore.lost`."""

    timeout: Seconds


_Any: TypeAlias = Goodbye | Set | Delete | Get | Peek | Barrier | Lost
messages = Codec[_Any](_Any)


class SharedStore(Store):
    """The store of process 0, seen from one of the processes.

    Args:
        host, port: the address of process 0's store.
        secret: the secret of the launch, or a function for it; a store of another launch refuses the connection.
        rank: the number of this process.
        size: the number of processes.
        timeout: the seconds to wait for process 0, and the default limit.
        named: the variables that have the address of process 0, for errors.
    """

    def __init__(
        self,
        host: str,
        port: int,
        secret: str | Callable[[], str],
        rank: int,
        size: int,
        timeout: float,
        named: str = "",
    ) -> None:
        self._named = self._peer = (host, port)
        self._secret = secret
        self._hint = f" (it was named by {named})" if named else ""
        self._rank, self._size = rank, size
        self.timeout = timeout = min(timeout, LONGEST_WAIT)
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        # While this connection is open, process 0 knows that this process lives.
        self._alive = self._connect("hello", timeout)
        # Further connections go to the address at which the store has proved its launch.
        self._peer = self._alive.getpeername()[:2]
        _open.add(self)

    @property
    def host(self) -> str:
        """The address of process 0."""
        return self._peer[0]

    def set(self, key: str, value: bytes, reads: int | None = None) -> None:
        self._ask(Set(_checked_key(key), bytes(value), reads), 30.0)

    def get(self, key: str, timeout: float | None = None, rank: int | None = None) -> bytes:
        limit = self._limit(timeout)
        return self._ask(Get(_checked_key(key), limit, -1 if rank is None else rank), limit)

    def peek(self, key: str) -> bytes | None:
        return self._ask(Peek(_checked_key(key)), 30.0)

    def delete(self, key: str) -> None:
        self._ask(Delete(_checked_key(key)), 30.0)

    def barrier(self, name: str, timeout: float | None = None) -> None:
        limit = self._limit(timeout)
        self._ask(Barrier(_checked_key(name), limit), limit)

    def lost(self, timeout: float) -> bool:
        """Has another process gone or ended? Waits for up to `timeout` seconds until one has."""
        try:
            return bool(self._ask(Lost(timeout), timeout, patience=1.0))
        except DistributedError:  # process 0 is gone
            return True

    def close(self) -> None:
        try:
            self._request(self._alive, Goodbye(), 5.0)
        except (DistributedError, OSError):  # process 0 was faster
            pass
        self.drop()

    def drop(self) -> None:
        """Close the connections without a message."""
        _open.discard(self)
        for connection in [self._alive, *self._idle]:
            connection.close()
        self._idle.clear()

    def _limit(self, timeout: float | None) -> float:
        return max(0.0, min(self.timeout if timeout is None else timeout, LONGEST_WAIT))

    def _key(self) -> str:
        if not isinstance(self._secret, str):
            self._secret = self._secret()
        return self._secret

    def _connect(self, word: Literal["hello", "again"], limit: float) -> socket.socket:
        """A connection on which both sides have proved their launch."""
        start, wait = time.monotonic(), 0.02
        end = start + limit
        while True:
            connection = None
            try:
                connection = socket.create_connection(self._peer, timeout=max(min(end - time.monotonic(), 10.0), 0.1))
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # The socket may listen long before process 0 reads from it.
                greet(connection, self._key, word, self._rank, self._size, max(end, time.monotonic() + _PATIENCE))
            except BaseException as error:
                if connection is not None:
                    connection.close()
                if isinstance(error, DistributedError):
                    raise DistributedError(f"process {self._rank}, at {self._at()}: {error}") from error
                if not isinstance(error, OSError):
                    raise
                unknown = isinstance(error, socket.gaierror)
                if time.monotonic() + wait > (min(end, start + _NAMES) if unknown else end):  # it may come later
                    asks = "does the name exist there?" if unknown else "is it running there, and can it be reached?"
                    waited = min(limit, _NAMES) if unknown else limit
                    raise DistributedError(
                        f"process {self._rank} has waited {waited:g} s for process 0 at {self._at()} ({error}); "
                        f"{asks}{self._hint}"
                    ) from error
                time.sleep(wait)
                wait = min(2 * wait, 0.5)
            else:
                return connection

    def _ask(self, message: Message, limit: float, patience: float = _PATIENCE) -> Any:
        """Send a message over an idle connection, or over a new one if none is idle, since threads share none."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self._connect("again", max(min(limit, 30.0), patience))
        try:
            answer = self._request(connection, message, limit, patience)
        except DistributedError as error:
            if not isinstance(error.__cause__, OSError):
                self._put_back(connection)
            raise
        except BaseException:  # Ctrl-C: the answer may still arrive
            connection.close()
            raise
        self._put_back(connection)
        return answer

    def _put_back(self, connection: socket.socket) -> None:
        with self._lock:
            self._idle.append(connection)

    def _request(self, connection: socket.socket, message: Message, limit: float, patience: float = _PATIENCE) -> Any:
        data = framed(message)
        end = time.monotonic() + limit + patience
        try:
            connection.settimeout(limit + patience)
            connection.sendall(data)
            answer = answers.receive(connection, end)
        except OSError as error:
            connection.close()
            problem = "does not answer" if isinstance(error, TimeoutError) else "is gone"
            raise DistributedError(
                f"process 0, which keeps the store at {self._at()}, {problem} ({error}); process {self._rank} cannot "
                "go on without it"
            ) from error
        if answer.error is not None:
            raise DistributedError(answer.error)
        return answer.value

    def _at(self) -> str:
        return join_address(*self._named)


def _checked_key(key: str) -> str:
    if len(key) > LONGEST_KEY:
        raise DistributedError(
            f"{key[:40]!r}... has {len(key):,} characters; names in the store have at most {LONGEST_KEY}"
        )
    return key


_open: weakref.WeakSet[SharedStore] = weakref.WeakSet()


def _in_fork() -> None:
    """A forked worker must not keep the connections of its parent open."""
    for store in list(_open):
        store.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_fork)
