# pyright: reportMissingImports=false
# The peers are installed beside Phlox only where benchmarks are run.
"""A training step of a small GPT on XLA: its time, the time to the first one, and the memory that XLA plans for it.

The peers, in `gpt_peers`, compute the same losses from the same weights; each row is of the best of them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from typing import Any

import jax

import phlox as px
from benchmarks.gpt_peers import (
    BATCH,
    CONTEXT,
    DECAY,
    HEADS,
    LAYERS,
    LR,
    PEERS,
    VOCABULARY,
    WIDTH,
    Go,
    batch,
    weights,
)  # fmt: skip
from benchmarks.harness import Ratio, compare, measure
from phlox import optim
from phlox.backend import Autodiff, Jax
from phlox.models.gpt import Gpt, GptConfig

SUBJECT = "Phlox compiled on JAX"
STARTS = 3
"""How many fresh processes of each contestant measure the time to the first step."""


def with_weights(model: Gpt) -> Gpt:
    """The model with the weights that all contestants start from."""
    w = weights()
    found = {
        "tokens.weight": w["tokens"], "positions": w["places"], "head.weight": w["head"],
        "norm.gamma": w["norm"], "norm.beta": w["norm_bias"],
    }  # fmt: skip
    for layer in range(LAYERS):
        block = f"blocks.{layer}"
        for norm in ("norm_1", "norm_2"):
            found |= {f"{block}.{norm}.gamma": w[f"{layer}.{norm}"], f"{block}.{norm}.beta": w[f"{layer}.{norm}_bias"]}
        for at, name in enumerate(("query", "key", "value")):
            part = slice(at * WIDTH, (at + 1) * WIDTH)
            found[f"{block}.attention.{name}.weight"] = w[f"{layer}.qkv"][:, part]
            found[f"{block}.attention.{name}.bias"] = w[f"{layer}.qkv_bias"][part]
        for theirs, ours in (("out", "attention.out"), ("up", "up"), ("down", "down")):
            found[f"{block}.{ours}.weight"] = w[f"{layer}.{theirs}"]
            found[f"{block}.{ours}.bias"] = w[f"{layer}.{theirs}_bias"]
    return model.map(lambda path, param: param.map(lambda x: px.tensor(found[path], device=x.device)))


def with_phlox() -> Go:
    """Phlox."""
    device = Autodiff(Jax()).device()
    config = GptConfig(vocabulary=VOCABULARY, context=CONTEXT, n_layers=LAYERS, d_model=WIDTH, n_heads=HEADS)

    def step(model: Gpt, optimizer: Any, lr: float, tokens: Any, targets: Any) -> tuple[Gpt, px.Tensor]:
        loss = model.loss(tokens, targets)
        grads = optim.GradientsParams.from_grads(loss.backward(), model)
        return optimizer.step(lr, model, grads), loss

    run = px.compile(step, donate=("model", "optimizer"))
    state = [with_weights(config.init(device).init(seed=0))]
    optimizer = optim.AdamWConfig(weight_decay=DECAY).init()
    tokens, targets = (px.tensor(x, device=device) for x in batch())

    def go() -> float:
        state[0], loss = run(state[0], optimizer, LR, tokens, targets)
        return loss.item()

    return go


CONTESTANTS = {SUBJECT: with_phlox, **PEERS}


def first(name: str) -> tuple[float, float]:
    """In this process: seconds from the built model to the first loss, and bytes that the step's program works in."""
    go = CONTESTANTS[name]()
    start = time.perf_counter()
    go()
    seconds = time.perf_counter() - start
    programs = jax.devices()[0].client.live_executables()
    return seconds, max(program.get_compiled_memory_stats().temp_size_in_bytes for program in programs)


def in_a_fresh_process(name: str) -> tuple[float, float]:
    """As `first`."""
    command = [sys.executable, "-m", "benchmarks.gpt_step", name]
    seconds, size = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return seconds, size


def check(contestants: dict[str, Go]) -> None:
    """All make the same five first steps."""
    expected = [contestants[SUBJECT]() for _ in range(5)]
    for name, go in contestants.items():
        found = expected if name == SUBJECT else [go() for _ in range(5)]
        if not all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(found, expected, strict=True)):
            raise AssertionError(f"{name}: losses {found}, expected {expected}")


def run() -> list[Ratio]:
    """All rows."""
    starts: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    sizes: dict[str, float] = {}
    for _ in range(STARTS):
        for name in CONTESTANTS:
            seconds, sizes[name] = in_a_fresh_process(name)
            starts[name].append(seconds)
    contestants = {name: make() for name, make in CONTESTANTS.items()}
    check(contestants)
    times = measure(contestants, rounds=9, seconds=0.5)

    def best(of: dict[str, Any]) -> str:
        return min(PEERS, key=lambda name: of[name])

    medians = {name: statistics.median(found) for name, found in times.items()}
    first_medians = {name: statistics.median(found) for name, found in starts.items()}
    workload = f"GPT {LAYERS}x{WIDTH}, context {CONTEXT}, batch {BATCH}, AdamW"
    fastest = best(medians)
    rows = [compare(f"{workload}: step", times, SUBJECT, fastest, target=0.85)]
    rows += [compare(f"{workload}: step", times, SUBJECT, name) for name in PEERS if name != fastest]
    rows.append(compare(f"{workload}: to the first step", starts, SUBJECT, best(first_medians), target=0.6))
    leanest = best(sizes)
    ours, theirs = sizes[SUBJECT], sizes[leanest]
    ratio = ours / theirs
    rows.append(
        Ratio(f"{workload}: MiB", SUBJECT, leanest, ours / 2**20, theirs / 2**20, ratio, ratio, ratio, target=0.7)
    )
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpt_step", description=first.__doc__)
    parser.add_argument("name", choices=list(CONTESTANTS))
    print(json.dumps(first(parser.parse_args().name)))
