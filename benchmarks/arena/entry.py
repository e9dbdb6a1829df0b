"""What a match finds: of one contestant, and of all on one workload."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.contestants import Contestant
from benchmarks.workloads import Workload


@dataclass
class Entry:
    """What is known of one contestant on one workload."""

    contestant: Contestant
    missing: str | None = None
    """Why it could not take part, if so."""
    wrong: str | None = None
    """How it differs from the others, if so."""
    losses: list[float] = field(default_factory=list[float])
    averaged: bool = False
    outputs: list[float] = field(default_factory=list[float])
    first: list[float] = field(default_factory=list[float])
    """Seconds from the built model to the first loss, of each process; empty where that is not asked."""
    each: float = 0.0
    """Seconds of a compared step but the first, roughly."""
    mib: float = 0.0
    """The peak of the process after the compared steps."""
    training: list[float] = field(default_factory=list[float])
    """Seconds a step, of each turn."""
    inference: list[float] = field(default_factory=list[float])


@dataclass
class Result:
    """All contestants on one workload."""

    workload: Workload
    entries: list[Entry]
    versions: dict[str, str]
    seconds: float = 0.0
    """That all of it took."""

    @property
    def wrong(self) -> list[str]:
        """Those who computed something else."""
        title = self.workload.title
        return [f"{title}: {entry.contestant.name}: {entry.wrong}" for entry in self.entries if entry.wrong]
