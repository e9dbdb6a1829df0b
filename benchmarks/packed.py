"""Products of one row with packed weights of a GPT-2 small, over `linear` with the same weights in f32, on each engine.

The weights of a layer are multiplied in turn with those of all others, as when a token is generated: they come from
memory. On PyTorch and JAX the products are those of compiled functions, and of eager ones too. Times are taken in turn
in one run; bytes are those of the operands.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.harness import Ratio, compare, measure, quick
from benchmarks.rows import output_of

SHAPES = ((3072, 768, 12), (50257, 768, 1))
"""Rows, columns, and how many such matrices."""
QUICK = ((256, 128, 2),)
GROUP = 64
FLOAT = "f32 linear"
CODINGS = {"int8": 8, "int4": 4, "nf4": 4}
TARGETS = {("numpy", "int8"): 0.4, ("numpy", "int4"): 0.3, ("torch", "int8"): 0.4, ("torch", "int4"): 0.3}


def run() -> list[Ratio]:
    """All rows, with each number of threads in a process of its own."""
    rows: list[Ratio] = []
    for threads in (1, 2):
        command = [sys.executable, "-m", "benchmarks.packed", str(threads)]
        printed = output_of(command, {**os.environ, "PHLOX_THREADS": str(threads)})
        for title, engine, times in json.loads(printed.splitlines()[-1]):
            for coding in CODINGS:
                target = TARGETS.get((engine, coding))
                rows.append(compare(f"{title}, {threads} threads", times, coding, FLOAT, target=target))
    for height, width, _ in QUICK if quick() else SHAPES:
        its = height * width * 4.0
        for coding, bits in CODINGS.items():
            mine = height * width * bits / 8 + height * width / GROUP * 4.0
            target, ratio = TARGETS.get(("numpy", coding)), mine / its
            row = Ratio(f"bytes of {width}x{height}", coding, FLOAT, mine * 1e6, its * 1e6, ratio, ratio, ratio, target)
            rows.append(replace(row, measure="bytes"))
    return rows


# --- in each process


def times_of(engine: str, rows: int, columns: int, count: int, compiled: bool) -> dict[str, list[float]]:
    """The seconds of the products with all matrices, by coding."""
    import phlox as px
    from phlox import functional
    from phlox.backend.contract.nn.packed import pack

    rng, device = np.random.default_rng(0), engine

    def tensors(make: Callable[[], Any]) -> list[Any]:
        return [px.tensor(make(), device=device) for _ in range(count)]

    weights = {FLOAT: tensors(lambda: rng.standard_normal((columns, rows), np.float32))}
    for coding, bits in CODINGS.items():
        weights[coding] = tensors(lambda bits=bits: pack(rng.integers(0, 1 << bits, (rows, columns)), bits))
    scales = tensors(lambda: rng.random((rows, columns // GROUP), np.float32))
    x = px.tensor(rng.standard_normal((1, columns), np.float32), device=device)
    wrapped = px.compile if compiled else lambda function: function

    def contestant(name: str) -> Callable[[], None]:
        if name == FLOAT:
            product = wrapped(lambda x, weight, _: functional.linear(x, weight))
        else:
            product = wrapped(lambda x, words, scales: functional.packed_linear(x, words, scales, coding=name))

        def go() -> None:
            for weight, scale in zip(weights[name], scales, strict=True):
                y = product(x, weight, scale)
                y.backend.await_array(y.primitive)

        return go

    rounds, seconds = (3, 0.001) if quick() else (15, 0.1)
    return measure({name: contestant(name) for name in weights}, rounds=rounds, seconds=seconds)


def main(threads: int) -> None:
    """Print all times as JSON."""
    if threads == 1 and hasattr(os, "sched_setaffinity"):  # XLA has no variable that it obeys
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    found: list[Any] = []
    for engine, compiled in (("numpy", False), ("torch", True), ("torch", False), ("jax", True)):
        for rows, columns, count in QUICK if quick() else SHAPES:
            title = f"{count} times {columns}x{rows}, {engine}, {'compiled' if compiled else 'eager'}"
            found.append((title, engine, times_of(engine, rows, columns, count, compiled)))
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
