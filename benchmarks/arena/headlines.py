"""The headline of each workload: the best configuration of Phlox against the best peer."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from benchmarks.arena.entry import Entry, Result
from benchmarks.harness import Ratio, compare

Times = Callable[[Entry], list[float]]


def training(entry: Entry) -> list[float]:
    """The seconds per training step."""
    return entry.training


def inference(entry: Entry) -> list[float]:
    """The seconds per prediction."""
    return entry.inference


def first(entry: Entry) -> list[float]:
    """The seconds to the first step."""
    return entry.first


def best(entries: Iterable[Entry], times: Times, *, ours: bool) -> Entry | None:
    """The configuration of Phlox, or the peer, with the fastest median; None if there is none.

    Contestants that were dropped early are excluded: when they were dropped, another one of their side was faster.
    """
    found = [
        entry
        for entry in entries
        if entry.contestant.ours == ours and times(entry) and entry.missing is None and entry.wrong is None
    ]
    turns = max((len(times(entry)) for entry in found), default=0)
    stayed = [entry for entry in found if len(times(entry)) == turns]
    return min(stayed, key=lambda entry: statistics.median(times(entry)), default=None)


def between(title: str, subject: Entry, peer: Entry, times: Times) -> Ratio:
    """The ratio round by round, over the rounds in which both were measured."""
    a, b = subject.contestant.name, peer.contestant.name
    turns = min(len(times(subject)), len(times(peer)))
    return compare(title, {a: times(subject)[:turns], b: times(peer)[:turns]}, a, b)


def headline(result: Result, what: str, times: Times) -> Ratio | None:
    """The headline; None if one side has no results, or too few for quartiles."""
    ours, theirs = (best(result.entries, times, ours=ours) for ours in (True, False))
    if ours is None or theirs is None or min(len(times(ours)), len(times(theirs))) < 2:
        return None
    return between(f"{result.workload.title}: {what}", ours, theirs, times)


def of_result(result: Result) -> list[Ratio]:
    """The headlines of training, of inference and, if several processes were started, of the time to the first step."""
    kinds = (("training", training), ("inference", inference), ("time to the first step", first))
    return [row for what, times in kinds if (row := headline(result, what, times)) is not None]


def of_rows(rows: Sequence[Ratio]) -> list[Ratio]:
    """The best subject against the best peer, for every workload of a benchmark with its own comparisons.

    If some rows have a target, the peers of the other rows are shown for comparison only; see `not_counted`.
    """
    found: list[Ratio] = []
    for alike in _by_workload(rows):
        alike = [row for row in alike if row.target is not None] or alike
        subject = min(alike, key=lambda row: row.subject_us).subject
        found.append(min((row for row in alike if row.subject == subject), key=lambda row: row.peer_us))
    return found


def not_counted(rows: Sequence[Ratio]) -> list[Ratio]:
    """The rows whose peer is faster than the one of the headline, but is not a comparable library."""
    found: list[Ratio] = []
    for chosen, alike in zip(of_rows(rows), _by_workload(rows), strict=True):
        found += [row for row in alike if row.subject == chosen.subject and row.peer_us < chosen.peer_us]
    return found


def _by_workload(rows: Sequence[Ratio]) -> list[list[Ratio]]:
    with_figures = (row for row in rows if not row.failed)
    return [list(group) for _, group in groupby(with_figures, key=lambda row: row.workload)]
