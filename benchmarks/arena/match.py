"""One workload: starts all contestants, compares their results, and times them in alternating rounds."""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

from benchmarks.arena.agreement import LOSSES, compare_losses, compare_outputs
from benchmarks.arena.child import Child, Failed
from benchmarks.arena.entry import Entry, Result
from benchmarks.contestants import CONTESTANTS, Contestant
from benchmarks.workloads import STEPS, Workload

GUESSED, GUESSED_LIKE = 3, 2
"""The number of compared steps that determine the duration of a step; the second is for contestants with `like`."""
LONG = 0.1
"""If the fastest takes at least this many seconds per step, the remaining compared steps are timed, in rounds."""
FAR = 1.4
"""Contestants slower than the fastest of their side by more than this factor do not take part in the next workload."""
CLOSE = 1.2
"""A setting is tried with contestants that are slower than the fastest of their side by at most this factor."""
AMONG_THE_FIRST = 1.5
"""The time to the first step is measured again for contestants within this factor of the shortest of their side."""
ENOUGH, PATIENCE = 5, 20.0
"""Measuring stops after this many rounds, once it has taken this many seconds."""
LONG_LEAVE = 1.5
"""With long steps, contestants slower than the fastest of their side by this factor are dropped before round one."""
LEAVE = {"run": {1: 1.4, 3: 1.2}, "predict": {2: 1.4, 4: 1.2}}
"""After this many rounds, contestants slower than the fastest of their side by this factor are dropped."""
PAUSE = 0.02
"""Seconds to wait until worker threads that spin for more work have gone to sleep."""


@dataclass(frozen=True)
class Plan:
    """The number and the duration of rounds."""

    rounds: int = 7
    predictions: int = 7
    """The number of rounds of inference."""
    training: float = 0.25
    inference: float = 0.15
    """The seconds of a round; it has at least one step."""
    several_starts: bool = True
    at_once: bool = False
    """Contestants compile at once, even if the time to the first step is measured: many finish in less time."""
    to_the_end: bool = False
    """Contestants that are far behind stay in all rounds."""
    patience: float | None = None
    """The longest time for an answer of a contestant, in seconds; None is `child.PATIENCE`."""


QUICK_PLAN = Plan(rounds=2, predictions=2, training=0.05, inference=0.02, several_starts=False)


Playing: TypeAlias = tuple[Entry, Child]


def play(
    workload: Workload, plan: Plan, contestants: Sequence[Contestant] = CONTESTANTS, *, fresh: bool = False
) -> Result:
    """Run a workload. A contestant that fails or is wrong raises no error: its entry says so.

    `fresh`: every contestant compiles again, instead of using the caches of earlier runs.
    """
    began = time.monotonic()
    all_entries = [Entry(c) for c in contestants if c.trains(workload) or c.predicts(workload)]
    with ExitStack() as stack:
        caches = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        names = [entry.contestant.name for entry in all_entries if not entry.contestant.like]
        versions: dict[str, str] = {}

        def start(entry: Entry) -> Playing:
            place = names.index(entry.contestant.like or entry.contestant.name)
            child = Child(entry.contestant, workload, f"{caches}/{place}" if fresh else None, plan.patience)
            stack.callback(child.close)
            found = _asked(entry, child.answer)
            versions.update(found["versions"] if found else {})
            return entry, child

        def enter(entries: Sequence[Entry], *, one_by_one: bool = False) -> list[Playing]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                playing = list(pool.map(start, entries))
            _say("  all have started")
            with ThreadPoolExecutor(1 if one_by_one else os.cpu_count()) as pool:
                list(pool.map(lambda pair: _check_in(pair[0], pair[1], workload), playing))
            for entry, child in playing:
                _more_losses(entry, child, GUESSED_LIKE if entry.contestant.like else GUESSED)
            return playing

        entries = [entry for entry in all_entries if not entry.contestant.like]
        _say(f"{workload.title}: {len(entries)} contestants")
        # If the time to the first step is measured, no other contestant runs meanwhile.
        playing = enter(entries, one_by_one=workload.starts > 1 and not plan.at_once)
        for number in range(1, workload.starts if plan.several_starts else 1):
            # The first to compute pays for new memory of the virtual machine, which the others then reuse.
            _start_again(workload, entries[::-1] if number % 2 else entries, f"{caches}/{number}")
        promising = {entry.contestant.name for entry in entries if close(entry, entries, CLOSE)}
        like = [entry for entry in all_entries if entry.contestant.like in promising]
        if like:
            _say(f"  {len(like)} more in other environments")
            playing += enter(like)
        entries = sorted([*entries, *like], key=all_entries.index)
        compare_outputs(workload, entries)
        _compare_and_train(workload, plan, entries, playing)
        _say("  inference, in rounds")
        served = [pair for pair in playing if pair[0].contestant.predicts(workload)]
        _take_turns(served, "predict", plan.predictions, plan.inference, lambda entry: entry.inference, plan.to_the_end)
    seconds = time.monotonic() - began
    _say(f"  it took {seconds:.0f} s")
    return Result(workload, entries, dict(sorted(versions.items())), seconds)


def _compare_and_train(workload: Workload, plan: Plan, entries: list[Entry], playing: Sequence[Playing]) -> None:
    """Get the remaining losses, mark wrong contestants, and time the training of the others in rounds."""
    trained = [pair for pair in playing if pair[0].contestant.trains(workload)]
    if is_long(entries) and not workload.dropout:
        _say("  the remaining compared steps, in rounds")
        _take_compared(trained)
        compare_losses(workload, entries)
        for entry in entries:
            if entry.wrong:
                entry.training.clear()
        return
    for entry, child in playing:
        if workload.dropout:
            del entry.losses[1:]  # masks differ
        elif not entry.contestant.like:
            _more_losses(entry, child, LOSSES)
    compare_losses(workload, entries)
    _say("  training, in rounds")
    _take_turns(trained, "run", plan.rounds, plan.training, lambda entry: entry.training, plan.to_the_end)


def close(entry: Entry, entries: Sequence[Entry], bound: float) -> bool:
    """Whether its compared steps are slower than those of the fastest of its side by at most the factor `bound`."""
    times = [other.each for other in entries if other.contestant.ours == entry.contestant.ours and other.each]
    return bool(entry.each) and entry.each <= bound * min(times)


def competitive(result: Result, contestants: Sequence[Contestant]) -> list[Contestant]:
    """The contestants that were not far behind the fastest of their side in training, and their variants."""
    far: set[str] = set()
    for ours in (True, False):
        side = [entry for entry in result.entries if entry.training and entry.contestant.ours == ours]
        times = {entry.contestant.name: statistics.median(entry.training) for entry in side}
        far |= {name for name, taken in times.items() if taken > FAR * min(times.values())}
    return [contestant for contestant in contestants if not far & {contestant.name, contestant.like}]


def is_long(entries: Sequence[Entry]) -> bool:
    """Whether steps are so long that each is a round of its own."""
    return min((entry.each for entry in entries if entry.each), default=0.0) >= LONG


def _say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def _asked(entry: Entry, ask: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """The answer; None if the contestant failed or is wrong."""
    if entry.missing is not None or entry.wrong is not None:
        return None
    try:
        return ask()
    except Failed as failure:
        entry.missing = str(failure)
        _say(f"  {entry.contestant.name}: {failure}")
        return None


def _check_in(entry: Entry, child: Child, workload: Workload) -> None:
    """Build the model, and compute what is compared."""
    built = _asked(entry, lambda: child.ask("build"))
    if built and entry.contestant.trains(workload):
        _first_losses(entry, child, workload, built)
    if entry.contestant.predicts(workload):
        found = _asked(entry, lambda: child.ask("outputs"))
        entry.outputs = found["outputs"] if found else []
    if entry.missing is None:
        _say(f"  {entry.contestant.name}" + (f": {entry.first[0]:.2f} s to the first step" if entry.first else ""))


def _first_losses(entry: Entry, child: Child, workload: Workload, built: dict[str, Any]) -> None:
    """Get the first loss; or all compared losses, if a call takes several steps or returns only the mean."""
    entry.averaged = built["averaged"]
    found = _asked(entry, lambda: child.ask("losses", n=STEPS if built["steps"] > 1 and not entry.averaged else 1))
    if found:
        entry.losses, entry.mib = found["losses"], found["mib"]
        if workload.starts > 1 and not entry.contestant.like:
            entry.first.append(found["seconds"])


def _more_losses(entry: Entry, child: Child, until: int) -> None:
    """Get losses until there are `until`, while no other contestant runs, so that this also times the steps."""
    n = until - len(entry.losses)
    if entry.averaged or not entry.losses or n <= 0:
        return
    found = _asked(entry, lambda: child.ask("losses", n=n))
    if found:
        entry.losses += found["losses"]
        entry.each, entry.mib = found["each"] if n > 1 else found["seconds"], found["mib"]


def _take_compared(playing: Sequence[Playing]) -> None:
    """Get the remaining losses to compare, one in each round."""
    for turn in range(LOSSES - GUESSED):
        for entry, child in playing if turn % 2 == 0 else reversed(playing):
            time.sleep(PAUSE)
            found = _asked(entry, lambda child=child: child.ask("compared"))
            if found:
                entry.losses += found["losses"]
                entry.mib = found["mib"]
                entry.training.append(found["seconds"])


def _start_again(workload: Workload, entries: list[Entry], caches: str) -> None:
    """Start new processes, only for the time to the first step, of contestants that may be the first of their side."""
    sides = [[entry for entry in entries if entry.first and entry.contestant.ours == ours] for ours in (True, False)]
    bounds = [AMONG_THE_FIRST * min((entry.first[0] for entry in side), default=0.0) for side in sides]
    again = [
        (entry, Child(entry.contestant, workload, f"{caches}-{place}"))
        for place, entry in enumerate(entries)
        if entry.missing is None and entry.first and entry.first[0] <= bounds[not entry.contestant.ours]
    ]
    found: dict[str, str] = {}
    for entry, child in again:  # all import in parallel, and none computes before all have started
        try:
            child.answer()
        except Failed as failure:
            found[entry.contestant.name] = str(failure)
    for entry, child in again:
        try:
            if entry.contestant.name not in found:
                child.ask("build")
                entry.first.append(child.ask("losses", n=1)["seconds"])
        except Failed as failure:
            found[entry.contestant.name] = str(failure)
        finally:
            child.close()
    for name, failure in found.items():
        _say(f"  {name}, started again: {failure}")


def _take_turns(
    playing: Sequence[Playing],
    what: str,
    rounds: int,
    seconds: float,
    times: Callable[[Entry], list[float]],
    to_the_end: bool,
) -> None:
    """Time all contestants in alternating rounds, with the order reversed in every other round, against drift."""
    paces, guesses = dict[str, int](), dict[str, float]()
    for entry, child in playing:
        name = entry.contestant.name
        if what == "run" and entry.each > seconds:
            paces[name], guesses[name] = 1, entry.each
            continue
        found = _asked(entry, lambda child=child: child.ask("pace", what=what, seconds=seconds))
        paces[name], guesses[name] = (found["n"], found["seconds"]) if found else (0, math.inf)
    entries = [entry for entry, _ in playing]
    # Contestants with `like` took only one compared step, in new memory, which is too little to drop them.
    long = [e for e in entries if what == "run" and e.each > seconds and not e.contestant.like]
    for entry in [e for e in long if not to_the_end and not close(e, entries, LONG_LEAVE)]:
        times(entry).append(entry.each)
        playing = [pair for pair in playing if pair[0] is not entry]
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
        if not to_the_end and (bound := LEAVE[what].get(turn + 1)):
            taken = {e.contestant.name: _usual(times(e), guesses[e.contestant.name]) for e, _ in playing}
            playing = [pair for pair in playing if may_win(pair[0], [e for e, _ in playing], taken, bound)]


def _usual(times: Sequence[float], guess: float) -> float:
    """The median; for few rounds, the best including the earlier guess, because one round may have been disturbed."""
    if not times:
        return math.inf
    return statistics.median(times) if len(times) > 2 else min(*times, guess)


def may_win(entry: Entry, playing: Sequence[Entry], taken: Mapping[str, float], bound: float) -> bool:
    """Whether it can still be the best of its side."""
    ours = [taken[other.contestant.name] for other in playing if other.contestant.ours == entry.contestant.ours]
    return taken[entry.contestant.name] <= bound * min(ours) < math.inf
