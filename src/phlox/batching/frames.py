"""The calls of `phlox.vmap` that the running code is inside of."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from phlox.backend.contract.backend import Backend, engine_of
from phlox.backend.device import Device
from phlox.host.signal_guard import scope

if TYPE_CHECKING:
    from phlox.batching.decorator import Batched

Randomness: TypeAlias = Literal["different", "same"]
"""Does every example of a batch have its own random numbers?"""


@dataclass(frozen=True, slots=True)
class Frame:
    """One running call of `phlox.vmap`."""

    backend: Batched
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


def frame_of(backend: Batched) -> Frame | None:
    """The running batch of a backend, whatever its tapes and its precision; None if there is none."""
    engine = type(engine_of(backend))
    for frame in reversed(_frames.get()):
        if frame.backend.batched == backend.batched and type(engine_of(frame.backend)) is engine:
            return frame
    return None


def seen_from_inside(device: Device) -> Device:
    """The device on the backend of the innermost batch, so that a draw on it is a draw for one example."""
    frame = innermost()
    if frame is None:
        return device
    from phlox.batching.order import joined

    backend: Backend | None = joined(device.backend, frame.backend)
    return device if backend is None else device.on(backend)
