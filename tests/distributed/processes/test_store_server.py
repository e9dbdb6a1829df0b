"""The store of process 0, with the other processes on threads of this one.

Serves: phlox/backend/{store,greeting}.py
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from phlox.backend.greeting import LARGEST, Answer, Hello, framed
from phlox.backend.store import OwnStore, SharedStore
from phlox.distributed.processes.greeter import Greeter
from phlox.distributed.processes.store_server import StoreServer
from phlox.errors import DistributedError


@pytest.fixture
def server() -> Iterator[StoreServer]:
    server = StoreServer(socket.create_server(("127.0.0.1", 0)), "run", 3)
    yield server
    server.close()


@pytest.fixture
def join(server: StoreServer) -> Iterator[Callable[..., SharedStore]]:
    with ExitStack() as stack:

        def join(rank: int, run: str = "run", size: int = 3, timeout: float = 20.0) -> SharedStore:
            store = SharedStore("127.0.0.1", server.port, run, rank, size, timeout)
            stack.callback(store.drop)
            return store

        yield join


@pytest.fixture
def threads() -> Iterator[Callable[..., Future[Any]]]:
    with ThreadPoolExecutor(8) as pool:
        yield pool.submit


def test_values_are_seen_by_all(join: Any, threads: Any) -> None:
    a, b = join(0), join(1)
    waits = threads(b.get, "key")
    assert a.peek("key") is None
    a.set("key", b"\0value")
    assert waits.result(20) == b"\0value" == a.get("key") == b.peek("key")
    b.set("key", b"another")
    assert a.get("key") == b"another"
    a.delete("key")
    assert b.peek("key") is None
    a.set("large", bytes(5_000_000))
    assert b.get("large") == bytes(5_000_000)


def test_a_value_can_be_for_so_many_reads(join: Any) -> None:
    for store in (join(0), OwnStore()):
        store.set("key", b"1", 2)
        assert (store.get("key"), store.get("key"), store.peek("key")) == (b"1", b"1", None)


def test_threads_wait_side_by_side(join: Any, threads: Any) -> None:
    a, b = join(0), join(1)
    waits = [threads(a.get, f"key {i}") for i in range(4)]
    for i in reversed(range(4)):
        b.set(f"key {i}", str(i).encode())
    assert [wait.result(20) for wait in waits] == [b"0", b"1", b"2", b"3"]


def test_a_barrier_is_for_all_and_can_be_used_again(join: Any, threads: Any) -> None:
    stores = [join(rank) for rank in range(3)]
    for _ in range(3):
        first = [threads(store.barrier, "here") for store in stores[:2]]
        time.sleep(0.05)
        assert not any(wait.done() for wait in first)
        stores[2].barrier("here")
        assert [wait.result(20) for wait in first] == [None, None]


def test_who_does_not_come_is_named(join: Any) -> None:
    a, _ = join(0), join(1)
    with pytest.raises(DistributedError) as caught:
        a.barrier("data", timeout=0.1)
    assert "'data'" in str(caught.value)
    assert "process 2 never came to the group and process 1 did not come to it in 0.1 s" in str(caught.value)
    with pytest.raises(DistributedError, match="process 0 waits for 'key' from process 2, but it has not come"):
        a.get("key", 0.1, rank=2)
    with pytest.raises(DistributedError, match="from process 1, but nothing came"):
        a.get("key", 0.1, rank=1)


def test_who_dies_is_named_at_once(join: Any, threads: Any) -> None:
    a, b, c = join(0), join(1), join(2)
    waits = [threads(a.barrier, "x"), threads(b.get, "never"), threads(b.get, "never", None, 0)]
    time.sleep(0.1)
    c.drop()  # what a process that is killed does with its connections
    for wait in waits:
        with pytest.raises(DistributedError, match="process 2 is gone"):
            wait.result(20)
    with pytest.raises(DistributedError, match="process 2 is gone"):
        a.peek("absent")


def test_who_has_left_is_not_waited_for(join: Any, server: StoreServer) -> None:
    a, b, c = join(0), join(1), join(2)
    b.close()
    with pytest.raises(DistributedError, match="process 1 is at the end of its program"):
        a.barrier("x")
    a.set("here", b"")
    assert a.get("here") == b""  # what is there is there
    c.close()
    server.wait_for_goodbyes({1, 2}, 20.0)


def test_a_store_that_closes_waits_for_those_who_still_read(join: Any, server: StoreServer, threads: Any) -> None:
    a, b = join(0), join(1)
    a.set("why", b"1")
    a.drop()
    waits = threads(server.linger, 20.0)
    time.sleep(0.1)
    assert not waits.done() and b.get("why") == b"1"
    b.drop()
    waits.result(20)


def test_strangers_are_refused(join: Any) -> None:
    join(0)
    with pytest.raises(DistributedError, match="two processes say that they are process 0"):
        join(0)
    with pytest.raises(DistributedError, match="another launch"):
        join(1, run="other")
    with pytest.raises(DistributedError, match="process 0 is one of 3 processes, process 1 one of 2"):
        join(1, size=2)


def test_noise_does_no_harm(join: Any, server: StoreServer) -> None:
    for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2\xc1\xc1", b"\0\0\0\1\x01"):
        with socket.create_connection(("127.0.0.1", server.port)) as stranger:
            stranger.sendall(noise)
    a = join(0)
    a.set("key", b"1")
    assert a.get("key") == b"1"


def test_a_connection_that_cannot_be_accepted_does_not_end_the_store() -> None:
    class Flaky(socket.socket):
        failures = 1

        def accept(self) -> Any:
            if self.failures:
                self.failures -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    server = StoreServer(Flaky(fileno=socket.create_server(("127.0.0.1", 0)).detach()), "run", 1)
    store = SharedStore("127.0.0.1", server.port, "run", 0, 1, 5.0)
    store.set("key", b"1")
    assert store.get("key") == b"1"
    store.close()
    server.close()


def test_a_message_that_is_too_large_is_refused_before_it_is_sent(join: Any) -> None:
    a = join(0)
    with pytest.raises(DistributedError, match="too large for the store"):
        a.set("key", bytes(LARGEST + 1))
    a.set("key", b"1")
    assert a.get("key") == b"1"


def test_without_process_0_there_is_one_sentence(server: StoreServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(DistributedError, match=f"process 1 has waited 0.1 s for process 0 at 127.0.0.1:{port}"):
        SharedStore("127.0.0.1", port, "run", 1, 2, 0.1)
    # one that greets the first connection, hangs up on the second, and dies
    kept: list[socket.socket] = []

    def welcome(connection: socket.socket, hello: Hello, proof: bytes) -> None:
        kept.append(connection)
        connection.sendall(framed(Answer(proof)))
        if hello.word == "again":
            for one in kept:
                one.close()

    greeter = Greeter(socket.create_server(("127.0.0.1", 0)), "run", welcome)
    store = SharedStore("127.0.0.1", greeter.port, "run", 1, 2, 5.0)
    with pytest.raises(DistributedError, match="process 0, which keeps the store at .* is gone"):
        store.get("key")
    greeter.close()
    store.close()  # no matter


FORKS = """
import os, socket
from phlox.backend.store import SharedStore
from phlox.distributed.processes.greeter import Greeter
from phlox.distributed.processes.store_server import StoreServer
server = StoreServer(socket.create_server(("127.0.0.1", 0)), "run", 2)
a, b = (SharedStore("127.0.0.1", server.port, "run", rank, 2, 20.0) for rank in range(2))
read, write = os.pipe()
if not (worker := os.fork()):
    os.close(write)
    os.read(read, 1)  # until the parent is done
    os._exit(0)
try:
    b.drop()
    a.get("key", 20.0)
except Exception as error:
    print(error)
os.close(write)
os.waitpid(worker, 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_worker_does_not_hold_the_connections_open() -> None:
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=60, check=True)
    assert "process 1 is gone" in done.stdout
