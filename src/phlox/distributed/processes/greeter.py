"""The greeting of connections to the store of process 0, until they have proved that they belong to the launch."""

from __future__ import annotations

import contextlib
import hmac
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from phlox.backend.greeting import Answer, Challenge, Hello, framed, hellos, new_nonce, proof

STRANGERS = 128
"""The most connections of strangers at once: one more closes the oldest."""
SECONDS = 10.0
"""The seconds that a stranger has for its whole greeting."""
_WRONG = (
    "the store there belongs to another launch with another secret: two launches use one port "
    "(give one of them another), or PHLOX_SECRET is not the same in all processes"
)


@dataclass(slots=True)
class _Stranger:
    connection: socket.socket
    nonce: bytes
    end: float
    data: bytearray = field(default_factory=bytearray)
    """The bytes received: four bytes with a length, and the message."""


class Greeter:
    """Greets all connections on one thread, whatever they send and however slowly.

    Args:
        listener: a socket that listens.
        secret: the secret of the launch.
        welcome: a function of the connection of a process that knows the secret, its `Hello`, and the proof that it
            waits for. It must not block.
    """

    def __init__(
        self, listener: socket.socket, secret: str, welcome: Callable[[socket.socket, Hello, bytes], object]
    ) -> None:
        self._listener, self._secret, self._welcome = listener, secret, welcome
        self.port: int = listener.getsockname()[1]
        """The port that it listens on."""
        self._strangers: dict[socket.socket, _Stranger] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="phlox-store", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening, and close the connections of all strangers."""
        with contextlib.suppress(OSError):  # a second time
            self._wake.send(b"x")
        self._thread.join()

    def _run(self) -> None:
        with self._selector, self._listener, self._wake, self._woken:
            while True:
                oldest = next(iter(self._strangers.values()), None)
                wait = None if oldest is None else max(oldest.end - time.monotonic(), 0.0)
                for key, _ in self._selector.select(wait):
                    if key.fileobj is self._woken:
                        for stranger in list(self._strangers.values()):
                            self._hang_up(stranger)
                        return
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.data.connection in self._strangers:  # not closed meanwhile
                        self._read_greeting(key.data)
                now = time.monotonic()
                for stranger in list(self._strangers.values()):  # the oldest first
                    if stranger.end > now:
                        break
                    self._hang_up(stranger)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:  # it has hung up already
            return
        except OSError:  # too many files are open, or the caller has hung up
            time.sleep(0.1)
            return
        stranger = _Stranger(connection, new_nonce(), time.monotonic() + SECONDS)
        try:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.send(framed(Challenge(stranger.nonce)))  # fits into the buffer of the system
            self._selector.register(connection, selectors.EVENT_READ, stranger)
        except OSError:
            connection.close()
            return
        self._strangers[connection] = stranger
        if len(self._strangers) > STRANGERS:
            self._hang_up(next(iter(self._strangers.values())))

    def _read_greeting(self, stranger: _Stranger) -> None:
        data = stranger.data
        try:
            missing = 4 - len(data) if len(data) < 4 else 4 + hellos.length(data[:4]) - len(data)
            chunk = stranger.connection.recv(missing)
            if not chunk:
                raise ConnectionError("the connection was closed")
            data += chunk
            if len(data) < 4 or len(data) < 4 + hellos.length(data[:4]):
                return
            hello = hellos.decode(data[4:])
        except BlockingIOError:
            return
        except OSError:
            self._hang_up(stranger)
            return
        identity = (hello.word, hello.rank, hello.size, hello.nonce)
        if hmac.compare_digest(hello.proof, proof(self._secret, "process", stranger.nonce, *identity)):
            self._release(stranger)
            stranger.connection.setblocking(True)
            self._welcome(stranger.connection, hello, proof(self._secret, "store", stranger.nonce, *identity))
        else:
            with contextlib.suppress(OSError):
                stranger.connection.send(framed(Answer(error=_WRONG)))
            self._hang_up(stranger)

    def _release(self, stranger: _Stranger) -> None:
        del self._strangers[stranger.connection]
        self._selector.unregister(stranger.connection)

    def _hang_up(self, stranger: _Stranger) -> None:
        self._release(stranger)
        stranger.connection.close()
