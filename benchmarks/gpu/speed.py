# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
# The other libraries are installed only for the benchmarks.
"""The parts that measure times on a GPU: contestants take turns in one run, and wait for the device in each round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.arena.entry import Entry, Result
from benchmarks.gpu.checks import gpu_of
from benchmarks.gpu.command import Task, peak_of
from benchmarks.harness import FAILED, built, compare, duration, in_turn
from benchmarks.workloads import ACCELERATED, QUICK, Workload

TAKING_PART = ("Phlox on PyTorch", "Phlox on JAX", "Phlox on PyTorch, eager", "PyTorch", "torch.compile",
               "JAX and Optax", "Flax NNX (split)")  # fmt: skip
DRY = {
    "gpt": ("Phlox on JAX", "Phlox on PyTorch, eager", "PyTorch", "Flax NNX (split)"),
    "cnn": ("Phlox on PyTorch, eager", "PyTorch"),
}
"""In a dry run, by family, those that compile quickly."""


def gpt(task: Task) -> None:
    """Training steps of GPT-2 small, whose tokens count."""
    sizes = _workload("gpt-12x768", "gpt-4x256", task)
    _training(task, sizes, "tokens", sizes.sizes.batch * sizes.sizes.context)


def cnn(task: Task) -> None:
    """Training steps of the residual CNN, whose images count."""
    workload = _workload("cnn", "cnn", task)
    _training(task, workload, "images", workload.sizes.batch)


def _workload(name: str, small: str, task: Task) -> Workload:
    """The workload of the tables, trained only, with the time to the first step."""
    table, name = (QUICK, small) if task.dry else (ACCELERATED, name)
    workload = next(workload for workload in table if workload.name == name)
    return replace(workload, kind="accelerated", predicts=False, starts=2)


def _training(task: Task, workload: Workload, unit: str, count: int) -> None:
    from benchmarks.arena.machine import accelerator
    from benchmarks.arena.match import QUICK_PLAN, Plan, play
    from benchmarks.contestants import CONTESTANTS

    card = accelerator()
    peak = task.peak or (peak_of(card) if card else None)
    names = DRY[workload.family] if task.dry else TAKING_PART
    contestants = [contestant for contestant in CONTESTANTS if contestant.name in names]
    plan = QUICK_PLAN if task.dry else Plan(rounds=9, training=0.4, several_starts=False)
    plan = replace(plan, at_once=True, to_the_end=True, patience=max(task.left - 40.0, 30.0))
    result = play(workload, plan, contestants, fresh=not task.dry)
    rows = [row_of(entry, result, count, peak) for entry in result.entries]
    note = "all compiled at once, so the time to the first step is an upper bound"
    lines = [f"{workload.title}; {note}", *columns(rows, f"{unit}/s")]
    good = not any(row.get("missing") and row["name"].startswith("Phlox") for row in rows) and not result.wrong
    task.write(
        lines, is_good=good, workload=workload.title, flops=workload.flops, peak=peak, rows=rows, wrong=result.wrong,
        versions=result.versions,
    )  # fmt: skip


def row_of(entry: Entry, result: Result, count: int, peak: float | None) -> dict[str, Any]:
    """The figures of a contestant; ratios are to the best peer's times in the same rounds."""
    row: dict[str, Any] = {"name": entry.contestant.name}
    problem = entry.missing or entry.wrong
    if problem or not entry.training:
        return row | {"missing": problem or "it has no times"}
    seconds = statistics.median(entry.training)
    row |= {
        "seconds": seconds, "rate": count / seconds, "rounds": entry.training, "losses": entry.losses,
        "first": entry.first[0] if entry.first else None, "mib": entry.mib,
        "mfu": None if peak is None else result.workload.flops / seconds / peak,
    }  # fmt: skip
    peers = [e for e in result.entries if e.training and not (e.missing or e.wrong or e.contestant.ours)]
    best = min(peers, key=lambda e: statistics.median(e.training), default=None)
    if best is not None and len(entry.training) > 1 and best is not entry:
        times = {"subject": entry.training, "peer": best.training}
        ratio = compare(result.workload.title, times, "subject", "peer")
        row |= {"peer": best.contestant.name, "ratio": ratio.ratio, "low": ratio.low, "high": ratio.high}
    return row


def columns(rows: Sequence[dict[str, Any]], unit: str) -> list[str]:
    """The rows as lines of one width."""
    table = [("", "a step", unit, "of the peak", "peak memory", "first step", "to the best peer (quartiles)")]
    for row in rows:
        if "missing" in row:
            table.append((row["name"], f"failed: {row['missing']}"[:120], "", "", "", "", ""))
            continue
        ratio = f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f})" if "ratio" in row else ""
        table.append((
            row["name"], duration(row["seconds"]), f"{row['rate']:,.0f}",
            "" if row["mfu"] is None else f"{row['mfu']:.1%}", f"{row['mib'] / 1024:.2f} GiB",
            "" if row["first"] is None else f"{row['first']:.1f} s", ratio,
        ))  # fmt: skip
    widths = [max(len(line[column]) for line in table if line[2] or not column) for column in range(7)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]


def generation(task: Task) -> None:
    """A token after a prompt of 32, greedy, beside `transformers`, and beside a program that only reads the weights."""
    import torch

    from benchmarks import generation as texts
    from phlox.backend import Jax, Torch

    sizes = texts.SMALL if task.dry else texts.SIZES
    new, rounds = (5, 2) if task.dry else (65, 5)
    place = "cpu" if task.dry else "cuda"
    name = gpu_of("torch", task).partition(":")[2]
    half: dict[str, Any] = {"device": place, "dtype": torch.bfloat16}
    lines: list[str] = []
    rows: list[dict[str, Any]] = []
    for batch in (1, 32):
        on_torch, on_jax = Torch(float="bf16").device(name), Jax(float="bf16").device(name)
        ours = partial(texts.phlox_model, sizes=sizes, batch=batch)
        makers: dict[str, Callable[[], texts.Steps]] = {
            "transformers": partial(texts.theirs, sizes, batch=batch, **half),
            "reading the weights": partial(texts.reading, sizes, **half),
            "Phlox on PyTorch, eager": partial(ours, on_torch, compiled=False),
            "Phlox on JAX": partial(ours, on_jax, compiled=True),
        }
        if not task.dry:
            makers["Phlox on PyTorch"] = partial(ours, on_torch, compiled=True)
        FAILED.clear()
        contestants = {title: partial(texts.seconds_of_a_token, steps, new) for title, steps in built(makers).items()}
        ready = built(contestants)  # called once, which compiles
        times = in_turn({title: contestants[title] for title in ready}, range(rounds))
        title = f"a token, batch {batch}"
        for contestant in makers:
            if contestant not in times:
                lines.append(f"{title}: {contestant}: failed: {FAILED[contestant]}")
                rows.append({"batch": batch, "name": contestant, "missing": FAILED[contestant]})
                continue
            seconds = statistics.median(times[contestant])
            row = {"batch": batch, "name": contestant, "seconds": seconds, "rounds": times[contestant]}
            line = f"{title}: {contestant}: {duration(seconds)}, {batch / seconds:,.0f} tokens/s"
            if contestant != "transformers" and "transformers" in times:
                ratio = compare(title, times, contestant, "transformers")
                row |= {"ratio": ratio.ratio, "low": ratio.low, "high": ratio.high}
                line += f", {ratio.ratio:.2f} ({ratio.low:.2f} to {ratio.high:.2f}) of transformers"
            rows.append(row)
            lines.append(line)
        good = not any("missing" in row and row["name"].startswith("Phlox") for row in rows)
        task.write(lines, is_good=good, rows=rows)
