"""Ambient streams of random numbers, so that a draw needs no key.

A stream is a key and a position. Each draw takes the next position, so the n-th draw of a stream is a pure function of
its key and n, the same on every backend. Inside a compiled function the stream's state is a hidden argument.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Hashable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from operator import index
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from phlox.backend import Backend
from phlox.backend.parallel import RowGroup, row_group
from phlox.backend.threefry.foreign_keys import read_key
from phlox.backend.threefry.generator import fold_in
from phlox.errors import KindError, RandomnessError, RangeError, ShapeError
from phlox.host.signal_guard import Prepared, scope

Key: TypeAlias = tuple[int, int]
"""Two 32-bit words."""

_LAST = 0xFFFFFFFF  # this position is reserved for sub-streams and never drawn


def key_of(seed: int) -> Key:
    """The key of a seed: its low 64 bits, high word first."""
    try:
        bits = index(seed)
    except TypeError:
        raise KindError(f"a seed must be an integer, got {type(seed).__name__}") from None
    return (bits >> 32) & _LAST, bits & _LAST


class Reserved(NamedTuple):
    """A block of positions reserved in a stream."""

    words: Any
    """Key and first position, as three words."""
    key: Key
    position: int
    draws: int


class Stream:
    """A key and the position of the next draw."""

    whole: bool = False
    """Is a draw from it the same in every process, also where each computes on its rows of a global batch?"""

    def __init__(self, key: Key, position: int = 0) -> None:
        self.key = key
        self.position = position
        self._lock = threading.Lock()
        self.drawing = threading.RLock()
        """Locked by the first call of a compiled function that draws from here: its number of draws is unknown."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or a pickle is a separate stream that continues from the same position."""
        with self._lock:
            return type(self), (self.key, self.position)

    def __repr__(self) -> str:
        return f"Stream(key={self.key}, position={self.position})"

    def take(self) -> int:
        """Take the next position."""
        with self._lock:
            position = self.position
            if position >= _LAST:
                raise RandomnessError("this random stream is exhausted after 2**32 - 1 draws; seed a new one")
            self.position = position + 1
        return position

    def skip(self, draws: int, backend: Backend | None = None) -> None:
        """Advance by this number of draws, which a compiled function made on a backend."""
        if draws and backend is not None:
            self.check(backend)
        with self._lock:
            self.position += draws

    def reserve(self, draws: int) -> Reserved:
        """Reserve this number of positions, for draws made elsewhere, such as in a compiled function."""
        with self.drawing, self._lock:
            reserved = Reserved(self.words(), self.key, self.position, draws)
            self.position += draws
        return reserved

    def settle(self, reserved: Reserved, draws: int) -> None:
        """Report the number of draws made. Unused positions are released, unless the stream was used since."""
        if draws == reserved.draws:
            return
        with self._lock:
            if self.key == reserved.key and self.position == reserved.position + reserved.draws:
                self.position = reserved.position + draws
            else:
                self.position += max(draws - reserved.draws, 0)

    def replay(self, position: int) -> Stream:
        """A stream that repeats the draws of this one from a position on."""
        return self._like(Stream(self.key, position))

    def _like(self, other: Stream) -> Stream:
        other.whole = self.whole
        return other

    def restart(self, key: Key) -> None:
        """Restart from another key."""
        with self._lock:
            self.key, self.position = key, 0

    def state(self) -> dict[str, Any]:
        """Key and position, for `restore`, as plain values that any file format can store."""
        with self._lock:
            return {"key": list(self.key), "position": self.position}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state()` returned.

        Raises `KindError` if this is not such a state, `RangeError` if a word or the position is out of range.
        """
        self.prepare_restore(state)()

    def prepare_restore(self, state: Mapping[str, Any]) -> Callable[[], None]:
        """`restore` in two steps, for `phlox.record.restore`: checks now, and returns a function that restores."""
        key, position = _read(state)

        def restore(key: Key, position: int) -> None:
            with self._lock:
                self.key, self.position = key, position

        return Prepared(partial(restore, key, position), lambda: partial(restore, self.key, self.position))

    def words(self) -> Any:
        """Key and position as three words: the start of a compiled function's draws."""
        return np.array([*self.key, self.position], np.uint32)

    def check(self, backend: Backend) -> None:
        """Raise `RandomnessError` if a draw on a backend would become a constant of a program."""
        if backend.is_tracing():
            raise RandomnessError(
                "a random draw inside a raw JAX transformation would become a constant of the program; "
                "use phlox.compile, open `with phlox.random.stream(key):` on a traced key inside the function, "
                "or turn the randomness off with model.valid()"
            )

    def draw(self, backend: Backend) -> Any:
        """The state for the next draw on a backend: the key's words and the position."""
        self.check(backend)
        return np.array([*self.key, self.take()], np.uint32)

    def substream(self) -> Key:
        """Reserve the next position for a sub-stream, and return the sub-stream's key."""
        return fold_in(self.key, self.take())


class TracedStream(Stream):
    """A stream during tracing: its key and first position are a tracer of uint32[3]."""

    def __init__(self, start: Any) -> None:
        super().__init__((0, 0))
        self.start = start

    def replay(self, position: int) -> Stream:
        again = TracedStream(self.start)
        again.position = position
        return self._like(again)

    def words(self) -> Any:
        return self.start + np.array([0, 0, self.position], np.uint32)

    def check(self, backend: Backend) -> None:
        if backend.trace_of(self.start) is not backend.current_trace():
            raise RandomnessError(
                "a random draw inside a raw JAX transformation (jax.jit, lax.scan, lax.cond, jax.checkpoint) that is "
                "itself inside a program would repeat on each run; use phlox.scan or phlox.checkpoint, draw "
                "before it, open `with phlox.random.stream(key):` inside it on a key that changes each iteration, or "
                "turn the randomness off with model.valid()"
            )

    def draw(self, backend: Backend) -> Any:
        self.check(backend)
        return self.start + np.array([0, 0, self.take()], np.uint32)

    def restart(self, key: Key) -> None:
        raise _traced("cannot be seeded")

    def state(self) -> dict[str, Any]:
        raise _traced("has no state to save")

    def prepare_restore(self, state: Mapping[str, Any]) -> Callable[[], None]:
        raise _traced("cannot be set to a saved state")

    def substream(self) -> Key:
        raise RandomnessError(
            "a parameter was declared inside a compiled function, where its sub-stream would be a tracer; "
            "create modules outside and pass them in"
        )


class FixedStream(Stream):
    """A stream opened on a seed inside a program: its draws are the same in every call, as in eager mode.

    `inside` is the stream of the program; its tracer identifies the program.
    """

    def __init__(self, key: Key, position: int, inside: TracedStream) -> None:
        super().__init__(key, position)
        self.inside = inside

    def replay(self, position: int) -> Stream:
        return self._like(FixedStream(self.key, position, self.inside))

    def check(self, backend: Backend) -> None:
        self.inside.check(backend)


def _traced(what: str) -> RandomnessError:
    return RandomnessError(f"a random stream {what} during tracing; do that outside the traced function")


def _read(state: Mapping[str, Any]) -> tuple[Key, int]:
    """Key and position of a saved state."""
    form = "a state of a random stream must be {'key': [high, low], 'position': n}, as state() returns"
    if not isinstance(state, Mapping) or set(state) != {"key", "position"}:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KindError(f"{form}; got {state!r}")
    try:
        high, low = map(index, state["key"])
        position = index(state["position"])
    except (TypeError, ValueError):
        raise KindError(f"{form}; got {state!r}") from None
    if not all(0 <= word <= _LAST for word in (high, low, position)):
        raise RangeError(f"the words and the position of a random stream must be in 0..2**32-1, got {state!r}")
    return (high, low), position


_global = Stream(key_of(int.from_bytes(os.urandom(8), "big")))
_scoped: ContextVar[Stream | None] = ContextVar("phlox_random_stream", default=None)


def current() -> Stream:
    """The current stream: that of the innermost scope, else that of the process."""
    return _scoped.get() or _global


def rows() -> RowGroup | None:
    """The rows of a global batch that a draw from the current stream is for; None for an ordinary draw."""
    group = row_group()
    return None if group is None or current().whole else group


def program_rows() -> Hashable:
    """The key of a program traced now, as far as rows of a global batch matter.

    It is None without a row group, the group if draws are for its rows, and otherwise a pair of a mark and the group.
    """
    group = row_group()
    return group if group is None or not current().whole else ("whole draws", group)


def seed(value: int) -> None:
    """Restart the current stream (the process's, or the innermost scope's) from a seed.

    Without a seed, the stream of the process starts at random.

    >>> import phlox as px
    >>> px.random.seed(0); a = px.random.uniform((2,))
    >>> px.random.seed(0); bool((a == px.random.uniform((2,))).all())
    True
    """
    current().restart(key_of(value))


def state() -> dict[str, Any]:
    """The state of the current stream, as plain values that any file format can store.

    >>> import phlox as px
    >>> saved = px.random.state(); a = px.random.normal((2,))
    >>> px.random.restore(saved); bool((a == px.random.normal((2,))).all())
    True
    """
    return current().state()


def restore(state: Mapping[str, Any]) -> None:
    """Set the current stream to a state that `state()` returned.

    Raises `KindError` if this is not such a state, `RangeError` if a word or the position is out of range.

    >>> import phlox as px
    >>> saved = px.random.state(); a = px.random.normal((2,))
    >>> px.random.restore(saved); bool((a == px.random.normal((2,))).all())
    True
    """
    current().restore(state)


@contextmanager
def stream(source: int | Key | Stream | Any) -> Generator[Stream]:
    """Use another stream for draws within this scope (and thread or task).

    `source` is a seed, a key of two words, a stream (which continues), a key of JAX (`jax.random.key` or `PRNGKey`), or
    an array of three 32-bit words (key and position). Arrays and keys of JAX may be traced. Raises `KindError`,
    `ShapeError` or `RangeError` for anything else.

    If a process computes on its rows of a global batch, its draws are those of its rows. In a scope opened there on a
    seed or a key, draws are the same in every process.

    >>> import phlox as px
    >>> with px.random.stream(1): a = px.random.normal((3,))
    >>> with px.random.stream(1): bool((a == px.random.normal((3,))).all())
    True
    """
    opened, around = _opened(source), current()
    if opened is not source and type(opened) is Stream and isinstance(around, (TracedStream, FixedStream)):
        inside = around.inside if isinstance(around, FixedStream) else around
        opened = FixedStream(opened.key, opened.position, inside)
    if opened is not source and row_group() is not None:
        opened.whole = True
    with scope(_scoped, opened):
        yield opened


def _opened(source: Any) -> Stream:
    if isinstance(source, Stream):
        return source
    if isinstance(source, int) or (hasattr(source, "__index__") and not hasattr(source, "__len__")):
        return Stream(key_of(source))
    if isinstance(source, tuple):
        words = cast("tuple[Any, ...]", source)
        if len(words) != 2:
            raise ShapeError(f"a key of a random stream must have two words, got {words}")
        high, low = (index(word) for word in words)
        if not (0 <= high <= _LAST and 0 <= low <= _LAST):
            raise RangeError(f"the words of a key must be in 0..2**32-1, got {words}")
        return Stream((high, low))
    words = read_key(source)
    if words is not None:
        return Stream(cast("Key", words)) if isinstance(words, tuple) else TracedStream(words)
    if getattr(source, "dtype", None) != np.uint32 or source.shape != (3,):
        raise KindError(
            "the source of a random stream must be a seed, a key (two integers, or one of JAX), a Stream, or three "
            f"uint32 words (key and position), got {source!r}"
        )
    if isinstance(source, np.ndarray):
        high, low, position = (int(word) for word in source)
        return Stream((high, low), position)
    return TracedStream(source)
