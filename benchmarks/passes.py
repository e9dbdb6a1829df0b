"""What each pass and kernel of PyTorch's compiler is worth: the benchmark's own rows with it, and without it.

Each is measured on the rows that may need it. The steps with and without are timed in turn, in one run. Of first calls,
which include tracing and compiling, each figure is the best of three, after one that is not counted.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.harness import SIZES, Ratio, measure
from benchmarks.libraries.with_phlox import Contestant
from benchmarks.workloads import QUICK, WORKLOADS, Workload
from phlox.backend.torch.compiler.codegen import PASSES_VARIABLE

Go = Callable[[], Any]

ROWS: dict[tuple[str, str], list[str]] = {
    ("mlp-small", "training"): ["scalar_cse", "donation"],
    ("mlp-large", "training"): ["gemm", "donation", "multi_tensor"],
    ("mlp-large", "inference"): ["packed_gemm"],
    ("cnn", "training"): ["winograd", "multi_tensor"],
    ("cnn", "inference"): ["constant_folding", "winograd"],
    ("gpt-4x256", "training"): ["gemm", "multi_tensor", "donation", "scalar_cse", "embedding_grad", "attention"],
    ("gpt-4x256", "inference"): ["attention", "packed_gemm"],
    ("gpt-6x384-dropout", "training"): ["bernoulli"],
    ("lstm", "training"): ["lstm", "embedding_grad", "multi_tensor"],
    ("lstm", "inference"): ["lstm"],
}
"""By workload, the passes that are measured on it. (`decompositions` is there for accuracy, not for speed.)"""

_SMALL = os.environ.get(SIZES) == "quick"


@contextmanager
def _without(name: str) -> Iterator[None]:
    os.environ[PASSES_VARIABLE] = f"-{name}" if name else ""
    try:
        yield
    finally:
        del os.environ[PASSES_VARIABLE]


def _made(workload: Workload, kind: str, switched_off: str) -> tuple[Go, float]:
    """A function that takes a step or predicts, and the seconds of its first call."""
    contestant = Contestant(workload, "torch")
    act = contestant.step if kind == "training" else contestant.infer

    def go() -> Any:
        return contestant.array(act())

    os.environ["PHLOX_CACHE"] = "off"  # otherwise later first calls would load the program
    with _without(switched_off):
        begin = time.perf_counter()
        go()
        return go, time.perf_counter() - begin


def run() -> list[Ratio]:
    """For each pass: the time without it over the time with it, of a call and of the first call."""
    found: list[Ratio] = []
    workloads = {one.name: one for one in (QUICK if _SMALL else WORKLOADS)}
    for (name, kind), passes in ROWS.items():
        workload = workloads.get(name)
        if workload is None or (_SMALL and not workload.predicts and kind == "inference"):
            continue
        _made(workload, kind, "")
        runs: dict[str, Go] = {}
        first: dict[str, list[float]] = {switch: [] for switch in ("", *passes)}
        for _ in range(1 if _SMALL else 3):
            for switch, taken in first.items():
                runs[switch], seconds = _made(workload, kind, switch)
                taken.append(seconds)
        times = measure(runs, rounds=3 if _SMALL else 15, seconds=0.05 if _SMALL else 0.3)
        title = f"{workload.title}: {kind}"
        for one in passes:
            ratios = [without / with_it for without, with_it in zip(times[one], times[""], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            with_it, without = (statistics.median(times[switch]) * 1e6 for switch in ("", one))
            found.append(Ratio(title, f"without {one}", "with it", without, with_it, middle, low, high))
            slow, quick = (min(first[switch]) * 1e6 for switch in (one, ""))
            ratio = slow / quick
            found.append(Ratio(f"{title}, first call", f"without {one}", "with it", slow, quick, ratio, ratio, ratio))
    return found
