"""Profiling by JAX, of the host, XLA and the devices."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import jax

from phlox.backend.contract.profiling import OperationTime, Profiled, ProfilingOps
from phlox.backend.jax.hlo import Program, called

_SCOPE = re.compile(r'op_name="([^"]*)"')
_AROUND = ("while", "conditional", "call")
"""Operations that run other operations."""


class Profiling(ProfilingOps):
    """Profiling with `jax.profiler`."""

    def start_profile(self, folder: Path) -> Callable[[], Profiled]:
        jax.profiler.start_trace(str(folder), create_perfetto_trace=True)

        def end() -> Profiled:
            jax.profiler.stop_trace()
            # JAX makes a folder for each trace, named by the time.
            path = max(folder.rglob("perfetto_trace.json.gz"), key=lambda path: path.stat().st_mtime)
            return Profiled(path, f"https://ui.perfetto.dev, or tensorboard --logdir {folder} with the package xprof")

        return end

    def named_scope(self, name: str) -> AbstractContextManager[Any]:
        return cast("Any", jax.named_scope(name))

    def profile_operations(
        self, run: Callable[[Any, Any], Any], donated: Any, kept: Any, calls: int
    ) -> list[OperationTime] | None:
        reader: Any = getattr(jax.profiler, "ProfileData", None)
        if reader is None:  # an older JAX
            return None
        compiled = cast("Any", run).lower(donated, kept).compile()
        jax.block_until_ready(compiled(donated, kept))
        with TemporaryDirectory() as folder:
            jax.profiler.start_trace(folder)
            try:
                for _ in range(calls):
                    jax.block_until_ready(compiled(donated, kept))
            finally:
                jax.profiler.stop_trace()
            files = list(Path(folder).rglob("*.xplane.pb"))
            with warnings.catch_warnings():  # JAX 0.12 makes a class, which warns; where that is an error, it aborts
                warnings.simplefilter("ignore", DeprecationWarning)
                events = [event for path in files for event in _events(reader.from_file(str(path)))]
        scopes = scopes_of(compiled.as_text())
        begun = min((start for _, start, _, _ in events), default=0.0)
        return [
            OperationTime(name, scopes[name], (start - begun) * 1e-9, nanoseconds * 1e-9, thread)
            for name, start, nanoseconds, thread in sorted(events, key=lambda event: event[1])
            if name in scopes
        ]


def _events(profile: Any) -> Iterator[tuple[str, float, float, str]]:
    """The operations of programs in a trace: name, start, nanoseconds, thread."""
    for plane in profile.planes:
        for line in plane.lines:
            for event in line.events:
                for key, value in event.stats:
                    if key == "hlo_op":
                        yield str(value), event.start_ns, event.duration_ns, f"{plane.name} {line.name}"
                        break


def scopes_of(text: str) -> dict[str, str]:
    """The scopes of the operations of a program, by name, from XLA's text of it.

    A fusion has the scopes of its result. Operations that run others, such as loops, are left out: the others have
    entries of their own.
    """
    computations = Program(text).computations
    scopes = {
        line.name: scope[1] if (scope := _SCOPE.search(line.attributes)) else ""
        for lines in computations.values()
        for line in lines
    }
    roots = {name: scopes[line.name] for name, lines in computations.items() for line in lines if line.is_root}
    result: dict[str, str] = {}
    for line in chain.from_iterable(computations.values()):
        if line.opcode not in _AROUND:
            result[line.name] = scopes[line.name] or next((roots[name] for name in called(line) if name in roots), "")
    return result
