# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# The other libraries are installed only for the benchmarks.
"""What people wait for before a training runs: imports, the first step of a first process, and that of a second one.

Each pair of processes has an empty folder for the programs on disk, of Phlox or of the peer. Figures are seconds of a
processor, which other work on the machine disturbs less than the clock: PyTorch compiles without helpers.
`torch.compile` compiles the loss and the update.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.contestants import CONTESTANTS, Contestant
from benchmarks.harness import Ratio, compare, in_turn, quick
from benchmarks.rows import output_of
from benchmarks.workloads import QUICK, WORKLOADS, Workload

_NAMED = {contestant.name: contestant for contestant in CONTESTANTS}
TORCH, JAX = "Phlox on PyTorch", "Phlox on JAX"
COMPILED, NNX = "torch.compile of loss and update", "Flax NNX (split)"
STARTED = {
    TORCH: _NAMED[TORCH], COMPILED: Contestant(COMPILED, "with_torch", "compiled, with update"),
    JAX: _NAMED[JAX], NNX: _NAMED[NNX],
}  # fmt: skip
PEER = {TORCH: COMPILED, JAX: NNX}
STEPS = 2


def run() -> list[Ratio]:
    """All rows of the table."""
    workload = next(workload for workload in (QUICK if quick() else WORKLOADS) if workload.name == "gpt-4x256")
    whole: dict[str, dict[str, list[float]]] = {process: {} for process in ("first", "second")}
    steps: dict[str, list[float]] = {}

    def start(name: str) -> float:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            for process, figures in whole.items():
                step, seconds = _started(STARTED[name], workload, folder)
                figures.setdefault(name, []).append(seconds)
                steps.setdefault(f"{name}, {process} process", []).append(step)
        return 0.0

    there = in_turn({name: partial(start, name) for name in STARTED}, range(2))
    rows: list[Ratio] = []
    for process, figures in whole.items():
        title = f"{workload.title}: {process} process, with {STEPS} training steps"
        complete = {name: figures[name] for name in there}
        rows += [
            compare(title, complete, ours, peer, target=1.0 if process == "first" else None)
            for ours, peer in PEER.items()
        ]
    for ours in filter(there.__contains__, PEER):
        first, second = f"{ours}, first process", f"{ours}, second process"
        rows.append(compare(f"{workload.title}: first training step", steps, second, first, target=0.15))
    return [*rows, _imports()]


def _started(contestant: Contestant, workload: Workload, folder: str) -> tuple[float, float]:
    """The seconds of a processor of the first step, and of the whole process."""
    caches = {
        "PHLOX_CACHE": f"{folder}/phlox", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }  # fmt: skip
    if not contestant.ours:  # Phlox has JAX keep its programs; others ask for it
        caches |= {"JAX_COMPILATION_CACHE_DIR": f"{folder}/jax", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2"}
    command = [sys.executable, "-m", "benchmarks.starting", workload.name, contestant.library, contestant.variant]
    before = _children()
    printed = output_of(command, {**os.environ, **contestant.environment_for(workload), **caches})
    return json.loads(printed.splitlines()[-1]), _children() - before


def _children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def _imports() -> Ratio:
    """The time of a process that imports Phlox, over one that imports NumPy."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def seconds(package: str) -> float:
        start = time.perf_counter()
        output_of([sys.executable, "-c", f"import {package}"], environment)
        return time.perf_counter() - start

    makers: dict[str, Callable[[], float]] = {f"import {name}": partial(seconds, name) for name in ("phlox", "numpy")}
    for make in makers.values():
        make()  # which compiles to bytecode
    times = in_turn(makers, range(4 if quick() else 20))
    return compare("imports", times, "import phlox", "import numpy", target=1.7)


def main(name: str, library: str, variant: str) -> None:
    """In a process of its own: the steps, and what the first one took."""
    workload = next(workload for workload in (QUICK if quick() else WORKLOADS) if workload.name == name)
    made: Any = importlib.import_module(f"benchmarks.libraries.{library}").Contestant(workload, variant)
    before = sum(os.times()[:4])
    made.losses(1)
    first = sum(os.times()[:4]) - before
    made.losses(STEPS - 1)
    print(json.dumps(first))


if __name__ == "__main__":
    main(*sys.argv[1:])
