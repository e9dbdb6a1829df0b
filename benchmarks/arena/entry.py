"""The results of a match: of one contestant, and of all on one workload."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.contestants import Contestant
from benchmarks.workloads import Workload


@dataclass
class Entry:
    """The results of one contestant on one workload."""

    contestant: Contestant
    missing: str | None = None
    """Why it could not take part; None if it could."""
    wrong: str | None = None
    """How its results differ from those of the others; None if they do not."""
    losses: list[float] = field(default_factory=list[float])
    averaged: bool = False
    outputs: list[float] = field(default_factory=list[float])
    first: list[float] = field(default_factory=list[float])
    """Seconds from the built model to the first loss, for each process; empty if this is not measured."""
    each: float = 0.0
    """The approximate seconds of a compared step, without the first one."""
    mib: float = 0.0
    """The peak memory after the compared steps: of the GPU if arrays are there, else of the process."""
    training: list[float] = field(default_factory=list[float])
    """The seconds per step in each round."""
    inference: list[float] = field(default_factory=list[float])


@dataclass
class Result:
    """All contestants on one workload."""

    workload: Workload
    entries: list[Entry]
    versions: dict[str, str]
    seconds: float = 0.0
    """The duration of the whole measurement."""

    @property
    def wrong(self) -> list[str]:
        """The contestants that computed something else."""
        title = self.workload.title
        return [f"{title}: {entry.contestant.name}: {entry.wrong}" for entry in self.entries if entry.wrong]
