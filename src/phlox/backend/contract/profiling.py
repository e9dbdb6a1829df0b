"""Profiling: what a program spends its time on, by the tool of its engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Profiled(NamedTuple):
    """What a profile was written to."""

    path: Path
    """The file."""
    opens: str
    """What opens it."""


class ProfilingOps:
    """The default is Python's own profiler, for engines that have none."""

    def start_profile(self, folder: Path) -> Callable[[], Profiled]:
        """Begin to profile what this process computes; the result ends that, and writes a file into the folder.

        The folder exists. Raises `RuntimeError` or `ValueError` where something is profiled already.
        """
        import cProfile  # which is slow to import

        profile = cProfile.Profile()
        profile.enable()

        def end() -> Profiled:
            profile.disable()
            path = folder / "profile.prof"
            profile.dump_stats(path)
            return Profiled(path, f"python -m pstats {path}, or snakeviz")

        return end
