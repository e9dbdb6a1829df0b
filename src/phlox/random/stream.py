"""Ambient streams of random numbers: what makes a draw need no key.

A stream is a key and a position. Each draw takes the next position, so the n-th draw of a stream is a pure function of
its key and n, the same on every backend. Inside a compiled function the stream's state is a hidden argument.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from operator import index
from typing import Any, TypeAlias, cast

import numpy as np

from phlox.backend import Backend
from phlox.backend.numpy.random import fold_in
from phlox.errors import KindError, RandomnessError, RangeError, ShapeError

Key: TypeAlias = tuple[int, int]
"""Two 32-bit words."""

_LAST = 0xFFFFFFFF  # this position names sub-streams and is never drawn


def key_of(seed: int) -> Key:
    """The key that stands for a seed: its low 64 bits, high word first."""
    try:
        bits = index(seed)
    except TypeError:
        raise KindError(f"a seed is an integer, got {type(seed).__name__}") from None
    return (bits >> 32) & _LAST, bits & _LAST


class Stream:
    """A key and the position of the next draw."""

    def __init__(self, key: Key, position: int = 0) -> None:
        self.key = key
        self.position = position
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Stream(key={self.key}, position={self.position})"

    def take(self) -> int:
        """Take the next position."""
        with self._lock:
            position = self.position
            if position >= _LAST:
                raise RandomnessError("this random stream is used up after 2**32 - 1 draws; seed a new one")
            self.position = position + 1
        return position

    def skip(self, draws: int) -> None:
        """Go on as if so many draws had been made, as those of a compiled function have."""
        with self._lock:
            self.position += draws

    def replay(self, position: int) -> Stream:
        """A stream that makes the draws of this one once more, from a position on."""
        return Stream(self.key, position)

    def restart(self, key: Key) -> None:
        """Start anew, from another key."""
        with self._lock:
            self.key, self.position = key, 0

    def words(self) -> Any:
        """Key and position as three words: where a compiled function's draws start."""
        return np.array([*self.key, self.position], np.uint32)

    def draw(self, backend: Backend) -> Any:
        """The state for the next draw on a backend: the key's words and the position."""
        if backend.bakes_constants():
            raise RandomnessError(
                "a random draw inside a raw JAX transformation would be baked into the program and repeat for ever; "
                "use phlox.compile, open `with phlox.random.stream(key):` on a traced key inside the function, "
                "or turn the randomness off with model.valid()"
            )
        return np.array([*self.key, self.take()], np.uint32)

    def substream(self) -> Key:
        """Reserve the next position for a stream of its own, and give that stream's key."""
        return fold_in(self.key, self.take())


class TracedStream(Stream):
    """A stream in a program that is being recorded: its key and first position are a placeholder of uint32[3]."""

    def __init__(self, start: Any) -> None:
        super().__init__((0, 0))
        self.start = start

    def replay(self, position: int) -> Stream:
        again = TracedStream(self.start)
        again.position = position
        return again

    def words(self) -> Any:
        return self.start + np.array([0, 0, self.position], np.uint32)

    def draw(self, backend: Backend) -> Any:
        return self.start + np.array([0, 0, self.take()], np.uint32)

    def substream(self) -> Key:
        raise RandomnessError(
            "a parameter was declared inside a compiled function, where its sub-stream would be a placeholder; "
            "create modules outside and pass them in"
        )


_global = Stream(key_of(int.from_bytes(os.urandom(8), "big")))
_scoped: ContextVar[Stream | None] = ContextVar("phlox_random_stream", default=None)


def current() -> Stream:
    """The stream that draws come from: the innermost scope's, else the process's."""
    return _scoped.get() or _global


def seed(value: int) -> None:
    """Start the current stream anew: the process's, or the innermost scope's. Without a seed it starts at random.

    >>> import phlox as px
    >>> px.random.seed(0); a = px.random.uniform((2,))
    >>> px.random.seed(0); bool((a == px.random.uniform((2,))).all())
    True
    """
    current().restart(key_of(value))


@contextmanager
def stream(source: int | Key | Stream | Any) -> Generator[Stream]:
    """Within this scope (and thread or task) draws come from another stream.

    `source` is a seed, a key of two words, a stream (which goes on where it stands), or an array of three 32-bit words
    (key and position), which may be traced. Raises `KindError`, `ShapeError` or `RangeError` for anything else.

    >>> import phlox as px
    >>> with px.random.stream(1): a = px.random.normal((3,))
    >>> with px.random.stream(1): bool((a == px.random.normal((3,))).all())
    True
    """
    opened = _opened(source)
    token = _scoped.set(opened)
    try:
        yield opened
    finally:
        _scoped.reset(token)


def _opened(source: Any) -> Stream:
    if isinstance(source, Stream):
        return source
    if isinstance(source, int) or (hasattr(source, "__index__") and not hasattr(source, "__len__")):
        return Stream(key_of(source))
    if isinstance(source, tuple):
        words = cast("tuple[Any, ...]", source)
        if len(words) != 2:
            raise ShapeError(f"a key of a random stream has two words, got {words}")
        high, low = (index(word) for word in words)
        if not (0 <= high <= _LAST and 0 <= low <= _LAST):
            raise RangeError(f"the words of a key lie in 0..2**32-1, got {words}")
        return Stream((high, low))
    if getattr(source, "dtype", None) != np.uint32 or source.shape != (3,):
        raise KindError(
            "a random stream opens on a seed, a key (two integers), a Stream, or an array of three uint32 words "
            f"(key and position), got {source!r}"
        )
    if isinstance(source, np.ndarray):
        high, low, position = (int(word) for word in source)
        return Stream((high, low), position)
    return TracedStream(source)
