"""One workload: all contestants are started, compared, and timed in turn."""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from benchmarks.arena.child import Child, Failed
from benchmarks.contestants import CONTESTANTS, Contestant
from benchmarks.workloads import STEPS, Workload

LOSSES = 10
LOSSES_LIKE = 2
"""Of those who are like another but for their environment."""
LOSS_TOLERANCE, FIRST_TOLERANCE, OUTPUT_TOLERANCE, BF16_TOLERANCE = 1e-3, 0.05, 1e-4, 0.05
"""Of losses; of the first one with dropout, whose masks differ; of logits; of either in bf16."""
AMONG_THE_FIRST = 1.5
"""So many times the shortest time to the first step of a side is measured again."""
ENOUGH, PATIENCE = 5, 40.0
"""After so many turns those stop that have lasted so many seconds."""
LEAVE = {1: 2.0, 3: 1.25}
"""After so many turns those leave who take so many times what the fastest of their side takes."""
PAUSE = 0.02
"""Seconds until threads that spin for more work have gone to sleep."""


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


@dataclass(frozen=True)
class Plan:
    """How long it takes."""

    rounds: int = 7
    training: float = 0.3
    inference: float = 0.15
    """Seconds of a turn, at least one step."""
    several_starts: bool = True


QUICK_PLAN = Plan(rounds=3, training=0.05, inference=0.02, several_starts=False)


def play(
    workload: Workload, plan: Plan, cache: str | None = None, contestants: Sequence[Contestant] = CONTESTANTS
) -> Result:
    """Raises nothing for a contestant that fails or is wrong: the entry says it.

    `cache` is a folder for what is compiled, which all share but where the time to the first step is asked; without
    one, libraries find what earlier runs have compiled.
    """
    began = time.monotonic()
    entries = [Entry(c) for c in contestants if c.trains(workload) or c.predicts(workload)]
    with ExitStack() as stack:
        caches = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))

        names = [entry.contestant.name for entry in entries]
        versions: dict[str, str] = {}

        def start(entry: Entry) -> tuple[Entry, Child]:
            alone = cache is not None and workload.starts > 1
            like = entry.contestant.like
            place = names.index(like if like in names else entry.contestant.name)
            child = Child(entry.contestant, workload, f"{caches}/{place}" if alone else cache)
            stack.callback(child.close)
            found = _asked(entry, child.answer)
            versions.update(found["versions"] if found else {})
            return entry, child

        _say(f"{workload.title}: {len(entries)} contestants")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            playing = list(pool.map(start, entries))
        _say("  all are there")
        # Where the time to the first step is asked nobody else runs meanwhile; those who are like another come last,
        # when there is something compiled for them to find.
        timed = [pair for pair in playing if workload.starts > 1 and not pair[0].contestant.like]
        for entry, child in timed:
            _check_in(entry, child, workload)
        others = sorted((p for p in playing if p not in timed), key=lambda pair: bool(pair[0].contestant.like))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda pair: _check_in(pair[0], pair[1], workload), others))
        for entry, child in playing:
            _more_losses(entry, child, workload)
        for number in range(1, workload.starts if plan.several_starts else 1):
            _start_again(workload, entries, f"{caches}/{number}")
        compare_losses(workload, entries)
        compare_outputs(workload, entries)
        _say("  training, by turns")
        trained = [pair for pair in playing if pair[0].contestant.trains(workload)]
        _take_turns(trained, "run", plan.rounds, plan.training, lambda entry: entry.training)
        _say("  inference, by turns")
        served = [pair for pair in playing if pair[0].contestant.predicts(workload)]
        _take_turns(served, "predict", plan.rounds, plan.inference, lambda entry: entry.inference)
    seconds = time.monotonic() - began
    _say(f"  it took {seconds:.0f} s")
    return Result(workload, entries, dict(sorted(versions.items())), seconds)


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def _asked(entry: Entry, ask: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """The answer; None if the contestant is out of it."""
    if entry.missing is not None or entry.wrong is not None:
        return None
    try:
        return ask()
    except Failed as failure:
        entry.missing = str(failure)
        _say(f"  {entry.contestant.name}: {failure}")
        return None


def _check_in(entry: Entry, child: Child, workload: Workload) -> None:
    """Builds, and makes what is compared."""
    built = _asked(entry, lambda: child.ask("build"))
    if built and entry.contestant.trains(workload):
        _first_losses(entry, child, workload, built)
    if entry.contestant.predicts(workload):
        found = _asked(entry, lambda: child.ask("outputs"))
        entry.outputs = found["outputs"] if found else []
    if entry.missing is None:
        _say(f"  {entry.contestant.name}" + (f": {entry.first[0]:.2f} s to the first step" if entry.first else ""))


def _first_losses(entry: Entry, child: Child, workload: Workload, built: dict[str, Any]) -> None:
    """One; of those who take many a call, or tell their mean, all that are compared."""
    entry.averaged = built["averaged"]
    found = _asked(entry, lambda: child.ask("losses", n=STEPS if built["steps"] > 1 and not entry.averaged else 1))
    if found:
        entry.losses, entry.mib = found["losses"], found["mib"]
        if workload.starts > 1 and not entry.contestant.like:
            entry.first.append(found["seconds"])


def _more_losses(entry: Entry, child: Child, workload: Workload) -> None:
    """The rest of what is compared, while nobody else computes, so that it also shows how long steps are."""
    n = (LOSSES_LIKE if entry.contestant.like else LOSSES) - 1
    if workload.dropout or entry.averaged or len(entry.losses) != 1:
        return
    found = _asked(entry, lambda: child.ask("losses", n=n))
    if found:
        entry.losses += found["losses"]
        entry.each, entry.mib = found["each"] if n > 1 else found["seconds"], found["mib"]


def _start_again(workload: Workload, entries: list[Entry], caches: str) -> None:
    """Fresh processes, for the time to the first step alone, of those who may be the first of their side."""
    sides = [[entry for entry in entries if entry.first and entry.contestant.ours == ours] for ours in (True, False)]
    bounds = [AMONG_THE_FIRST * min((entry.first[0] for entry in side), default=0.0) for side in sides]
    for place, entry in enumerate(entries):
        if entry.missing is None and entry.first and entry.first[0] <= bounds[not entry.contestant.ours]:
            child = Child(entry.contestant, workload, f"{caches}-{place}")
            try:
                child.answer()
                child.ask("build")
                entry.first.append(child.ask("losses", n=1)["seconds"])
            except Failed as failure:
                _say(f"  {entry.contestant.name}, started again: {failure}")
            finally:
                child.close()


def compare_losses(workload: Workload, entries: list[Entry]) -> None:
    """Marks who differs from the middle of all."""
    single = [entry for entry in entries if entry.losses and not entry.averaged]
    tolerance = FIRST_TOLERANCE if workload.dropout else BF16_TOLERANCE if workload.bf16 else LOSS_TOLERANCE
    for step in range(1 if workload.dropout else LOSSES):
        so_far = [entry for entry in single if len(entry.losses) > step]
        middle = _middle(entry.losses[step] for entry in so_far)
        for entry in so_far:
            if not _close(entry.losses[step], middle, tolerance):
                entry.wrong = entry.wrong or (
                    f"its loss of step {step + 1} is {entry.losses[step]:.6g}, that of the others {middle:.6g}"
                )
    means = [statistics.fmean(entry.losses) for entry in single if len(entry.losses) == STEPS and not entry.wrong]
    for entry in entries:
        if entry.averaged and entry.losses and means:
            middle = statistics.median(means)
            if not _close(entry.losses[0], middle, tolerance):
                entry.wrong = (
                    f"the mean of its first {STEPS} losses is {entry.losses[0]:.6g}, that of the others {middle:.6g}"
                )


def compare_outputs(workload: Workload, entries: list[Entry]) -> None:
    """Marks whose logits differ from the middle of all, relative to the largest of them."""
    tolerance = BF16_TOLERANCE if workload.bf16 else OUTPUT_TOLERANCE
    some = [entry for entry in entries if entry.outputs]
    if not some:
        return
    size = statistics.median_low(len(entry.outputs) for entry in some)
    alike = [entry for entry in some if len(entry.outputs) == size]
    middle = [_middle(values) for values in zip(*(entry.outputs for entry in alike), strict=True)]
    scale = max(abs(value) for value in middle)
    for entry in some:
        if len(entry.outputs) != size:
            entry.wrong = entry.wrong or f"it gives {len(entry.outputs)} logits, the others {size}"
            continue
        at = max(range(size), key=lambda i: _distance(entry.outputs[i], middle[i]))
        if not _distance(entry.outputs[at], middle[at]) <= tolerance * scale:
            entry.wrong = entry.wrong or (
                f"its logit {at} is {entry.outputs[at]:.6g}, that of the others {middle[at]:.6g}"
            )


def _middle(values: Iterable[float]) -> float:
    """The median of those that are numbers."""
    return statistics.median([value for value in values if math.isfinite(value)] or [0.0])


def _distance(a: float, b: float) -> float:
    return abs(a - b) if math.isfinite(a) else math.inf


def _close(a: float, b: float, tolerance: float) -> bool:
    return abs(a - b) <= tolerance * abs(b)


def _take_turns(
    playing: list[tuple[Entry, Child]], what: str, rounds: int, seconds: float, times: Callable[[Entry], list[float]]
) -> None:
    """Every one in turn, in one order and then in the other, so that drift favours nobody."""
    paces, guesses = dict[str, int](), dict[str, float]()
    for entry, child in playing:
        name = entry.contestant.name
        if what == "run" and entry.each > seconds:
            paces[name], guesses[name] = 1, entry.each
            continue
        found = _asked(entry, lambda child=child: child.ask("pace", what=what, seconds=seconds))
        paces[name], guesses[name] = (found["n"], found["seconds"]) if found else (0, math.inf)
    began = time.monotonic()
    for turn in range(rounds):
        if turn >= ENOUGH and time.monotonic() - began > PATIENCE:
            break
        for entry, child in playing if turn % 2 == 0 else reversed(playing):
            n = paces[entry.contestant.name]
            time.sleep(PAUSE)
            found = _asked(entry, lambda child=child, n=n: child.ask("turn", what=what, n=n))
            if found:
                times(entry).append(found["seconds"])
        if turn + 1 in LEAVE:
            # One turn alone may have met a hiccup: then what was seen before counts too.
            taken = {e.contestant.name: _usual(times(e), guesses[e.contestant.name]) for e, _ in playing}
            playing = [pair for pair in playing if may_win(pair[0], [e for e, _ in playing], taken, LEAVE[turn + 1])]


def _usual(times: Sequence[float], guess: float) -> float:
    if not times:
        return math.inf
    return statistics.median(times) if len(times) > 1 else min(*times, guess)


def may_win(entry: Entry, playing: Sequence[Entry], taken: Mapping[str, float], bound: float) -> bool:
    """Whether it may still be the best of its side; the turns that the others took say enough of them."""
    ours = [taken[other.contestant.name] for other in playing if other.contestant.ours == entry.contestant.ours]
    return taken[entry.contestant.name] <= bound * min(ours) < math.inf
