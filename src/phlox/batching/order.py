"""Operands on different backends: the order of decorators over one engine.

An array of a backend is a constant on every backend with the same decorators and more, for example a tape or a batch.
No array is converted for this. So tensors from outside can be used inside `phlox.vmap` and inside differentiated
functions.
"""

from __future__ import annotations

from functools import lru_cache

from phlox.backend.contract import Backend
from phlox.backend.device import Device
from phlox.batching.frames import innermost


@lru_cache(maxsize=4096)
def is_below(lower: Backend, upper: Backend) -> bool:
    """Are arrays of `lower` constants on `upper`, another backend?"""
    from phlox.batching.decorator import Batched  # imported late, since it is slow to import

    inner = upper.inner
    if inner is None:
        return False
    if inner is lower or is_below(lower, inner):
        return True
    # There may be a new tape below the batch since the array was made.
    same_batch = isinstance(upper, Batched) and isinstance(lower, Batched) and lower.batched == upper.batched
    return same_batch and is_below(lower.inner, inner)


@lru_cache(maxsize=4096)
def joined(one: Backend, other: Backend) -> Backend | None:
    """The smallest backend on which arrays of both can be used; None if there is none."""
    from phlox.batching.decorator import Batched

    if one is other or is_below(other, one):
        return one
    if is_below(one, other):
        return other
    if not isinstance(one, Batched):
        return joined(other, one) if isinstance(other, Batched) else None
    if isinstance(other, Batched):
        if other.batched > one.batched:
            return joined(other, one)
        if other.batched == one.batched:
            other = other.inner
    if other.batched > one.inner.batched:
        return None
    below = joined(one.inner, other)
    return None if below is None or below.batched != one.inner.batched else Batched(below)


def seen_from_inside(place: Device) -> Device:
    """The device on the backend of the innermost batch, so that draws there are those of one example."""
    frame = innermost()
    if frame is None:
        return place
    backend: Backend | None = joined(place.backend, frame.backend)
    return place if backend is None else place.on(backend)
