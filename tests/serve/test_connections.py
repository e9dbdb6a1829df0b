"""Bad clients: whatever they do, others get the answers that the model gives alone, and nothing of theirs is left."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from phlox.backend import NumPy
from phlox.models import LanguageModel
from phlox.serve import BatcherLimits, Server, ServerOptions
from tests.serve.support import language_model
from tests.serve.test_server import alone, until

LONG = {"prompt": "ab", "max_tokens": 400, "ignore_eos": True, "stream": True, "n": 8, "logprobs": 20}
"""An answer of megabytes, which fits no buffer of a socket."""


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return language_model(NumPy(float="f64"))


class Running:
    """A server in a thread, and what it holds."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.batcher: Any = server._batcher
        self._is_ready = threading.Event()
        self.thread = threading.Thread(target=server.run, args=(self._ready,), name="bad-clients")
        self.thread.start()
        assert self._is_ready.wait(60)

    def _ready(self, address: str) -> None:
        self.address, self._loop = address, asyncio.get_running_loop()
        self._is_ready.set()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self.server._program.server_state.connections)

    @property
    def holds(self) -> tuple[int, int, int, int, int]:
        """The number of tasks, threads, open files, requests in the batcher, and rows of its cache."""
        done: list[int] = []
        self._loop.call_soon_threadsafe(lambda: done.append(len(asyncio.all_tasks())))
        until(lambda: done)
        files = Path("/proc/self/fd")
        batcher, n_files = self.batcher, len(list(files.iterdir())) if files.is_dir() else 0
        n_requests = batcher.n_running + batcher.n_waiting + len(batcher._calls)
        return done[0], threading.active_count(), n_files, n_requests, batcher._pool.rows

    def connect(self, sent: bytes = b"", *, receives: int = 0) -> socket.socket:
        """A connection on which something was sent; with `receives`, of a small buffer for what comes back."""
        sock = socket.socket()
        if receives:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
        sock.settimeout(60)
        sock.connect(("127.0.0.1", int(self.address.rpartition(":")[2])))
        with contextlib.suppress(OSError):  # a refusal may come before all is sent
            sock.sendall(sent)
        return sock


@contextlib.contextmanager
def running(model: LanguageModel, patience: float) -> Iterator[Running]:
    limits = BatcherLimits(slots=8, queue=5000, chunk=32)
    program = Running(Server(model, ServerOptions(name="tiny", port=0, batch=limits, patience=patience)))
    try:
        yield program
    finally:
        program.server.stop()
        program.thread.join(60)
        assert not program.thread.is_alive()


def post(body: bytes | dict[str, Any], length: int | str | None = None, *headers: str) -> bytes:
    """A request, with this length in its header."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [
        "POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json",
        f"Content-Length: {len(content) if length is None else length}", *headers,
    ]  # fmt: skip
    return "\r\n".join(head).encode() + b"\r\n\r\n" + content


HANGING: dict[str, bytes] = {
    "sends nothing": b"",
    "sends half of the headers": b"POST /v1/completions HTTP/1.1\r\nHost: loc",
    "sends a body that never ends": post(b'{"prompt": "a', 1000),
    "sends pieces that never end": post(b"", 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    + b"5\r\n{",
    "sends too much, and never ends": post(b" " * (5 << 20), 1 << 40),
    "waits before its body": post(b"", 100, "Expect: 100-continue"),
    "never reads its answers": post(LONG) + post(LONG),
    "reads nothing, and says no more": post(LONG, None, "Connection: close"),
}
"""Clients whose connection the server must end."""

REFUSED: dict[str, tuple[bytes, int]] = {
    "large headers": (post(b"{}", None, "X: " + "x" * 200_000), 400),
    "many headers": (post(b"{}", None, *[f"X{number}: x" * 10 for number in range(5000)]), 400),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 9 + b"\r\n\r\n", 400),
    "no number as length": (post(b"{}", "ten"), 400),
    "negative length": (post(b"{}", -5), 400),
    "two lengths": (post(b"{}", None, "Content-Length: 7"), 400),
    "a length that is too small": (post({"prompt": "ab", "max_tokens": 1}, 5), 400),
    "no UTF-8": (post(b'{"prompt": "\xff\xfe"}'), 400),
    "half a character": (post(b'{"prompt": "\\ud800", "max_tokens": 1}'), 400),
    "no JSON": (post(b"{'prompt': 'ab'}"), 400),
    "nothing": (post(b""), 400),
    "deep JSON": (post(b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}"), 400),
    "a deep name": (post(b'{"model": ' + b"[" * 900 + b"]" * 900 + b"}"), 400),
    "another name": (post({"model": "x" * 100_000, "prompt": "a"}), 404),
    "true as a token": (post({"prompt": [97, True]}), 400),
    "a deep field": (post(b'{"prompt": "a", "suffix": ' + b"[" * 900 + b"]" * 900 + b"}"), 400),
    "a large number": (post(b'{"prompt": "a", "logit_bias": {"' + b"1" * 5000 + b'": 1}}'), 400),
    "no number": (post(b'{"prompt": "a", "temperature": NaN}'), 400),
    "infinity": (post(b'{"prompt": "a", "top_p": Infinity}'), 400),
    "a negative token": (post({"prompt": [-1]}), 400),
    "a huge token": (post({"prompt": [1 << 70]}), 400),
    "a zero byte in the address": (b"GET /v1/mod\x00els HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "an upgrade": (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        200,
    ),
    "another method": (post(b"{}").replace(b"POST", b"BREW"), 405),
}
"""What a client sends, and the status that it gets at once."""


@pytest.fixture(scope="module")
def shared(model: LanguageModel) -> Iterator[Running]:
    with running(model, patience=60.0) as program:
        yield program


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_at_once(name: str, shared: Running) -> None:
    sent, status = REFUSED[name]
    with shared.connect(sent) as sock:
        answer = sock.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 %d " % status), answer


def test_what_has_been_sent_at_once_is_answered_in_order(shared: Running) -> None:
    with shared.connect(b"".join(post({"prompt": [97], "max_tokens": 1, "echo": n > 1}) for n in range(4))) as sock:
        answer = b""
        while answer.count(b"finish_reason") < 4:
            answer += sock.recv(1 << 16)
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200"] * 4
    assert [b'"text":"a' in part for part in answer.split(b"HTTP/1.1 ")[1:]] == [False, False, True, True]


@pytest.mark.full
def test_a_client_that_is_slow_is_served(model: LanguageModel) -> None:
    """It sends and reads in pieces for longer than the patience of the server, but each piece in time."""
    with running(model, patience=0.5) as program:
        request = post({**LONG, "max_tokens": 200})
        with program.connect(request[:100], receives=4096) as sock:
            for begin in range(100, len(request), 100):
                time.sleep(0.1)
                sock.sendall(request[begin : begin + 100])
            answer, begun = b"", time.monotonic()
            while b"[DONE]" not in answer[-100:]:
                time.sleep(0.02)
                part = sock.recv(8192)
                assert part, answer[-1000:]
                answer += part
            assert time.monotonic() - begun > 1.0 and len(answer) > 500_000


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full if "read" in name else ()) for name in HANGING]
)
def test_a_client_that_hangs_is_left(name: str, model: LanguageModel) -> None:
    with running(model, patience=1.0) as program:
        before = program.holds
        sock = program.connect(HANGING[name], receives=2048)
        until(lambda: program.connections)
        until(lambda: not program.connections)
        until(
            lambda: program.holds <= (before[0], before[1] + 8, before[2] + 1, 0, 0)
        )  # threads of to_thread, a socket
        sock.close()


@pytest.mark.full
def test_those_that_hang_do_not_hold_a_shutdown(model: LanguageModel) -> None:
    with running(model, patience=2.0) as program:
        socks = [program.connect(sent, receives=2048) for sent in HANGING.values()]
        until(lambda: program.connections == len(HANGING) and program.batcher.counts["tokens"] > 10)
        begun = time.monotonic()
    assert time.monotonic() - begun < 30
    for sock in socks:
        sock.close()


LEAVING: list[tuple[bytes, float]] = [
    (b"", 0.0),
    (b"POST /v1/comp", 0.01),
    (post(b'{"prompt"', 1000), 0.01),
    (post(LONG), 0.05),
    (post({**LONG, "stream": False}), 0.1),
    (post({"prompt": "a" * 400, "max_tokens": 1}), 0.0),
    (post({"prompt": ["abc"] * 100, "max_tokens": 1}), 0.01),
    (post({"input": ["abc"] * 2000}).replace(b"/v1/completions", b"/v1/embeddings"), 0.05),
]
"""What clients send that go at once, and the seconds that they wait before."""


@pytest.mark.full
def test_bad_clients_among_good_ones(model: LanguageModel) -> None:
    with running(model, patience=2.0) as program:
        good = Good(model, program)
        good.ask(2)  # what is made once is made
        gc.collect()
        before = program.holds

        def misbehave(seed: int) -> None:
            rng = random.Random(seed)
            open_socks: list[socket.socket] = []
            for _ in range(30):
                kind = rng.randrange(4)
                if kind == 0:
                    open_socks.append(program.connect(rng.choice(list(HANGING.values())), receives=2048))
                    if len(open_socks) > 20:
                        open_socks.pop(0).close()
                elif kind == 1:
                    sent, status = rng.choice(list(REFUSED.values()))
                    with program.connect(sent) as sock, contextlib.suppress(ConnectionError):
                        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 %d " % status)
                else:
                    sent, wait = rng.choice(LEAVING)
                    with program.connect(sent) as sock:
                        time.sleep(wait)
                        if rng.random() < 0.5:  # the connection is reset
                            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            for sock in open_socks:
                sock.close()

        failures: list[BaseException] = []

        def caught(function: Callable[[int], None], number: int) -> None:
            try:
                function(number)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=caught, args=(misbehave, seed)) for seed in range(6)]
        threads += [threading.Thread(target=caught, args=(tiny_requests(program), seed)) for seed in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            good.ask(1)
        assert not failures
        good.ask(2)
        until(lambda: not program.connections)
        gc.collect()
        until(lambda: program.holds <= (before[0], before[1] + 8, before[2], 0, 0))
        counts = program.batcher.counts
        assert counts["requests"] == sum(n for name, n in counts.items() if name.startswith("ended_"))
        assert counts["ended_cancelled"] > 10 and not counts["ended_error"] and counts["requests"] > 2000


def tiny_requests(program: Running) -> Callable[[int], None]:
    """Thousands of requests for one token each."""

    def ask(seed: int) -> None:
        body = {"prompt": "a" * (seed + 1), "max_tokens": 1, "temperature": 0}
        with httpx.Client(timeout=120) as client:
            texts = {
                client.post(f"{program.address}/v1/completions", json=body).json()["choices"][0]["text"]
                for _ in range(500)
            }
        assert len(texts) == 1

    return ask


class Good:
    """A client that knows what the answers must be."""

    def __init__(self, model: LanguageModel, program: Running) -> None:
        self._model, self._program, self._n = model, program, 0

    def ask(self, count: int) -> None:
        """Some requests, one after the other."""
        with httpx.Client(timeout=120) as client:
            for _ in range(count):
                self._n += 1
                prompt, body = f"{self._n} is", {"max_tokens": 5 + self._n % 20, "seed": self._n, "temperature": 0.8}
                answer = client.post(f"{self._program.address}/v1/completions", json={"prompt": prompt, **body}).json()
                expected = alone(self._model, list(prompt.encode()), body["max_tokens"], self._n, temperature=0.8)
                assert answer["choices"][0]["text"] == expected
