"""Process 0's side of the store: values, barriers, and which processes are present, have left, or are gone."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from phlox.backend.greeting import Answer, Hello, framed
from phlox.backend.store import END, Barrier, Delete, Get, Goodbye, Lost, Message, Peek, Set, messages
from phlox.distributed.processes.greeter import Greeter


class StoreServer:
    """Answers the `SharedStore` of every process, on threads of this one.

    Args:
        listener: a socket that listens.
        secret: the secret of the launch, which connecting processes must know.
        size: the number of processes.
    """

    def __init__(self, listener: socket.socket, secret: str, size: int) -> None:
        self._size = size
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}
        self._reads: dict[str, int] = {}
        self._arrivals: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._present: set[int] = set()
        self._departed: set[int] = set()
        self._gone: set[int] = set()
        self._answers: dict[type[Message], Callable[[int, Any], Answer]] = {
            Goodbye: self._goodbye, Set: self._set, Delete: self._delete, Get: self._get, Peek: self._peek,
            Barrier: self._barrier, Lost: self._lost,
        }  # fmt: skip
        self._greeter = Greeter(listener, secret, self._welcome)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._greeter.port

    def close(self) -> None:
        """Stop listening."""
        self._greeter.close()

    def wait_for_goodbyes(self, others: Iterable[int], timeout: float) -> None:
        """Wait until these processes have left, or are gone."""
        ranks = set(others)
        with self._changed:
            self._changed.wait_for(lambda: self._gone or ranks <= self._departed, timeout)

    def linger(self, timeout: float) -> None:
        """Wait until the other processes have gone, so that each has received the reason."""
        with self._changed:
            self._changed.wait_for(lambda: self._present <= self._departed | self._gone, timeout)

    def _welcome(self, connection: socket.socket, hello: Hello, proof: bytes) -> None:
        thread = threading.Thread(
            target=self._converse, args=(connection, hello, proof), name="phlox-store", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # too many threads; the process connects again
            connection.close()

    def _converse(self, connection: socket.socket, hello: Hello, proof: bytes) -> None:
        is_life_line = False
        with connection:
            try:
                refused = self._refusal(hello)
                is_life_line = hello.word == "hello" and refused is None
                connection.sendall(framed(Answer(proof) if refused is None else Answer(error=refused)))
                while refused is None:
                    message = messages.receive(connection)
                    connection.sendall(framed(self._answers[type(message)](hello.rank, message)))
            except OSError:  # it ended, or sent something else
                pass
            finally:
                if is_life_line:
                    with self._changed:
                        if hello.rank not in self._departed:
                            self._gone.add(hello.rank)
                        self._changed.notify_all()

    def _refusal(self, hello: Hello) -> str | None:
        rank, size = hello.rank, hello.size
        if size != self._size or not 0 <= rank < size:
            return f"process 0 is one of {self._size} processes, process {rank} one of {size}: they were started apart"
        with self._changed:
            if hello.word == "hello":
                if rank in self._present:
                    return f"two processes say that they are process {rank}; each needs a rank of its own"
                self._present.add(rank)
                self._changed.notify_all()
        return None

    # --- the messages

    def _goodbye(self, rank: int, message: Goodbye) -> Answer:
        with self._changed:
            self._departed.add(rank)
            self._changed.notify_all()
        return Answer()

    def _set(self, rank: int, message: Set) -> Answer:
        with self._changed:
            self._values[message.key] = message.value
            if message.reads is not None:
                self._reads[message.key] = message.reads
            self._changed.notify_all()
        return Answer()

    def _delete(self, rank: int, message: Delete) -> Answer:
        with self._changed:
            self._forget(message.key)
        return Answer()

    def _forget(self, key: str) -> None:
        self._values.pop(key, None)
        self._reads.pop(key, None)

    def _get(self, rank: int, message: Get) -> Answer:
        key, owner = message.key, message.owner

        def lost() -> set[int]:
            return self._gone | (self._finished() & {owner})

        start = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: key in self._values or lost(), message.timeout)
            if key in self._values:
                value = self._values[key]
                if key in self._reads:
                    self._reads[key] -= 1
                    if not self._reads[key]:
                        self._forget(key)
                return Answer(value)
            who = f"process {owner}" if owner >= 0 else "the processes"
            text = f"process {rank} waits for {key!r} from {who}, but "
            if lost():
                return Answer(error=text + self._ended_text(lost()))
            absent = owner >= 0 and owner not in self._present
            return Answer(
                error=f"{text}{'it has not come' if absent else 'nothing came'} in {time.monotonic() - start:g} s"
            )

    def _peek(self, rank: int, message: Peek) -> Answer:
        key = message.key
        with self._changed:
            if key not in self._values and self._gone:
                return Answer(error=f"process {rank} looks for {key!r}, but {self._ended_text(self._gone)}")
            return Answer(self._values.get(key))

    def _lost(self, rank: int, message: Lost) -> Answer:
        with self._changed:
            is_lost = self._changed.wait_for(lambda: (self._gone | self._finished()) - {rank}, message.timeout)
            return Answer(b"1" if is_lost else b"")

    def _barrier(self, rank: int, message: Barrier) -> Answer:
        name, timeout = message.name, message.timeout

        def missing() -> set[int]:
            return {other for other in range(self._size) if arrivals[other] < turn}

        with self._changed:
            arrivals = self._arrivals[name]
            arrivals[rank] += 1
            turn = arrivals[rank]
            self._changed.notify_all()
            self._changed.wait_for(lambda: not missing() or missing() & self._finished(), timeout)
            absent = missing()
            if not absent:
                return Answer()
            lost = absent & self._finished()
            text = f"process {rank} waits at the barrier {name!r}, but "
            if lost:
                return Answer(error=text + self._ended_text(lost))
            present, never = absent & self._present, absent - self._present
            parts = [f"{_process_names(never)} never came to the group"] * bool(never)
            parts += [f"{_process_names(present)} did not come to it"] * bool(present)
            return Answer(error=f"{text}{' and '.join(parts)} in {timeout:g} s")

    def _finished(self) -> set[int]:
        """The processes that will reach no further barrier."""
        return self._departed | self._gone | self._arrivals[END].keys()

    def _ended_text(self, ranks: set[int]) -> str:
        state = "gone" if ranks & self._gone else "at the end of its program" if len(ranks) == 1 else "at the end"
        return f"{_process_names(ranks)} {'is' if len(ranks) == 1 else 'are'} {state}"


def _process_names(ranks: set[int]) -> str:
    shown = ", ".join(map(str, sorted(ranks)[:8])) + ("..." if len(ranks) > 8 else "")
    return f"process{'es' if len(ranks) > 1 else ''} {shown}"
