"""What was measured, as Markdown and as a picture."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.arena import headlines
from benchmarks.arena.entry import Entry, Result
from benchmarks.arena.machine import Machine
from benchmarks.arena.picture import draw
from benchmarks.harness import Ratio, table

LEVEL, AHEAD = 1.0, 0.8


@dataclass(frozen=True)
class Report:
    """Of one run."""

    machine: Machine | None
    results: Sequence[Result]
    rows: Sequence[Ratio]
    """Of the benchmarks that compare by themselves and have a place among the headlines."""
    details: Sequence[Ratio]
    """Of those that have none."""
    python: str

    @property
    def headlines(self) -> list[Ratio]:
        """One a workload."""
        return [row for result in self.results for row in headlines.of_result(result)] + headlines.of_rows(self.rows)

    def text(self) -> str:
        """All of it, as Markdown."""
        parts = [self._machine(), _summary(self.headlines, headlines.replicate_like(self.rows))]
        parts += [_workload(result, self.machine) for result in self.results]
        if self.rows:
            parts.append(f"## Starting, saving, loading, several devices\n\n{table(list(self.rows))}")
        if self.details:
            parts.append(f"## In detail\n\n{table(list(self.details))}")
        return "\n\n".join(part for part in parts if part) + "\n"

    def write(self, folder: Path) -> None:
        """`benchmarks.md` and `benchmarks.svg`."""
        folder.mkdir(parents=True, exist_ok=True)
        picture = "![Time of Phlox over that of the best peer, for each workload](benchmarks.svg)\n\n"
        page = HEADER + (picture if self.headlines else "") + self.text()
        (folder / "benchmarks.md").write_text(page, encoding="utf-8")
        if self.headlines:
            draw(self.headlines, folder / "benchmarks.svg", headlines.replicate_like(self.rows))

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
                f"- The peak, measured in this run: {machine.flops / 1e9:.0f} GFLOP/s, by {machine.fastest}. All that "
                f"was tried: {', '.join(f'{name} {rate / 1e9:.0f}' for name, rate in seen)}"
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

Everybody computes the same: ten losses from the same weights, and the logits of one example, are compared. All are
timed by turns in one run; where a step takes 0.1 s and more, the last seven of those that are compared are the turns.
A ratio is the median over the turns, with its quartiles. Elsewhere, and with dropout, whose losses differ, who is much
slower than the fastest of its side leaves early, and has no part in the headlines: by its first steps where they are
long (1.5 times), after one turn of training or two of inference (1.4 times), or after two more (1.2 times); where one
figure is all there are no quartiles. With dropout those are left out who took 1.4 times as long without it. Below 1.0
Phlox is faster.

*Memory kept* is a setting of the C library, for Phlox by `PHLOX_ALLOCATOR=keep` and for the peers by `GLIBC_TUNABLES`:
freed memory waits for the next array. *rbg* is the faster random generator of JAX. Such a setting is tried with those
who take at most 1.2 times as long as the fastest of their side without it; they only train, and are compared for two
steps, or for nine where these are the turns. Where steps are long, Flax NNX takes part by its `split` alone: `nnx.jit`
runs the same program, and dispatches it more slowly. How to read it all, and why each number is what it is:
[performance](performance.md).

"""


BESIDE = (
    "Rows marked *not counted* are there to be known: their peer does better than that of the row above them, but does "
    "less than a framework that trains models. NumPy by hand is the floor of what Python can do, a program written out "
    "for this one model; onnxruntime runs a graph that another library has exported before; a dictionary of arrays is "
    "what a file gives before it is in a model. The headline asks what a user of a framework waits for."
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
    """The median, and the ratio to the best peer with its quartiles."""
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
    """How much of the machine's peak the products of a step are, where a step is long."""
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
    name = "Model FLOP utilisation" if machine.accelerator else "Products"
    return [f"- {name}, {flops / 1e9:.2f} GFLOP a step: {'; '.join(shares)}"]
