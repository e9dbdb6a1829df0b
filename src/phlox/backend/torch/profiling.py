"""Profiling by PyTorch: its operations on the host and the devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from phlox.backend.contract.profiling import Profiled, ProfilingOps


class Profiling(ProfilingOps):
    """By `torch.profiler`."""

    def start_profile(self, folder: Path) -> Callable[[], Profiled]:
        from torch import profiler  # which is slow to import

        profile = profiler.profile()
        profile.start()

        def end() -> Profiled:
            profile.stop()
            path = folder / "trace.json"
            profile.export_chrome_trace(str(path))
            return Profiled(path, "https://ui.perfetto.dev, or chrome://tracing")

        return end
