"""Strangers at the store of process 0: whatever they send, they learn nothing, take nothing, and disturb nobody.

Serves: phlox/backend/greeting.py
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from phlox.backend.greeting import (
    LARGEST,
    Answer,
    Challenge,
    Hello,
    answers,
    challenges,
    framed,
    greet,
    hellos,
    new_nonce,
    proof,
)  # fmt: skip
from phlox.backend.store import SharedStore
from phlox.distributed.processes import greeter
from phlox.distributed.processes.store_server import StoreServer
from phlox.errors import DistributedError

SECRET = "a secret that only the launch knows"


@pytest.fixture
def server() -> Iterator[StoreServer]:
    server = StoreServer(socket.create_server(("127.0.0.1", 0)), SECRET, 2)
    yield server
    server.close()


def call(server: StoreServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def end() -> float:
    return time.monotonic() + 20


def is_closed(connection: socket.socket) -> bool:
    """Does the other side hang up, without a word more?"""
    try:
        return connection.recv(1 << 10) == b""
    except ConnectionError:
        return True


# --- noise


def prefixed(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def packed(message: Any) -> bytes:
    return prefixed(msgspec.msgpack.encode(message))


def a_hello(draw: random.Random, **changes: Any) -> list[Any]:
    right = {
        "tag": "phlox",
        "word": "hello",
        "rank": 1,
        "size": 2,
        "nonce": draw.randbytes(32),
        "proof": draw.randbytes(32),
    }
    return list((right | changes).values())


NOISE: list[Callable[[random.Random], bytes]] = [
    lambda draw: draw.randbytes(draw.randrange(1, 300)),
    lambda draw: prefixed(draw.randbytes(draw.randrange(200))),
    lambda draw: struct.pack(">I", draw.randrange(1 << 32)) + draw.randbytes(50),  # a length that nothing follows
    lambda draw: prefixed(b"\xdd" + struct.pack(">I", 1 << 31) + b"\x90" * 100),  # a list of so many
    lambda draw: struct.pack(">I", 2 << 20) + b"\x91" * (1 << 16),
    lambda draw: prefixed(b"\x91" * draw.randrange(1, 250) + b"\xc0"),  # lists in lists
    lambda draw: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    lambda draw: packed(a_hello(draw)),
    lambda draw: packed(a_hello(draw))[: draw.randrange(4, 60)],
    lambda draw: packed(a_hello(draw, rank=draw.choice([-1, 1 << 40, 1e300, "1", None, [1]]))),
    lambda draw: packed(a_hello(draw, word=draw.choice(["again", "set", "", 5, "x" * 90]))),
    lambda draw: packed(a_hello(draw, proof=draw.choice([b"", b"x", None, "x" * 32]))),
    lambda draw: packed([*a_hello(draw), 1]),
    lambda draw: packed(["set", "key", b"stolen", 1]) * 2,
]
"""What strangers send."""

NOISE_OF_KNOWN: list[Callable[[random.Random], bytes]] = [
    *NOISE[:3],
    lambda draw: prefixed(b"\x91" * 100_000 + b"\xc0"),
    lambda draw: struct.pack(">I", LARGEST) + b"\x90" * 1000,
    lambda draw: packed(["get", "key", 1e300, 0]),
    lambda draw: packed(["get", "key", float("nan"), 0]),
    lambda draw: packed(["barrier", "x" * 5000, 1.0]),
    lambda draw: packed(["set", "key", "text", None]),
    lambda draw: packed(["converse", 1]),
    lambda draw: prefixed(b"\x92\xa4peek\xa2\xff\xfe"),
]
"""What comes from processes that know the secret, and are broken."""


def test_two_thousand_malformed_messages(server: StoreServer) -> None:
    draw = random.Random(5)
    stores = [SharedStore("127.0.0.1", server.port, SECRET, rank, 2, 60.0) for rank in range(2)]
    rounds, over = [0, 0], threading.Event()

    def train(rank: int) -> None:
        """The exchange of a training that goes on."""
        mine, more = stores[rank], True
        while more:
            number = rounds[rank]
            if rank == 0:
                mine.set(f"more/{number}", b"" if over.is_set() and number >= 50 else b"1", 2)
            more = bool(mine.get(f"more/{number}", rank=0))
            mine.set(f"{rank}/{number}", bytes([rank]) * 100, 1)
            assert mine.get(f"{1 - rank}/{number}", rank=1 - rank) == bytes([1 - rank]) * 100
            mine.barrier("step")
            rounds[rank] += 1
            time.sleep(0.002)

    trainings = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for training in trainings:
        training.start()
    threads = threading.active_count()
    tracemalloc.start()
    for number in range(2000):
        with call(server) as stranger:
            known = number % 10 == 0
            if known:
                greet(stranger, lambda: SECRET, "again", 1, 2, end())
            kinds = NOISE_OF_KNOWN if known else NOISE
            with contextlib.suppress(ConnectionError):
                stranger.sendall(kinds[draw.randrange(len(kinds))](draw))
            if number % 100 == 50:  # it has heard a nonce, and perhaps that its secret is wrong
                said = b""
                with contextlib.suppress(OSError):
                    stranger.shutdown(socket.SHUT_WR)
                    while part := stranger.recv(1 << 10):
                        said += part
                assert len(said) < 500 and SECRET.encode() not in said
    before = max(rounds)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    over.set()
    for training in trainings:
        training.join(60)
        assert not training.is_alive()
    assert rounds[0] == rounds[1] >= 50 and before > 0
    assert peak < 4 << 20, peak
    assert threading.active_count() <= threads
    stores[0].set("key", b"1")
    assert stores[1].get("key") == b"1"
    for store in stores:
        store.close()
    server.wait_for_goodbyes({0, 1}, 20.0)


# --- many, and slow


def test_silent_strangers_take_neither_threads_nor_the_place_of_others(server: StoreServer) -> None:
    threads = threading.active_count()
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(call(server)) for _ in range(greeter.STRANGERS + 50)]
        for one in silent:
            assert isinstance(challenges.receive(one, end()), Challenge)
        assert all(is_closed(one) for one in silent[:50])  # those that have been there longest
        silent[-1].settimeout(0.05)
        with pytest.raises(TimeoutError):
            silent[-1].recv(1)
        assert threading.active_count() == threads
        store = SharedStore("127.0.0.1", server.port, SECRET, 0, 2, 20.0)
        store.set("key", b"1")
        store.close()


def test_the_deadline_is_for_all_of_a_greeting(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeter, "SECONDS", 0.3)
    with call(server) as slow:
        challenges.receive(slow, end())
        slow.settimeout(0.05)
        for byte in struct.pack(">I", 100) + bytes(90):  # each byte comes in time
            try:
                slow.sendall(bytes([byte]))
                if not slow.recv(1):
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
        pytest.fail("it was heard for more than 4 seconds")


# --- who proves what


def test_a_proof_is_for_one_connection_one_rank_and_one_side(server: StoreServer) -> None:
    nonce = new_nonce()

    def ask(make: Callable[[bytes], bytes], rank: int = 1) -> Answer:
        with call(server) as connection:
            heard = challenges.receive(connection, end()).nonce
            connection.sendall(framed(Hello("again", rank, 2, nonce, make(heard))))
            return answers.receive(connection, end())

    def right(heard: bytes) -> bytes:
        used.append(proof(SECRET, "process", heard, "again", 1, 2, nonce))
        return used[-1]

    used: list[bytes] = []
    assert ask(right).error is None
    for wrong, rank in (
        (lambda heard: used[0], 1),  # heard on another connection
        (lambda heard: proof(SECRET, "process", heard, "again", 1, 2, nonce), 0),
        (lambda heard: proof(SECRET, "store", heard, "again", 1, 2, nonce), 1),
        (lambda heard: proof("another", "process", heard, "again", 1, 2, nonce), 1),
    ):
        error = ask(wrong, rank).error
        assert error is not None and "another launch" in error and SECRET not in error


@pytest.mark.parametrize("answer", [lambda hello: bytes(32), lambda hello: hello.proof, lambda hello: None])
def test_a_process_tells_nothing_to_a_store_that_does_not_know_the_secret(answer: Callable[[Hello], Any]) -> None:
    heard: list[bytes] = []

    def pretend() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(framed(Challenge(new_nonce())))
            hello = hellos.receive(connection, end())
            connection.sendall(framed(Answer(answer(hello))))
            heard.append(connection.recv(100))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(DistributedError, match="does not know the secret of this launch"):
            SharedStore("127.0.0.1", listener.getsockname()[1], SECRET, 1, 2, 20.0)
        thread.join(20)
    assert heard == [b""]


def test_a_wait_of_any_length_is_understood(server: StoreServer) -> None:
    store = SharedStore("127.0.0.1", server.port, SECRET, 0, 2, float("inf"))
    for timeout in (-1.0, float("nan"), 0):
        with pytest.raises(DistributedError, match="process 0 waits"):
            store.get("key", timeout)
    with pytest.raises(DistributedError, match="names in the store have at most 1024"):
        store.barrier("x" * 2000)
    store.set("key", b"1")
    assert store.get("key") == b"1"
    store.close()
