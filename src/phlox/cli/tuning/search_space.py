"""What is worth trying on an engine, for whoever measures which settings suit a machine and a program."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from phlox.backend.settings import Settings
from phlox.host import allocator

_OWN: dict[str, list[Settings]] = {
    "jax": [
        # Both are good for some processors and bad for others, where XLA may even be wrong about what one can do.
        Settings(xla_flags="--xla_cpu_use_onednn=true"),
        Settings(
            xla_flags="--xla_cpu_use_onednn=true --xla_cpu_experimental_onednn_fusion_type=dot,eltwise,reduce",
        ),
        Settings(xla_flags="--xla_cpu_prefer_vector_width=512"),
        Settings(xla_flags="--xla_cpu_enable_concurrency_optimized_scheduler=true"),
    ],
    "torch": [Settings(torch_codegen="none")],
}
"""By engine, what only it obeys; none of it changes what a result is, but for rounding."""


def cores() -> int:
    """Processors that this process may use."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def candidates(engine: str, flags: Sequence[str] = ()) -> list[Settings]:
    """Single settings to be tried on the engine of a backend, by its name; all engines obey the first of them.

    `flags`: further flags of XLA, each a text of one or several, for the engine that has them.

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
