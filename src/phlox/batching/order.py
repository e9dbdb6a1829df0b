"""Operands on different backends: the order of decorators over one engine.

An array of a backend is a constant on every backend that has the same decorators and more, such as a tape or a batch,
without conversion. So tensors from outside can be used inside `phlox.vmap` and inside differentiated functions.
"""

from __future__ import annotations

from functools import lru_cache

from phlox.backend.contract import Backend
from phlox.backend.device import Device
from phlox.batching.frames import innermost


@lru_cache(maxsize=4096)
def is_below(lower: Backend, upper: Backend) -> bool:
    """Are arrays of `lower` constants on `upper`, another backend?"""
    from phlox.batching.decorator import Batched  # imported here because the import is slow

    inner = upper.inner
    if inner is None:
        return False
    if inner is lower or is_below(lower, inner):
        return True
    # A new tape may be below the batch since the array was created.
    same_batch = isinstance(upper, Batched) and isinstance(lower, Batched) and lower.batched == upper.batched
    return same_batch and is_below(lower.inner, inner)


@lru_cache(maxsize=4096)
def joined(first: Backend, second: Backend) -> Backend | None:
    """The smallest backend on which arrays of both can be used; None if there is none."""
    from phlox.batching.decorator import Batched

    if first is second or is_below(second, first):
        return first
    if is_below(first, second):
        return second
    if not isinstance(first, Batched):
        return joined(second, first) if isinstance(second, Batched) else None
    if isinstance(second, Batched):
        if second.batched > first.batched:
            return joined(second, first)
        if second.batched == first.batched:
            second = second.inner
    if second.batched > first.inner.batched:
        return None
    common = joined(first.inner, second)
    return None if common is None or common.batched != first.inner.batched else Batched(common)


def seen_from_inside(device: Device) -> Device:
    """The device on the backend of the innermost batch, so that a draw on it is a draw for one example."""
    frame = innermost()
    if frame is None:
        return device
    backend: Backend | None = joined(device.backend, frame.backend)
    return device if backend is None else device.on(backend)
