"""The process of one contestant: it reads requests, one JSON object per line, and answers them.

The first request selects the contestant and the workload. Output of libraries goes to standard error.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

PACKAGES = ("phlox", "numpy", "jax", "torch", "flax", "optax", "equinox", "keras")


class Worker:
    """Answers requests by the methods of the same names."""

    def __init__(self) -> None:
        self.contestant: Any = None

    def enter(self, workload: dict[str, Any], library: str, variant: str) -> dict[str, Any]:
        """Import the library; returns the versions of all imported packages."""
        from benchmarks.workloads import Workload

        options = {name: tuple(v) if isinstance(v, list) else v for name, v in workload["options"].items()}
        self._workload, self._variant = Workload(**{**workload, "options": options}), variant
        self._library = importlib.import_module(f"benchmarks.libraries.{library}")
        self._workload.written_with(library)
        return {"versions": {name: _version(name) for name in PACKAGES if name in sys.modules}}

    def build(self) -> dict[str, Any]:
        """Build the model."""
        self.contestant = self._library.Contestant(self._workload, self._variant)
        return {"averaged": self.contestant.averaged, "steps": self.contestant.steps}

    def losses(self, n: int) -> dict[str, Any]:
        """The losses of the next n steps, the seconds of the first one, and of each later one."""
        start = time.perf_counter()
        found = self.contestant.losses(1)
        there = time.perf_counter()
        found += self.contestant.losses(n - 1)
        each = (time.perf_counter() - there) / max(n - 1, 1)
        return {"losses": found, "seconds": there - start, "each": each, "mib": _peak()}

    def compared(self) -> dict[str, Any]:
        """One more loss, timed as a round."""
        gc.collect()
        gc.freeze()  # later collections then have little to traverse
        gc.disable()
        try:
            return self.losses(1)
        finally:
            gc.enable()

    def outputs(self) -> dict[str, Any]:
        """The logits, and the seconds to compute them."""
        start = time.perf_counter()
        found = self.contestant.outputs()
        seconds = time.perf_counter() - start
        return {"outputs": found.ravel().tolist(), "shape": found.shape, "seconds": seconds}

    def pace(self, what: str, seconds: float) -> dict[str, Any]:
        """The number of steps or predictions that take about `seconds`, and the seconds of one; this also warms up."""
        run: Callable[[int], None] = getattr(self.contestant, what)
        least = self.contestant.steps if what == "run" else 1
        n = least
        run(n)
        gc.collect()
        gc.freeze()  # later collections need not traverse existing objects
        while (took := _timed(run, n)) < seconds / 4 and n < 1_000_000:
            n *= 4
        return {"n": max(1, round(n * seconds / took / least)) * least, "seconds": took / n}

    def turn(self, what: str, n: int) -> dict[str, Any]:
        """The seconds of one step or prediction, averaged over n."""
        run: Callable[[int], None] = getattr(self.contestant, what)
        if n > WARM * self.contestant.steps:
            run(self.contestant.steps)  # refill the caches, which other processes have used meanwhile
        gc.collect()
        gc.disable()
        try:
            return {"seconds": _timed(run, n) / n}
        finally:
            gc.enable()


WARM = 10


def _timed(run: Callable[[int], None], n: int) -> float:
    start = time.perf_counter()
    run(n)
    return time.perf_counter() - start


def _peak() -> float:
    """The largest size so far, in MiB: of the arrays on a GPU if there are any, else of the process."""
    on_gpu = _peak_of_gpu()
    if on_gpu:
        return on_gpu / 2**20
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size / 2**20 if sys.platform == "darwin" else size / 2**10


def _peak_of_gpu() -> float:
    """The largest number of bytes of arrays on a GPU; 0 without one."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    peak = 0.0
    if torch is not None and torch.cuda.is_available():
        peak = float(torch.cuda.max_memory_allocated())
    if jax is not None and jax.default_backend() != "cpu":
        peak += float((jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0))
    return peak


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return str(getattr(sys.modules[name], "__version__", "?"))


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(worker, request.pop("do"))(**request)
        except BaseException as error:
            text = " ".join(str(error).split())
            answer = {"error": f"{type(error).__name__}: {text}"[:300]}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
