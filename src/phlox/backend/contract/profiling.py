"""Profiling a program by the tool of its engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path


class Profiled(NamedTuple):
    """The file that a profile was written to."""

    path: Path
    """The file."""
    opens: str
    """The tool that opens it."""


class OperationTime(NamedTuple):
    """One run of an operation of a compiled program."""

    name: str
    scope: str
    """The scopes in which it was traced (see `named_scope`), as the engine writes them; empty if unknown."""
    start: float
    """In seconds, since the first operation."""
    seconds: float
    thread: str
    """Where it ran: a thread, or a stream of a device."""


class ProfilingOps:
    """The default is Python's own profiler, for engines that have none."""

    def start_profile(self, folder: Path) -> Callable[[], Profiled]:
        """Begin to profile this process; a call of the result ends the profile, and writes a file into the folder.

        The folder must exist. Raises `RuntimeError` or `ValueError` if a profile is already running.
        """
        import cProfile  # slow to import

        profile = cProfile.Profile()
        profile.enable()

        def end() -> Profiled:
            profile.disable()
            path = folder / "profile.prof"
            profile.dump_stats(path)
            return Profiled(path, f"python -m pstats {path}, or snakeviz")

        return end

    def named_scope(self, name: str) -> AbstractContextManager[Any]:
        """A scope in which operations that are traced carry a name, for `profile_operations`."""
        return nullcontext()

    def profile_operations(
        self, run: Callable[[Any, Any], Any], donated: Any, kept: Any, calls: int
    ) -> list[OperationTime] | None:
        """Run a function from `compile` `calls` times, and time its operations; None if the engine cannot."""
        return None
