"""The figures that pages take from runs, by the names that stand in their markers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.arena.report import counts, rates, shown_name, verdict, versions, where
from benchmarks.arena.run import Run
from benchmarks.harness import Ratio, duration

MARKED = re.compile(r"<!-- benchmarks: (.+?) -->.*?<!-- /benchmarks -->", re.DOTALL)

GROUPS: Mapping[str, re.Pattern[str]] = {
    "saving a model": re.compile(r"^save\b"),
    "loading a model, verify=False": re.compile(r"^load\b"),
    "a step on 8 simulated devices": re.compile(r"8 simulated devices"),
}
"""Rows that the table of `rows` shows as one."""


@dataclass(frozen=True)
class Recorded:
    """The runs that pages show."""

    cpu: Run
    operations: Run

    def row(self, workload: str, subject: str, peer: str) -> Ratio:
        """A row of starting, saving, loading, or of single operations."""
        rows = [*self.cpu.rows, *self.operations.details]
        found = [row for row in rows if (row.workload, row.subject, row.peer) == (workload, subject, peer)]
        if not found:
            raise LookupError(f"no row was measured for {workload!r}, {subject!r} against {peer!r}")
        return found[0]


def fill(text: str, recorded: Recorded) -> str:
    """The page with each `<!-- benchmarks: NAME -->...<!-- /benchmarks -->` filled; an unknown name is a KeyError."""

    def filled(found: re.Match[str]) -> str:
        name = found[1]
        content = FIGURES[name](recorded)
        block = "\n\n" if "\n" in content else ""
        return f"<!-- benchmarks: {name} -->{block}{content}{block}<!-- /benchmarks -->"

    return MARKED.sub(filled, text)


def _change(workload: str, task: str, after: str, before: str, title: str) -> Callable[[Recorded], str]:
    """What a configuration gains over another one of Phlox."""

    def figure(recorded: Recorded) -> str:
        work = recorded.cpu.work(workload)
        new, old = (work.timing(task, name).seconds for name in (after, before))
        return f"{title}: from {duration(old)} to {duration(new)} ({new / old:.2f})"

    return figure


def _headline(recorded: Recorded) -> str:
    """Five rows for a front page."""
    shown = {
        "train a GPT of 6 layers, a step": "GPT 6x384, context 256, batch 8: training",
        "train a residual CNN, a step": "residual CNN 32x32x3, batch 64: training",
        "train a small MLP, a step": "MLP 64-128-10, batch 64: training",
        "import, load a model, predict": "time to the first prediction",
        "save 0.13 GB, durably": "save, 0.13 GB of f32, durably",
    }
    rows = {row.workload: row for row in recorded.cpu.headlines}
    lines = ["| task | Phlox | the best other library | ratio of times |", "|---|---|---|---:|"]
    for label, workload in shown.items():
        row = rows[workload]
        mine, theirs = (duration(us / 1e6) for us in (row.subject_us, row.peer_us))
        ours, peer = shown_name(row.subject), shown_name(row.peer)
        lines.append(f"| {label} | {ours}: {mine} | {peer}: {theirs} | {row.figure} |")
    return "\n".join(lines)


def _rows(recorded: Recorded) -> str:
    """All headlines; those of saving, of loading and of several devices as one row each."""
    lines = ["| workload | best configuration of Phlox | best peer | ratio |", "|---|---|---|---:|"]
    grouped: dict[str, list[Ratio]] = {name: [] for name in GROUPS}
    for row in recorded.cpu.headlines:
        group = next((name for name, pattern in GROUPS.items() if pattern.search(row.workload)), None)
        if group is not None:
            grouped[group].append(row)
            continue
        lines.append(f"| {row.workload} | {shown_name(row.subject)} | {shown_name(row.peer)} | {row.figure} |")
    lines += [
        f"| {name}: {len(rows)} rows | {_each(row.subject for row in rows)} | {_each(row.peer for row in rows)} "
        f"| {_range([row.ratio for row in rows])} |"
        for name, rows in grouped.items()
        if rows
    ]
    return "\n".join(lines)


def _each(names: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(shown_name(name) for name in names))


def _range(ratios: Sequence[float]) -> str:
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def _peak(recorded: Recorded) -> str:
    """The rate of the products of a training step, beside the highest rate of this run."""
    lines = [
        "| workload | GFLOP a step | Phlox, GFLOP/s | of the peak | best peer, of the peak |",
        f"|---|{'---:|' * 4}",
    ]
    for work in recorded.cpu.works:
        found = list(rates(work, recorded.cpu))
        if found:
            (_, rate, share), (_, _, theirs) = found
            lines.append(f"| {work.title} | {work.flops / 1e9:.3g} | {rate / 1e9:.0f} | {share:.0%} | {theirs:.0%} |")
    return "\n".join(lines)


def _first_prediction(recorded: Recorded) -> str:
    times = {peer: recorded.row("time to the first prediction", "phlox", peer) for peer in ("jax", "torch")}
    memory = recorded.row("peak memory to the first prediction", "phlox", "torch")
    others = ", ".join(f"{shown_name(peer)} {duration(row.peer_us / 1e6)}" for peer, row in times.items())
    return (
        f"start to first prediction: {duration(times['jax'].subject_us / 1e6)} ({others}), "
        f"{memory.subject_us / 1e12:.0f} MB (PyTorch {memory.peer_us / 1e12:.0f} MB)"
    )


def _verify(recorded: Recorded) -> str:
    workload, peer = "load 0.13 GB of f32 on NumPy, until the model is there", "safetensors.torch"
    mine, default = (recorded.row(workload, name, peer) for name in ("Phlox, verify=False", "Phlox"))
    return f"0.13 GB: from {duration(default.subject_us / 1e6)} to {duration(mine.subject_us / 1e6)}"


def _bf16(recorded: Recorded) -> str:
    row = recorded.row("matmul 1024^3", "Phlox on Torch, bf16", "Phlox on Torch, f32")
    return f"{row.ratio:.2f} of the time of f32"


def _peak_rate(recorded: Recorded) -> str:
    machine = recorded.cpu.machine
    return "" if machine is None else f"{machine.flops / 1e9:.0f} GFLOP/s ({machine.fastest})"


def _growth(recorded: Recorded) -> str:
    from benchmarks import growth, growth_page

    return growth_page.table(growth.load()[1])


FIGURES: Mapping[str, Callable[[Recorded], str]] = {
    "headline": _headline,
    "verdict": lambda recorded: verdict(recorded.cpu),
    "rows ahead": lambda recorded: "{0} of {2}".format(*counts(recorded.cpu)),
    "rows": _rows,
    "peak": _peak,
    "peak rate": _peak_rate,
    "machine": lambda recorded: where(recorded.cpu),
    "date": lambda recorded: recorded.cpu.date,
    "versions": lambda recorded: versions(recorded.cpu),
    "operations: machine": lambda recorded: where(recorded.operations),
    "operations: date": lambda recorded: recorded.operations.date,
    "operations: versions": lambda recorded: versions(recorded.operations),
    "compile": _change(
        "mlp-small", "training", "Phlox on PyTorch", "Phlox on PyTorch, eager", "small MLP on PyTorch, a step"
    ),
    "steps": _change(
        "mlp-small", "training", "Phlox on JAX, 32 steps a call", "Phlox on JAX", "small MLP on JAX, a step"
    ),
    "engine": _change("cnn", "training", "Phlox on PyTorch", "Phlox on JAX", "CNN, a step, on PyTorch in place of JAX"),
    "keep": _change(
        "lstm", "training", "Phlox on PyTorch, memory kept", "Phlox on PyTorch", "LSTM on PyTorch, a step"
    ),
    "first prediction": _first_prediction,
    "verify": _verify,
    "bf16": _bf16,
    "growth": _growth,
}  # fmt: skip
"""What each name gives. A table is several lines; everything else stands in a sentence or in a cell."""
