"""The start of a random stream: seeds and keys of every library, known or traced, and sub-streams."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import Any, TypeAlias, TypeGuard, cast

from phlox.backend import Backend, Int
from phlox.backend.contract.backend import engine_of
from phlox.backend.threefry.foreign_keys import read_key
from phlox.backend.threefry.generator import fold_in
from phlox.backend.tracing.scalar import TracedScalar
from phlox.batching.frames import PerExample
from phlox.errors import KindError, RandomnessError, RangeError, ShapeError
from phlox.tensor import Tensor

Key: TypeAlias = tuple[int, int]
"""Two 32-bit words."""

Root: TypeAlias = Any
"""The start of a stream: a key. For a traced key, three words of its engine (the key, and position 0), or a
`SubStream` of these words; inside `phlox.vmap`, a `PerExample` of roots."""

LAST = 0xFFFFFFFF
"""This position is reserved for sub-streams and never drawn."""


_SEEDS = "a seed is an integer in -2**63..2**64-1, or a key (two integers, or one of JAX), traced or not"


def key_of(seed: int) -> Key:
    """The key of a seed: its 64 bits, high word first; a negative seed is in two's complement.

    Raises `KindError` for anything but an integer, `RangeError` for an integer of more than 64 bits.
    """
    try:
        bits = index(seed)
    except Exception:
        raise KindError(f"{_SEEDS}; got {shown(seed)}") from None
    if not -(1 << 63) <= bits < 1 << 64:
        raise RangeError(f"{_SEEDS}; got {bits}")
    return (bits >> 32) & LAST, bits & LAST


def root_of(seed: Any) -> Root:
    """The start of the stream of a seed: an integer or a key of Python, NumPy, JAX or Phlox, traced or not.

    A key of JAX gives its two words, so `jax.random.key(3)` is the seed 3. Raises `KindError`, `ShapeError` or
    `RangeError` for anything else.
    """
    if isinstance(seed, int):
        return key_of(seed)
    if isinstance(seed, Tensor):
        tensor = cast("Tensor[Any, Any, Any]", seed)
        if tensor.kind is not Int or tensor.shape:
            raise KindError(f"{_SEEDS}; got {shown(tensor)}")
        return _of_array(tensor.backend, tensor.primitive)
    if isinstance(seed, TracedScalar) and seed.whole:
        return seed.backend.state_of_seed(seed._live_value())  # pyright: ignore[reportPrivateUsage]
    if isinstance(seed, tuple):
        return _key_of_words(cast("tuple[Any, ...]", seed))
    words = read_key(seed)
    return key_of(cast("int", seed)) if words is None else words


def is_key(root: Root) -> TypeGuard[Key]:
    """Is the root a known key?"""
    return isinstance(root, tuple)


def _of_array(backend: Backend, x: Any) -> Root:
    """The start of the stream whose seed is an array of a backend."""
    if backend.inner is None:
        return backend.state_of_seed(x) if backend.is_traced(x) else key_of(backend.to_host(x).item())
    inner, below = backend.inner, cast("Any", backend).below(x)
    if inner.batched < backend.batched and below is not x:
        return PerExample(backend, [_of_array(inner, row) for row in inner.unstack(below)])
    return _of_array(inner, below)


def _key_of_words(words: tuple[Any, ...]) -> Key:
    if len(words) != 2:
        raise ShapeError(f"a key of a random stream must have two words, got {words}")
    try:
        high, low = map(index, words)
    except TypeError:
        raise KindError(f"{_SEEDS}; got {words}") from None
    if not (0 <= high <= LAST and 0 <= low <= LAST):
        raise RangeError(f"the words of a key must be in 0..2**32-1, got {words}")
    return high, low


def shown(seed: Any) -> str:
    """The text of an invalid seed in an error."""
    shape = getattr(seed, "shape", None)
    if shape is None:
        return f"{type(seed).__name__} {' '.join(repr(seed).split())[:60]}"
    kind = f"a tensor of {seed.kind.__name__}" if isinstance(seed, Tensor) else f"an array of {seed.dtype}"
    return f"{kind} of shape {tuple(shape)}{'; phlox.vmap can give one seed at a time' if shape else ''}"


@dataclass(frozen=True, slots=True)
class SubStream:
    """A sub-stream of a traced stream. The engine that uses it computes its key, when it is used."""

    start: Any
    """Three words of the stream, or `PerExample` of them."""
    number: int


def folded(root: Root, number: int, backend: Backend) -> Root:
    """The start of sub-stream `number`, for a parameter on a backend."""
    if is_key(root):
        return fold_in(root, number)
    if isinstance(root, SubStream):
        root = settled(root, backend)
    if isinstance(root, PerExample):
        return PerExample(root.backend, [folded(item, number, backend) for item in root.items])
    engine = engine_of(backend)
    if not engine.draws_from(root):
        raise RandomnessError(
            f"a parameter on {engine!r} cannot have a value from a seed or a key that another engine traces; create "
            "the model on the engine that traces (device=...), or give it a known seed"
        )
    return engine.fold_in(root, number)


def settled(root: Root, backend: Backend) -> Root:
    """The root as words, if it is a sub-stream."""
    return folded(root.start, root.number, backend) if isinstance(root, SubStream) else root
