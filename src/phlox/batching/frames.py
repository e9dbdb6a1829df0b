"""The calls of `phlox.vmap` that the running code is inside of."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from phlox.backend.contract.backend import Backend, engine_of
from phlox.host.signal_guard import scope

Randomness: TypeAlias = Literal["different", "same"]
"""Does every example of a batch have its own random numbers?"""


@dataclass(frozen=True, slots=True)
class Frame:
    """One running call of `phlox.vmap`."""

    backend: Backend
    size: int
    """The number of examples."""
    randomness: Randomness = "different"


@dataclass(frozen=True, slots=True, eq=False)
class PerExample:
    """One item for each example of a batch, such as a key, or the state of a random stream."""

    backend: Backend
    """The batched backend on which the items look like one item."""
    items: list[Any]


_frames: ContextVar[tuple[Frame, ...]] = ContextVar("phlox_batches", default=())


def entered(frame: Frame) -> AbstractContextManager[tuple[Frame, ...]]:
    """Within this scope (and thread or task), `frame` is the innermost batch."""
    return scope(_frames, (*_frames.get(), frame))


def outside() -> AbstractContextManager[tuple[Frame, ...]]:
    """Within this scope there is no batch: new values belong to all examples."""
    return scope(_frames, ())


def innermost() -> Frame | None:
    """The innermost batch; the running code sees one example of it."""
    frames = _frames.get()
    return frames[-1] if frames else None


def frame_of(backend: Backend) -> Frame | None:
    """The running batch of a backend, whatever its tapes and its precision; None if there is none."""
    engine = type(engine_of(backend))
    for frame in reversed(_frames.get()):
        if frame.backend.batched == backend.batched and type(engine_of(frame.backend)) is engine:
            return frame
    return None
