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
from typing import Any, NamedTuple

import numpy as np

from phlox.backend import Backend
from phlox.backend import reproducible as mode
from phlox.backend.contract.backend import engine_of
from phlox.backend.parallel import RowGroup, are_gradients_local, row_group
from phlox.backend.reproducible import InMode
from phlox.backend.threefry.generator import fold_in
from phlox.batching.frames import PerExample
from phlox.errors import KindError, RandomnessError, RangeError
from phlox.host.signal_guard import Prepared, scope
from phlox.random.roots import LAST, Key, Root, SubStream, is_key, key_of, root_of, shown


class WrongEngine(RandomnessError):
    """A draw on one engine from a stream whose key is traced by another."""


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
    """Is a draw from it the same in every process, even if each process computes on its rows of a global batch?"""
    seeded: bool = True
    """Was its key chosen? The key of the process's stream is random until it is seeded."""

    def __init__(self, key: Key, position: int = 0) -> None:
        self.key = key
        self.position = position
        self._lock = threading.Lock()
        self.drawing = threading.RLock()
        """Locked by the first call of a compiled function that draws from this stream: it draws an unknown number."""

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or a pickle is a separate stream that continues from the same position."""
        with self._lock:
            return type(self), (self.key, self.position)

    def __repr__(self) -> str:
        return f"Stream(key={self.key}, position={self.position})"

    @property
    def origin(self) -> Hashable:
        """What the ids of parameters declared now derive from, see `phlox.module.identity`; None if nothing."""
        return self.key if self.seeded else None

    def take(self) -> int:
        """Take the next position."""
        with self._lock:
            position = self.position
            if position >= LAST:
                raise RandomnessError("this random stream is exhausted after 2**32 - 1 draws; seed a new one")
            self.position = position + 1
        return position

    def skip(self, draws: int, backend: Backend | None = None) -> None:
        """Advance by the number of draws that a compiled function made on a backend."""
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
            self.key, self.position, self.seeded = key, 0, True

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
                self.key, self.position, self.seeded = key, position, True

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


class _Unseeded(Stream):
    """A stream whose key is traced, so it has no state to set or save."""

    def restart(self, key: Key) -> None:
        raise _traced("cannot be seeded")

    def state(self) -> dict[str, Any]:
        raise _traced("has no state to save")

    def prepare_restore(self, state: Mapping[str, Any]) -> Callable[[], None]:
        raise _traced("cannot be set to a saved state")


class TracedStream(_Unseeded):
    """A stream during tracing: its key and first position are a tracer of uint32[3]."""

    def __init__(self, start: Any) -> None:
        super().__init__((0, 0))
        self.start = start

    def replay(self, position: int) -> Stream:
        replayed = TracedStream(self.start)
        replayed.position = position
        return self._like(replayed)

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
        engine = engine_of(backend)
        if not engine.draws_from(self.start):
            raise WrongEngine(
                f"a random draw on {engine!r} from a stream whose key another engine traces; draw on the engine that "
                "traces (device=...), or open `with phlox.random.stream(seed):` on a known seed around the draw"
            )
        self.check(backend)
        return self.start + np.array([0, 0, self.take()], np.uint32)

    @property
    def origin(self) -> Hashable:
        return "traced"

    def substream(self) -> Any:
        return SubStream(self.start, self.take())


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


class PerExampleStream(_Unseeded):
    """A stream inside `phlox.vmap` with a key for each example: each example has the draws of its own key."""

    whole = True

    def __init__(self, root: PerExample, streams: list[Stream]) -> None:
        super().__init__((0, 0))
        self.root = root
        self.streams = streams

    @property
    def origin(self) -> Hashable:
        return "traced"

    def replay(self, position: int) -> Stream:
        replayed = PerExampleStream(self.root, [stream.replay(position) for stream in self.streams])
        replayed.position = position
        return self._like(replayed)

    def words(self) -> Any:
        raise RandomnessError(
            "a random stream on a key for each example cannot go into a loop or a program of its own; open it inside "
            "of that, on a key that is an argument"
        )

    def check(self, backend: Backend) -> None:
        if backend.batched < self.root.backend.batched or engine_of(backend) != engine_of(self.root.backend):
            raise RandomnessError(
                "a random draw for all examples of phlox.vmap, from a stream on a key for each of them; draw on the "
                f"engine of the key, {engine_of(self.root.backend)!r}"
            )
        for stream in self.streams[:1]:
            stream.check(backend)

    def draw(self, backend: Backend) -> Any:
        self.check(backend)
        self.take()
        return PerExample(self.root.backend, [stream.draw(backend) for stream in self.streams])

    def substream(self) -> Any:
        return SubStream(self.root, self.take_all())

    def take_all(self) -> int:
        """Take the next position of each stream."""
        for stream in self.streams:
            stream.take()
        return self.take()


def opened(
    root: Root, traced: Callable[[Any], Stream] = TracedStream, known: Callable[[Key], Stream] = Stream
) -> Stream:
    """The stream that starts at a root."""
    if is_key(root):
        return known(root)
    if isinstance(root, PerExample):
        return PerExampleStream(root, [opened(item, traced, known) for item in root.items])
    return traced(root)


def _traced(problem: str) -> RandomnessError:
    return RandomnessError(f"a random stream {problem} during tracing; do that outside the traced function")


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
    if not all(0 <= word <= LAST for word in (high, low, position)):
        raise RangeError(f"the words and the position of a random stream must be in 0..2**32-1, got {state!r}")
    return (high, low), position


_global = Stream(key_of(int.from_bytes(os.urandom(8), "big")))
_scoped: ContextVar[Stream | None] = ContextVar("phlox_random_stream", default=None)


def current() -> Stream:
    """The current stream: the stream of the innermost scope, otherwise the process's stream."""
    return _scoped.get() or _global


def rows() -> RowGroup | None:
    """The rows of a global batch for which the current stream draws; None for an ordinary draw."""
    group = row_group()
    return None if group is None or current().whole else group


def program_rows() -> Hashable:
    """What a program traced now depends on, as far as it concerns the rows of a global batch.

    It is None without a row group; otherwise the group, with two flags of draws and gradients if one is unusual.
    In the reproducible mode, it is that in `InMode`.
    """
    group = row_group()
    if group is None and not mode.is_installed:  # each call of a program comes here
        return None
    is_usual = group is None or not (current().whole or are_gradients_local())
    rows = group if is_usual else (group, current().whole, are_gradients_local())
    return InMode(rows) if mode.is_installed and mode.is_reproducible() else rows


def seed(value: Any) -> None:
    """Restart the current stream (the process's, or the innermost scope's) from a seed: an integer, or a key of JAX.

    Without a seed, the stream of the process starts at random. Raises `RandomnessError` for a traced seed, which
    `stream` takes, `KindError`, `ShapeError` or `RangeError` for anything that is not a seed.

    >>> import phlox as px
    >>> px.random.seed(0); a = px.random.uniform((2,))
    >>> px.random.seed(0); bool((a == px.random.uniform((2,))).all())
    True
    """
    root = root_of(value)
    if not is_key(root):
        raise RandomnessError(
            "the stream around a transformation cannot be seeded with a value that is traced inside it; "
            "open `with phlox.random.stream(seed):` inside"
        )
    current().restart(root)


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
    an array of three 32-bit words (key and position). Seeds, arrays and keys of JAX may be traced, by `jax.jit` and
    `jax.vmap` as by `phlox.compile` and `phlox.vmap`. Raises `KindError`, `ShapeError` or `RangeError` for anything
    else.

    If a process computes on its rows of a global batch, it draws only for its rows. In a scope opened there on a seed
    or a key, draws are the same in every process.

    >>> import phlox as px
    >>> with px.random.stream(1): a = px.random.normal((3,))
    >>> with px.random.stream(1): bool((a == px.random.normal((3,))).all())
    True
    """
    inner, outer = _open(source), current()
    if inner is not source and isinstance(outer, (TracedStream, FixedStream)):
        inner = _fix(inner, outer.inside if isinstance(outer, FixedStream) else outer)
    if inner is not source and row_group() is not None:
        inner.whole = True
    with scope(_scoped, inner):
        yield inner


def _fix(stream: Stream, inside: TracedStream) -> Stream:
    """The stream as one that was opened on a seed inside a program."""
    if isinstance(stream, PerExampleStream):
        return PerExampleStream(stream.root, [_fix(member, inside) for member in stream.streams])
    return FixedStream(stream.key, stream.position, inside) if type(stream) is Stream else stream


def _open(source: Any) -> Stream:
    if isinstance(source, Stream):
        return source
    if getattr(source, "dtype", None) == np.uint32 and source.shape == (3,):
        if not isinstance(source, np.ndarray):
            return TracedStream(source)
        high, low, position = (int(word) for word in source)
        return Stream((high, low), position)
    try:
        return opened(root_of(source))
    except KindError:
        raise KindError(
            "a random stream opens on a seed in -2**63..2**64-1, a key (two integers, or one of JAX), a Stream, or "
            f"three uint32 words (key and position); got {shown(source)}"
        ) from None
