"""The price of the reproducible mode: a training step in it, over the same step outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import phlox as px
from benchmarks.harness import Ratio, compare, quick, seconds_in_turn
from benchmarks.libraries.with_phlox import Contestant
from benchmarks.workloads import Workload

ENGINES = {"NumPy": "numpy eager", "PyTorch, eager": "torch eager", "JAX": "jax"}
SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "MLP 784-1024-1024-10, batch 256": ("mlp", {"widths": (784, 1024, 1024, 10), "batch": 256}),
    "GPT 2x256, context 64, batch 8": ("gpt", {"layers": 2, "context": 64, "batch": 8}),
}
MODE = ", reproducible"


def run() -> list[Ratio]:
    """All rows of the table."""
    rows: list[Ratio] = []
    for title, (family, options) in SIZES.items():
        workload = Workload(family, title, family, options)
        steps: dict[str, Callable[[], Any]] = {}
        for engine, variant in ENGINES.items():
            contestant = Contestant(workload, variant)
            steps[engine] = lambda contestant=contestant: contestant.losses(1)
            # The decorator switches the mode on for each call.
            steps[engine + MODE] = px.reproducible()(steps[engine])
        times = seconds_in_turn(steps, rounds=3 if quick() else 15)
        rows += [compare(f"{title}: training", times, engine + MODE, engine, target=1.5) for engine in ENGINES]
    return rows
