"""The side of the store that process 0 keeps: values, barriers, and who is there, who has left, who is gone."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from phlox.backend.store import END, receive, send


class StoreServer:
    """Answers the `SharedStore` of every process, on threads of this one.

    Args:
        listener: a socket that listens.
        run: the name of the launch, which those who connect must know.
        size: how many processes there are.
    """

    def __init__(self, listener: socket.socket, run: str, size: int) -> None:
        self._listener, self._run, self._size = listener, run, size
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}
        self._reads: dict[str, int] = {}
        self._came: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._here: set[int] = set()
        self._left: set[int] = set()
        self._gone: set[int] = set()
        self._closed = False
        self._serve(self._accept)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._listener.getsockname()[1]

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for connections
        self._listener.close()

    def wait_for_goodbyes(self, others: Iterable[int], timeout: float) -> None:
        """Wait until these processes have left, or are gone."""
        wanted = set(others)
        with self._changed:
            self._changed.wait_for(lambda: self._gone or wanted <= self._left, timeout)

    def linger(self, timeout: float) -> None:
        """Wait until the other processes have gone, so that each has received the reason."""
        with self._changed:
            self._changed.wait_for(lambda: self._here <= self._left | self._gone, timeout)

    def _serve(self, target: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=target, args=arguments, name="phlox-store", daemon=True).start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed; or too many files are open, or the caller has hung up
                time.sleep(0.1)
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._serve(self._converse, connection)

    def _converse(self, connection: socket.socket) -> None:
        rank, is_life_line = -1, False
        with connection:
            try:
                connection.settimeout(30.0)
                first = receive(connection)
                refused = self._refusal(first)
                send(connection, [refused is None, refused])
                if refused is not None:
                    return
                rank, is_life_line = first[2], first[0] == "hello"
                connection.settimeout(None)
                while True:
                    name, *arguments = receive(connection)
                    send(connection, getattr(self, f"_do_{name}")(rank, *arguments))
            except (OSError, ValueError, TypeError, AttributeError, IndexError):  # it ended, or is none of ours
                pass
            finally:
                if is_life_line:
                    with self._changed:
                        if rank not in self._left:
                            self._gone.add(rank)
                        self._changed.notify_all()

    def _refusal(self, message: list[Any]) -> str | None:
        word, run, rank, size = message
        if run != self._run:
            return (
                f"the store of process 0 is that of another launch ({self._run!r}, not {run!r}): two launches use one "
                "port; give one of them another"
            )
        if size != self._size or not 0 <= rank < size:
            return f"process 0 is one of {self._size} processes, process {rank} one of {size}: they were started apart"
        with self._changed:
            if word == "hello":
                if rank in self._here:
                    return f"two processes say that they are process {rank}; each needs a rank of its own"
                self._here.add(rank)
                self._changed.notify_all()
        return None

    # --- the messages

    def _do_goodbye(self, rank: int) -> list[Any]:
        with self._changed:
            self._left.add(rank)
            self._changed.notify_all()
        return [True, None]

    def _do_set(self, rank: int, key: str, value: bytes, reads: int | None) -> list[Any]:
        with self._changed:
            self._values[key] = value
            if reads is not None:
                self._reads[key] = reads
            self._changed.notify_all()
        return [True, None]

    def _do_delete(self, rank: int, key: str) -> list[Any]:
        with self._changed:
            self._forget(key)
        return [True, None]

    def _forget(self, key: str) -> None:
        self._values.pop(key, None)
        self._reads.pop(key, None)

    def _do_get(self, rank: int, key: str, timeout: float, owner: int) -> list[Any]:
        def lost() -> set[int]:
            return self._gone | (self._finished() & {owner})

        start = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: key in self._values or lost(), timeout)
            if key in self._values:
                value = self._values[key]
                if key in self._reads:
                    self._reads[key] -= 1
                    if not self._reads[key]:
                        self._forget(key)
                return [True, value]
            who = f"process {owner}" if owner >= 0 else "the processes"
            text = f"process {rank} waits for {key!r} from {who}, but "
            if lost():
                return [False, text + self._ended(lost())]
            absent = owner >= 0 and owner not in self._here
            return [False, f"{text}{'it has not come' if absent else 'nothing came'} in {time.monotonic() - start:g} s"]

    def _do_peek(self, rank: int, key: str) -> list[Any]:
        with self._changed:
            if key not in self._values and self._gone:
                return [False, f"process {rank} looks for {key!r}, but {self._ended(self._gone)}"]
            return [True, self._values.get(key)]

    def _do_barrier(self, rank: int, name: str, timeout: float) -> list[Any]:
        def missing() -> set[int]:
            return {one for one in range(self._size) if came[one] < turn}

        with self._changed:
            came = self._came[name]
            came[rank] += 1
            turn = came[rank]
            self._changed.notify_all()
            self._changed.wait_for(lambda: not missing() or missing() & self._finished(), timeout)
            absent = missing()
            if not absent:
                return [True, None]
            lost = absent & self._finished()
            text = f"process {rank} waits at the barrier {name!r}, but "
            if lost:
                return [False, text + self._ended(lost)]
            here, never = absent & self._here, absent - self._here
            parts = [f"{_named(never)} never came to the group"] * bool(never)
            parts += [f"{_named(here)} did not come to it"] * bool(here)
            return [False, f"{text}{' and '.join(parts)} in {timeout:g} s"]

    def _finished(self) -> set[int]:
        """The processes that come to nothing any more."""
        return self._left | self._gone | self._came[END].keys()

    def _ended(self, ranks: set[int]) -> str:
        how = "gone" if ranks & self._gone else "at the end of its program" if len(ranks) == 1 else "at the end"
        return f"{_named(ranks)} {'is' if len(ranks) == 1 else 'are'} {how}"


def _named(ranks: set[int]) -> str:
    shown = ", ".join(map(str, sorted(ranks)[:8])) + ("..." if len(ranks) > 8 else "")
    return f"process{'es' if len(ranks) > 1 else ''} {shown}"
