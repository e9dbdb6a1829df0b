"""The settings that are worth trying on each engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from phlox.backend.registry import load_backend
from phlox.backend.settings import Settings
from phlox.errors import DeviceError, EngineNotInstalledError
from phlox.host import allocator


def cores() -> int:
    """The number of CPUs that this process may use."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def candidates(engine: str, flags: Sequence[str] = ()) -> list[Settings]:
    """Single settings to try on an engine, by its name. The first ones apply to all engines.

    `flags`: further XLA flags, for an engine that takes them; each string holds one or several.

    >>> list(candidates("numpy")[0].given())
    ['allocator']
    """
    found = [Settings(allocator=one) for one in (allocator.KEEP, allocator.SYSTEM) if one != allocator.DEFAULT]
    number = 1
    while number < cores():
        found.append(Settings(threads=number))
        number *= 2
    try:
        backend = load_backend(engine)
    except (DeviceError, EngineNotInstalledError):
        return found
    return [*found, *backend.tunings, *[Settings(xla_flags=text) for text in flags if backend.takes_xla_flags]]
