"""Profiling by JAX: what the host, XLA and the devices do."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax

from phlox.backend.contract.profiling import Profiled, ProfilingOps


class Profiling(ProfilingOps):
    """By `jax.profiler`."""

    def start_profile(self, folder: Path) -> Callable[[], Profiled]:
        jax.profiler.start_trace(str(folder), create_perfetto_trace=True)

        def end() -> Profiled:
            jax.profiler.stop_trace()
            # It makes a folder of its own for each trace, called by the time.
            path = max(folder.rglob("perfetto_trace.json.gz"), key=lambda path: path.stat().st_mtime)
            return Profiled(path, f"https://ui.perfetto.dev, or tensorboard --logdir {folder} with the package xprof")

        return end
