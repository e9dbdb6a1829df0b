"""The results as Markdown and as a plot."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arena import headlines
from benchmarks.arena.entry import Entry, Result
from benchmarks.arena.machine import Machine
from benchmarks.arena.plot import draw
from benchmarks.harness import Ratio, table

LEVEL, AHEAD = 1.0, 0.8


@dataclass(frozen=True)
class Report:
    """The report of one run."""

    machine: Machine | None
    results: Sequence[Result]
    rows: Sequence[Ratio]
    """The rows of benchmarks with their own comparisons that are among the headlines."""
    details: Sequence[Ratio]
    """The rows of the detailed benchmarks."""
    python: str

    @property
    def headlines(self) -> list[Ratio]:
        """One row for each workload."""
        return [row for result in self.results for row in headlines.of_result(result)] + headlines.of_rows(self.rows)

    def text(self) -> str:
        """The whole report as Markdown."""
        parts = [self._machine(), _summary(self.headlines, headlines.not_counted(self.rows))]
        parts += [_workload(result, self.machine) for result in self.results]
        if self.rows:
            parts.append(f"## Starting, saving, loading, several devices\n\n{table(list(self.rows))}")
        if self.details:
            parts.append(f"## In detail\n\n{table(list(self.details))}")
        return "\n\n".join(part for part in parts if part) + "\n"

    def write(self, folder: Path) -> None:
        """Write `benchmarks.md` and `benchmarks.svg`."""
        folder.mkdir(parents=True, exist_ok=True)
        plot = "![Time of Phlox over that of the best peer, for each workload](benchmarks.svg)\n\n"
        page = HEADER + (plot if self.headlines else "") + self.text()
        (folder / "benchmarks.md").write_text(page, encoding="utf-8")
        if self.headlines:
            draw(self.headlines, folder / "benchmarks.svg", headlines.not_counted(self.rows))

    def _machine(self) -> str:
        versions: dict[str, str] = {}
        for result in self.results:
            versions |= result.versions
        lines = [f"- Python {self.python}" + "".join(f", {name} {version}" for name, version in versions.items())]
        machine = self.machine
        if machine is not None:
            where = f"{machine.cores} cores of {machine.processor}"
            lines.insert(0, f"- {where}" + (f", {machine.accelerator}" if machine.accelerator else ""))
            seen = sorted(machine.seen.items(), key=lambda pair: -pair[1])
            lines.append(
                f"- The peak, measured in this run: {machine.flops / 1e9:.0f} GFLOP/s, by {machine.fastest}. All "
                f"measured rates: {', '.join(f'{name} {rate / 1e9:.0f}' for name, rate in seen)}"
            )
            lines.append(
                f"- Memory: {machine.copied / 1e9:.0f} GB/s copying, {machine.triad / 1e9:.0f} GB/s in a triad, bytes "
                "read and written together"
            )
        took = sum(result.seconds for result in self.results)
        if took:
            lines.append(f"- The workloads below took {took:.0f} s together")
        return "\n".join(lines)


HEADER = """# Benchmarks

<!-- Written by `make bench`: changes made here are lost with the next run. -->

All contestants compute the same: ten losses from the same weights, and the logits of one example, are compared. All are
timed in alternating rounds in one run. If a step takes 0.1 s or more, the last seven compared steps are the rounds. A
ratio is the median over the rounds, with its quartiles. Below 1.0 Phlox is faster.

Slow contestants are dropped early, and are not in the headline table. A contestant is dropped if it is slower than the
fastest of its side (Phlox, or the peers): by 1.5 times in its first steps, if these are long; by 1.4 times after one
round of training or two of inference; or by 1.2 times after two more rounds. Where only one figure is shown, there are
no quartiles. No contestant is dropped in this way where the compared steps are the rounds, except with dropout, where
losses differ. Contestants that took 1.4 times as long as the fastest without dropout do not take part with dropout.

*Memory kept* is a setting of the C library, for Phlox by `PHLOX_ALLOCATOR=keep` and for the peers by `GLIBC_TUNABLES`:
freed memory is kept for the next array. *rbg* is JAX's faster random generator. Such a setting is tried with
contestants that take at most 1.2 times as long as the fastest of their side without it. They only train, and are
compared for two steps, or for nine if these are the rounds. If steps are long, Flax NNX takes part only by its `split`:
`nnx.jit` runs the same program, and dispatches it more slowly. [Performance](performance.md) explains how to read the
tables, and the reason for each number.

"""


BESIDE = (
    "Rows marked *not counted* are shown for comparison only: their peer is faster than that of the row above them, "
    "but does less than a framework that trains models. NumPy by hand is the lower bound in Python, a program for this "
    "one model; onnxruntime runs a graph that another library has exported before; a dictionary of arrays is the "
    "content of a file before it is loaded into a model. The headlines compare what a user of a framework waits for."
)


def _summary(rows: Sequence[Ratio], beside: Sequence[Ratio]) -> str:
    if not rows:
        return ""
    lines = [
        "| workload | best Phlox configuration | best peer | ratio | quartiles | at most 1.0? |",
        "|---|---|---|---:|---:|---|",
    ]
    for row in rows:
        lines.append(_line(row, "yes" if row.ratio <= LEVEL else "**no**"))
        lines += [_line(other, "*not counted*") for other in beside if other.workload == row.workload]
    level, ahead = (sum(row.ratio <= bound for row in rows) for bound in (LEVEL, AHEAD))
    lines += ["", f"At most {LEVEL} in {level} of {len(rows)}, at most {AHEAD} in {ahead} of {len(rows)}."]
    return "\n".join([*lines, "", BESIDE] if beside else lines)


def _line(row: Ratio, met: str) -> str:
    figures = f"{row.figure} | {row.low:.2f} to {row.high:.2f} | {met}"
    return f"| {row.workload} | {row.subject} | {row.peer} | {figures} |"


def _workload(result: Result, machine: Machine | None) -> str:
    lines = [
        f"## {result.workload.title}",
        "",
        "| contestant | training step | to the best peer | first step | peak memory | prediction | to the best peer |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    taking_part = [entry for entry in result.entries if entry.missing is None and entry.wrong is None]
    for entry in taking_part:
        first = f"{statistics.median(entry.first):.2f} s" if entry.first else ""
        memory = f"{entry.mib:.0f} MiB" if entry.mib else ""
        cells = [
            _name(entry), *_compared(entry, taking_part, headlines.training), first, memory,
            *_compared(entry, taking_part, headlines.inference),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines += [f"| {_name(entry)} | missing | | | | | |" for entry in result.entries if entry.missing is not None]
    notes = [f"- {entry.contestant.name} is missing: {entry.missing}" for entry in result.entries if entry.missing]
    notes += [f"- **{entry.contestant.name} is wrong: {entry.wrong}**" for entry in result.entries if entry.wrong]
    notes += _rates(result, machine)
    notes += [f"- It took {result.seconds:.0f} s to measure all this"] if result.seconds else []
    return "\n".join(lines + (["", *notes] if notes else []))


def _name(entry: Entry) -> str:
    return f"**{entry.contestant.name}**" if entry.contestant.ours else entry.contestant.name


def _compared(entry: Entry, entries: Sequence[Entry], times: headlines.Times) -> tuple[str, str]:
    """The median, and its ratio to the best peer with quartiles."""
    found = times(entry)
    if not found:
        return "", ""
    peer = headlines.best(entries, times, ours=False)
    if peer is None:
        return _shown(statistics.median(found)), ""
    if peer is entry:
        return _shown(statistics.median(found)), "1"
    if min(len(found), len(times(peer))) < 2:
        return _shown(statistics.median(found)), f"{found[0] / times(peer)[0]:.2f}"
    row = headlines.between("", entry, peer, times)
    return _shown(statistics.median(found)), f"{row.ratio:.2f} ({row.low:.2f} to {row.high:.2f})"


def _shown(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"


def _rates(result: Result, machine: Machine | None) -> list[str]:
    """The matrix products of a step as a share of the machine's peak, for long steps."""
    if machine is None or result.workload.kind == "tiny":
        return []
    flops = result.workload.flops
    shares: list[str] = []
    for ours in (True, False):
        entry = headlines.best(result.entries, headlines.training, ours=ours)
        if entry is not None:
            rate = flops / statistics.median(entry.training)
            shares.append(f"{entry.contestant.name} {rate / 1e9:.0f} GFLOP/s, {rate / machine.flops:.0%} of the peak")
    if not shares:
        return []
    name = "Model FLOP utilization" if machine.accelerator else "Products"
    return [f"- {name}, {flops / 1e9:.2f} GFLOP per step: {'; '.join(shares)}"]
