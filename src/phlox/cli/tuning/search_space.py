"""The settings that are worth trying on each engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from phlox.backend.settings import Settings
from phlox.host import allocator

_OWN: dict[str, list[Settings]] = {
    "jax": [
        # Both help on some CPUs and hurt on others, where XLA may even assume instructions that the CPU lacks.
        Settings(xla_flags="--xla_cpu_use_onednn=true"),
        Settings(
            xla_flags="--xla_cpu_use_onednn=true --xla_cpu_experimental_onednn_fusion_type=dot,eltwise,reduce",
        ),
        Settings(xla_flags="--xla_cpu_prefer_vector_width=512"),
        Settings(xla_flags="--xla_cpu_enable_concurrency_optimized_scheduler=true"),
    ],
    "torch": [Settings(torch_codegen="none")],
}
"""By engine, the settings that only it has. None of them changes results, except for rounding."""


def cores() -> int:
    """The number of CPUs that this process may use."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def candidates(engine: str, flags: Sequence[str] = ()) -> list[Settings]:
    """Single settings to try on an engine, by its name. The first ones apply to all engines.

    `flags`: further XLA flags for the engine that has them; each string holds one or several.

    >>> list(candidates("numpy")[0].given())
    ['allocator']
    """
    found = [Settings(allocator=one) for one in (allocator.KEEP, allocator.SYSTEM) if one != allocator.DEFAULT]
    number = 1
    while number < cores():
        found.append(Settings(threads=number))
        number *= 2
    found += _OWN.get(engine, [])
    return found + [Settings(xla_flags=text) for text in flags if engine == "jax"]
