"""Several hosts' launchers act as one: they start, fail, restart and end together.

They communicate through a store in the launcher of the first host.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from phlox.backend.addresses import LOOPBACK, check_host, from_outside, is_loopback, listen
from phlox.backend.store import OwnStore, SharedStore, Store
from phlox.distributed.processes.secret import SecretFile, derived, secret_is_missing
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
    """Should all processes show their stacks?"""
    follows: bool = False
    """Did another process, perhaps on another host, fail before?"""


class Hosts:
    """The launchers of all hosts, seen from one.

    Args:
        names: the names of the hosts; one, or none, is this machine alone.
        rank: the index of this host among them.
        port: the port of the launcher on the first host.
        command: the command, which must be the same everywhere.
        timeout: the seconds to wait for the other launchers.
        secret: the secret that they share; None if all names are of this machine, which then share a file.
    """

    def __init__(
        self,
        names: Sequence[str],
        rank: int,
        port: int,
        command: Sequence[str],
        timeout: float,
        secret: str | None = None,
    ) -> None:
        self.rank, self.size = rank, max(len(names), 1)
        self.name = LOOPBACK
        """The name of the first host."""
        self.secret = secrets.token_hex(32)
        """The secret of the launch."""
        self._server: StoreServer | None = None
        self._store: Store = OwnStore()
        self._told = 0.0
        self._seen: dict[int, bytes | None] = {}
        if self.size == 1:
            return
        self.name = check_host(names[0].strip("[]"), f"--hosts {','.join(names)}")
        if secret is None and not all(is_loopback(name.strip("[]")) for name in names):
            raise secret_is_missing("the launchers of several hosts need a secret; leave --host-rank out, or set")
        self.secret = ""
        same = hashlib.sha256("\0".join([*names, "", *command]).encode()).hexdigest()
        file = SecretFile(port, "launchers")

        def find() -> str:
            self.secret = derived(secret or file.read(), "launchers", same)
            return self.secret

        listener = None
        try:
            if rank == 0:
                listener = self.listen(port)
                if secret is None:
                    file.write()
                self._server = StoreServer(listener, find(), self.size)
            self._store = SharedStore(from_outside(self.name), port, find, rank, self.size, timeout)
            self._store.barrier("launch")
        except DistributedError as error:
            self.close()
            if listener is not None:
                listener.close()
            raise DistributedError(
                f"the launchers of {', '.join(names)} do not come together (one runs on each host, with the same "
                f"options and command but its own --host-rank): {error}".replace("process ", "host ")
            ) from error
        finally:
            if listener is not None and secret is None:
                file.remove()

    def listen(self, port: int = 0, backlog: int = 128) -> socket.socket:
        """A socket that listens on the first host: a single host uses loopback, several its public address."""
        host = from_outside(self.name) if self.size > 1 else self.name
        return listen(host, port, backlog, f"the first host is {self.name}" + (f", --port {port}" if port else ""))

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
        return min(
            self._failures(attempt),
            key=lambda failure: (not failure.final, failure.follows, failure.when),
            default=None,
        )

    def _failures(self, attempt: int) -> Iterator[Failure]:
        for host in range(self.size):
            packed = self._store.peek(f"failed/{attempt}/{host}")
            if packed is not None:
                yield msgspec.msgpack.decode(packed, type=Failure)

    def done(self, attempt: int) -> None:
        """Report to the others that all processes here have ended without an error."""
        self._store.set(f"done/{attempt}/{self.rank}", b"")

    def all_done(self, attempt: int) -> bool:
        """Have all processes of all hosts ended without an error?"""
        return all(self._store.peek(f"done/{attempt}/{host}") is not None for host in range(self.size))

    def are_active(self, when: float) -> bool:
        """Has a process on another host reported since the last call? Also sends `when`, the last report here."""
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
