"""The figures of one run as data: a JSON file, from which the pages and the plot are made."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.arena import headlines
from benchmarks.arena.entry import Entry, Result
from benchmarks.arena.machine import Machine
from benchmarks.harness import Ratio

TASKS: dict[str, headlines.Times] = {
    "training": headlines.training,
    "inference": headlines.inference,
    "time to the first step": headlines.first,
}
WIDTH = 120


@dataclass(frozen=True)
class Timing:
    """The median time of one contestant, and its ratio to that of the best peer in the same rounds."""

    seconds: float
    ratio: float | None = None
    low: float | None = None
    """The quartiles of the ratio; None for the peer itself, and after a single round."""
    high: float | None = None


@dataclass(frozen=True)
class Contestant:
    """One contestant on one workload."""

    name: str
    ours: bool = False
    mib: float = 0.0
    """The peak memory of its process."""
    times: Mapping[str, Timing] = field(default_factory=dict[str, Timing])
    """By task."""
    missing: str | None = None
    wrong: str | None = None


@dataclass(frozen=True)
class Work:
    """All contestants on one workload."""

    name: str
    title: str
    flops: float
    """Of the products and convolutions of a training step; 0 for a tiny model, whose time is not spent on them."""
    seconds: float
    """The duration of the whole measurement."""
    contestants: Sequence[Contestant]
    best: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """By task: the fastest configuration of Phlox, and the fastest peer."""

    def timing(self, task: str, name: str) -> Timing:
        """The time of one contestant."""
        for one in self.contestants:
            if one.name == name and task in one.times:
                return one.times[task]
        raise LookupError(f"{self.title}: {task} was not measured for {name}")

    def headlines(self) -> Iterator[Ratio]:
        """The best of Phlox over the best peer, for each task."""
        for task, (ours, peer) in self.best.items():
            mine, theirs = (self.timing(task, name) for name in (ours, peer))
            assert mine.ratio is not None and mine.low is not None and mine.high is not None
            yield Ratio(
                f"{self.title}: {task}", ours, peer, mine.seconds * 1e6, theirs.seconds * 1e6, mine.ratio, mine.low,
                mine.high,
            )  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One run on one machine."""

    date: str
    python: str
    machine: Machine | None = None
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    works: Sequence[Work] = ()
    rows: Sequence[Ratio] = ()
    """The rows of benchmarks with their own comparisons that are among the headlines."""
    details: Sequence[Ratio] = ()
    """The rows of single operations and calls."""

    @property
    def headlines(self) -> list[Ratio]:
        """One row for each task of each workload."""
        return [row for work in self.works for row in work.headlines()] + headlines.of_rows(self.rows)

    @property
    def not_counted(self) -> list[Ratio]:
        """The rows whose peer is faster than that of the headline, but does less than a framework."""
        return headlines.not_counted(self.rows)

    def work(self, name: str) -> Work:
        """The workload of this name."""
        for work in self.works:
            if work.name == name:
                return work
        raise LookupError(f"the workload {name!r} was not measured")

    def save(self, file: Path) -> None:
        """Write the file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_as_text(_plain(asdict(self))) + "\n", encoding="utf-8")


def load(file: Path) -> Run:
    """Read a file that `Run.save` has written."""
    plain = json.loads(file.read_text(encoding="utf-8"))
    machine = plain.pop("machine", None)
    works = [
        Work(**work | {
            "contestants": [
                Contestant(**one | {"times": {task: Timing(**timing) for task, timing in one.get("times", {}).items()}})
                for one in work["contestants"]
            ],
            "best": {task: (ours, peer) for task, (ours, peer) in work.get("best", {}).items()},
        })
        for work in plain.pop("works", [])
    ]  # fmt: skip
    rows, details = ([Ratio(**row) for row in plain.pop(name, [])] for name in ("rows", "details"))
    return Run(**plain, machine=machine and Machine(**machine), works=works, rows=rows, details=details)


def run_of(
    machine: Machine | None,
    results: Sequence[Result],
    rows: Sequence[Ratio],
    details: Sequence[Ratio],
    *,
    python: str,
    date: str,
) -> Run:
    """The figures of what was measured."""
    versions: dict[str, str] = {}
    for result in results:
        versions |= result.versions
    return Run(date, python, machine, versions, [_work(result) for result in results], rows, details)


def _work(result: Result) -> Work:
    taking_part = [entry for entry in result.entries if entry.missing is None and entry.wrong is None]
    best: dict[str, tuple[str, str]] = {}
    for task, times in TASKS.items():
        row = headlines.headline(result, task, times)
        if row is not None:
            best[task] = row.subject, row.peer
    contestants = [
        Contestant(
            entry.contestant.name, entry.contestant.ours, entry.mib,
            {} if entry not in taking_part else {
                task: _timing(entry, taking_part, times) for task, times in TASKS.items() if times(entry)
            },
            entry.missing, entry.wrong,
        )
        for entry in result.entries
    ]  # fmt: skip
    workload = result.workload
    flops = 0.0 if workload.kind == "tiny" else workload.flops
    return Work(workload.name, workload.title, flops, result.seconds, contestants, best)


def _timing(entry: Entry, entries: Sequence[Entry], times: headlines.Times) -> Timing:
    found = times(entry)
    seconds, peer = statistics.median(found), headlines.best(entries, times, ours=False)
    if peer is None:
        return Timing(seconds)
    if peer is entry:
        return Timing(seconds, 1.0)
    if min(len(found), len(times(peer))) < 2:
        return Timing(seconds, found[0] / times(peer)[0])
    row = headlines.between("", entry, peer, times)
    return Timing(seconds, row.ratio, row.low, row.high)


def _plain(value: Any) -> Any:
    """For JSON: six digits of each figure, without what is empty."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items() if one is not None and one is not False and one != {}}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _as_text(plain: Any, indent: str = "") -> str:
    """JSON with a line for each part that fits one, and for each row."""
    line = json.dumps(plain)
    if not isinstance(plain, dict | list) or len(indent) + len(line) < WIDTH:
        return line
    if isinstance(plain, dict) and not any(isinstance(value, dict | list) for value in plain.values()):
        return line
    inner = indent + " "
    if isinstance(plain, list):
        return "[\n" + ",\n".join(inner + _as_text(one, inner) for one in plain) + f"\n{indent}]"
    lines = [f"{inner}{json.dumps(key)}: {_as_text(value, inner)}" for key, value in plain.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
