"""The launchers of several hosts act as one: they start, fail, restart and end together.

They communicate through a store in the launcher of the first host.
"""

from __future__ import annotations

import hashlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from phlox.backend.store import OwnStore, SharedStore, Store
from phlox.distributed.processes.store_server import StoreServer
from phlox.errors import DistributedError


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why an attempt ended."""

    reason: str
    """The reason as a text."""
    status: int
    """The exit status of the launch, if it is the last attempt."""
    host: int
    when: float
    loses: bool = False
    """Did a process fail, so that an elastic restart has one fewer?"""
    final: bool = False
    """Is there no restart after it?"""
    hung: bool = False
    """Are the stacks of all processes wanted?"""


class Hosts:
    """The launchers of all hosts, seen from one.

    Args:
        names: the names of the hosts; one, or none, is this machine alone.
        rank: the index of this host among them.
        port: the port of the launcher on the first host.
        command: the command, which must be the same everywhere.
        timeout: the seconds to wait for the other launchers.
    """

    def __init__(self, names: Sequence[str], rank: int, port: int, command: Sequence[str], timeout: float) -> None:
        self.rank, self.size = rank, max(len(names), 1)
        self.name = names[0] if self.size > 1 else "127.0.0.1"
        self._server: StoreServer | None = None
        self._store: Store = OwnStore()
        self._told = 0.0
        self._seen: dict[int, bytes | None] = {}
        if self.size == 1:
            return
        same = hashlib.sha256("\0".join([*names, "", *command]).encode()).hexdigest()[:12]
        if rank == 0:
            try:
                listener = socket.create_server(("", port))
            except OSError as error:
                raise DistributedError(f"port {port} cannot be used ({error.strerror}); give another --port") from error
            self._server = StoreServer(listener, same, self.size)
        host = "127.0.0.1" if rank == 0 else names[0]
        try:
            self._store = SharedStore(host, port, same, rank, self.size, timeout)
            self._store.barrier("launch")
        except DistributedError as error:
            self.close()
            raise DistributedError(
                f"the launchers of {', '.join(names)} do not come together (one runs on each host, with the same "
                f"options and command but its own --host-rank): {error}".replace("process ", "host ")
            ) from error

    def share(self, key: str, value: Any) -> list[Any]:
        """The values of all launchers, in the order of the hosts."""
        self._store.set(f"{key}/{self.rank}", msgspec.msgpack.encode(value))
        return [msgspec.msgpack.decode(self._store.get(f"{key}/{host}", rank=host)) for host in range(self.size)]

    def from_first(self, key: str, make: Callable[[], str]) -> str:
        """The value that the launcher of the first host makes."""
        if self.rank == 0:
            self._store.set(key, make().encode())
        return self._store.get(key, rank=0).decode()

    def fail(self, attempt: int, failure: Failure) -> None:
        """Report to the others that an attempt has failed here."""
        self._store.set(f"failed/{attempt}/{self.rank}", msgspec.msgpack.encode(asdict(failure)))

    def failure(self, attempt: int) -> Failure | None:
        """The first known failure of an attempt; None if there is none."""
        return next(self._failures(attempt), None)

    def first_failure(self, attempt: int) -> Failure | None:
        """The first failure on any host, the same on all, after all have ended their processes."""
        self._store.barrier(f"ended/{attempt}")
        return min(self._failures(attempt), key=lambda failure: (not failure.final, failure.when), default=None)

    def _failures(self, attempt: int) -> Iterator[Failure]:
        for host in range(self.size):
            found = self._store.peek(f"failed/{attempt}/{host}")
            if found is not None:
                yield msgspec.msgpack.decode(found, type=Failure)

    def done(self, attempt: int) -> None:
        """Report to the others that all processes here have ended without an error."""
        self._store.set(f"done/{attempt}/{self.rank}", b"")

    def all_done(self, attempt: int) -> bool:
        """Have all processes of all hosts ended without an error?"""
        return all(self._store.peek(f"done/{attempt}/{host}") is not None for host in range(self.size))

    def are_active(self, when: float) -> bool:
        """Has a process on another host reported since the last call? Reports `when` one here did."""
        if self.size == 1 or time.monotonic() < self._told + 1.0:
            return False
        self._told = time.monotonic()
        self._store.set(f"active/{self.rank}", str(when).encode())
        now = {host: self._store.peek(f"active/{host}") for host in range(self.size) if host != self.rank}
        before, self._seen = self._seen, now
        return now != before

    def close(self) -> None:
        """Leave the others."""
        self._store.close()
        if self._server is not None:
            self._server.wait_for_goodbyes(range(self.size), 5.0)
            self._server.close()
