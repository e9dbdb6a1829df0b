"""The protocol by which connecting processes prove that they belong to one launch, and then exchange messages.

A message is a length of four bytes, and MessagePack of a known type. The store sends the first message: a nonce (a
number that is used once). The connecting process answers with its rank, a nonce of its own, and an HMAC of all this,
whose key is the secret of the launch; the store answers with another HMAC. The secret itself is never sent.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
import time
from collections.abc import Callable
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

from phlox.errors import DistributedError

_T = TypeVar("_T")

LARGEST = 1 << 26
"""The most bytes of a message between processes that have proved their launch: the store is for small values."""
LARGEST_GREETING = 256
"""The most bytes of a message before that."""
LONGEST_WAIT = 2e6
"""The most seconds that a process can ask the store to wait: 23 days, which sockets can count in milliseconds."""

_Nonce = Annotated[bytes, Meta(min_length=32, max_length=32)]
_Count = Annotated[int, Meta(ge=0, le=1 << 20)]


class Challenge(msgspec.Struct, array_like=True, tag="phlox store", forbid_unknown_fields=True, frozen=True):
    """The first message, from the store."""

    nonce: _Nonce


class Hello(msgspec.Struct, array_like=True, tag="phlox", forbid_unknown_fields=True, frozen=True):
    """The answer to `Challenge`."""

    word: Literal["hello", "again"]
    """"hello" for the connection that shows that a process lives, "again" for a further one."""
    rank: _Count
    size: _Count
    nonce: _Nonce
    proof: _Nonce


class Answer(msgspec.Struct, array_like=True, forbid_unknown_fields=True, frozen=True):
    """What the store answers to a message: a value, or the text of an error."""

    value: bytes | None = None
    error: str | None = None


class Codec(Generic[_T]):
    """Messages of one type, of at most `most` bytes."""

    def __init__(self, kind: Any, most: int = LARGEST) -> None:
        self._decoder = msgspec.msgpack.Decoder[_T](kind)
        self._most = most

    def length(self, head: bytes | bytearray) -> int:
        """The bytes of a message, from the four before it; `ConnectionError` if they are too many."""
        (length,) = struct.unpack(">I", head)
        if length > self._most:
            raise ConnectionError("not a message of a store")
        return length

    def decode(self, data: bytes | bytearray) -> _T:
        """The message; `ConnectionError` if it is none."""
        try:
            return self._decoder.decode(data)
        except ValueError:  # also for text that is not UTF-8
            raise ConnectionError("not a message of a store") from None

    def receive(self, connection: socket.socket, end: float | None = None) -> _T:
        """The next message, which must be complete at the time `end` (by `time.monotonic`).

        Raises `ConnectionError` if the other side is gone or sends something else; else `TimeoutError`.
        """
        return self.decode(_receive(connection, self.length(_receive(connection, 4, end)), end))


challenges = Codec[Challenge](Challenge, LARGEST_GREETING)
hellos = Codec[Hello](Hello, LARGEST_GREETING)
answers = Codec[Answer](Answer)


def framed(message: Any) -> bytes:
    """The bytes of a message. Raises `DistributedError` if they are too many."""
    data = msgspec.msgpack.encode(message)
    if len(data) > LARGEST:
        raise DistributedError(
            f"a message of {len(data):,} bytes is too large for the store (at most {LARGEST:,}); send arrays by a "
            "collective, as px.distributed.broadcast does"
        )
    return struct.pack(">I", len(data)) + data


def new_nonce() -> bytes:
    """A number that is used once."""
    return secrets.token_bytes(32)


def proof(secret: str, role: Literal["store", "process"], challenge: bytes, *identity: Any) -> bytes:
    """The HMAC of both nonces and of the connecting process, which only an owner of the secret can compute."""
    text = msgspec.msgpack.encode([role, challenge, *identity])
    return hmac.digest(secret.encode(), text, "sha256")


def greet(
    connection: socket.socket,
    secret: Callable[[], str],
    word: Literal["hello", "again"],
    rank: int,
    size: int,
    end: float,
) -> None:
    """Prove to the store that this process belongs to its launch, and check the store's proof.

    Args:
        connection: the connection to it.
        secret: a function for the secret, which is called after the store's first message.
        word, rank, size: see `Hello`.
        end: the time, by `time.monotonic`, at which the greeting must be complete.

    Raises `DistributedError` if it is not the store of this launch, and `OSError` if the connection ends before.
    """
    challenge = challenges.receive(connection, end)
    key = secret()
    identity = (word, rank, size, new_nonce())
    connection.settimeout(_remaining(end))
    connection.sendall(framed(Hello(*identity, proof(key, "process", challenge.nonce, *identity))))
    answer = answers.receive(connection, end)
    if answer.error is not None:
        raise DistributedError(answer.error)
    if not hmac.compare_digest(answer.value or b"", proof(key, "store", challenge.nonce, *identity)):
        raise DistributedError("the program that listens there does not know the secret of this launch")


def _remaining(end: float) -> float:
    remaining = end - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("timed out")
    return remaining


def _receive(connection: socket.socket, count: int, end: float | None) -> bytearray:
    data = bytearray()  # grows with the received bytes, not with the announced length
    while len(data) < count:
        connection.settimeout(None if end is None else _remaining(end))
        part = connection.recv(min(count - len(data), 1 << 18))
        if not part:
            raise ConnectionError("the connection was closed")
        data += part
    return data
