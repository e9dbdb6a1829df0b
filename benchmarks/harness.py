"""Times contestants in alternating rounds, and computes ratios of figures from one run."""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

SIZES = "PHLOX_BENCHMARKS"
"""The environment variable that selects the sizes of a benchmark in its own process: `quick`, `small`, or all."""
MILLIONS = {"bytes": "MB", "flops": "MFLOP"}
"""The units of a million of each kind of figure that is not a time."""
FAILED: dict[str, str] = {}
"""Why contestants failed in this process, by name. They have no times, and `compare` says so in their rows."""


@dataclass(frozen=True)
class Ratio:
    """One line of the table: how `subject` compares with `peer`."""

    workload: str
    subject: str
    peer: str
    subject_us: float
    peer_us: float
    ratio: float
    low: float
    high: float
    target: float | None = None
    unit: str = "ratio"
    measure: str = "seconds"
    """The unit of the two figures, times a million: "seconds", or one of `MILLIONS`."""
    failed: str | None = None
    """The contestant because of which there are no figures; None if there are."""
    reason: str | None = None
    """Why it failed."""

    @classmethod
    def without_figures(cls, workload: str, subject: str, peer: str, failed: str, reason: str) -> Ratio:
        """A line that says which contestant failed."""
        return cls(workload, subject, peer, 0.0, 0.0, 0.0, 0.0, 0.0, failed=failed, reason=reason)

    @property
    def met(self) -> bool | None:
        """Whether the target was met; None if there is none."""
        return None if self.target is None else self.ratio <= self.target

    @property
    def figure(self) -> str:
        """The ratio, with one more digit near 1, so that 1.00 is never marked "no"."""
        return f"{self.ratio:.{3 if abs(self.ratio - 1.0) < 0.005 else 2}f}"


def why(error: BaseException) -> str:
    """An error in one short line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:160]


def attempt(name: str, run: Callable[[], T]) -> T | None:
    """What `run` returns; None if it raises an error, which is noted, so that the other contestants go on."""
    try:
        return run()
    except Exception as error:
        FAILED[name] = why(error)
        print(f"{name} failed: {FAILED[name]}", file=sys.stderr)
        return None


def built(makers: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """The contestants that can be built, or whose library can be imported."""
    made = {name: attempt(name, make) for name, make in makers.items()}
    return {name: contestant for name, contestant in made.items() if contestant is not None}


def in_turn(contestants: Mapping[str, Callable[[], float]], turns: Iterable[int]) -> dict[str, list[float]]:
    """What all contestants return, in alternating rounds, so that drift of the machine affects all equally.

    One that fails has no times, and takes no further turn.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in turns:
        names = list(times)
        for name in names if turn % 2 == 0 else reversed(names):
            seconds = attempt(name, contestants[name])
            if seconds is None:
                del times[name]
            else:
                times[name].append(seconds)
    return times


def measure(
    contestants: Mapping[str, Callable[[], Any]], *, rounds: int = 15, seconds: float = 0.05
) -> dict[str, list[float]]:
    """The seconds per call of every contestant, in `rounds` alternating rounds of about `seconds` each."""

    def calls(run: Callable[[], Any]) -> int:
        run()
        return max(1, round(seconds / max(_timed(run, 1), 1e-7)))

    def turns() -> Iterable[int]:
        for turn in range(rounds):
            yield turn
            gc.collect()

    counts = built({name: partial(calls, run) for name, run in contestants.items()})
    gc.collect()
    gc.disable()
    try:
        return in_turn({name: partial(_timed, contestants[name], n) for name, n in counts.items()}, turns())
    finally:
        gc.enable()


def _timed(run: Callable[[], Any], n: int) -> float:
    start = time.perf_counter()
    for _ in range(n):
        run()
    return (time.perf_counter() - start) / n


def seconds_in_turn(
    contestants: Mapping[str, Callable[[], Any]], *, rounds: int, before: Callable[[], Any] | None = None
) -> dict[str, list[float]]:
    """The seconds of single long calls of every contestant, in `rounds` alternating rounds after one to warm up.

    `before` runs before each call. The result of the call is freed after it, untimed.
    """

    def timed(run: Callable[[], Any]) -> float:
        if before is not None:
            before()
        gc.collect()
        start = time.perf_counter()
        result = run()
        seconds = time.perf_counter() - start
        del result
        return seconds

    times = in_turn({name: partial(timed, run) for name, run in contestants.items()}, range(rounds + 1))
    return {name: seconds[1:] for name, seconds in times.items()}


def compare(
    workload: str,
    times: dict[str, list[float]],
    subject: str,
    peer: str,
    *,
    target: float | None = None,
    extra: bool = False,
    measure: str = "seconds",
) -> Ratio:
    """The median of the ratios of all rounds, with quartiles; with `extra`, of the differences in nanoseconds.

    If one of the two has failed, a row without figures.
    """
    for name in (subject, peer):
        if name not in times:
            return Ratio.without_figures(workload, subject, peer, name, FAILED[name])
    pairs = list(zip(times[subject], times[peer], strict=True))
    values = [(a - b) * 1e9 if extra else a / b for a, b in pairs]
    low, _, high = statistics.quantiles(values, n=4)
    middle = statistics.median(values)
    us = [statistics.median(times[name]) * 1e6 for name in (subject, peer)]
    unit = "ns more" if extra else "ratio"
    return Ratio(workload, subject, peer, us[0], us[1], middle, low, high, target, unit, measure)


def quick() -> bool:
    """Whether to use small sizes and few rounds, only to check that everything works."""
    return os.environ.get(SIZES) == "quick"


def small() -> bool:
    """Whether to use small sizes, for quick runs or for some benchmarks of a full run."""
    return os.environ.get(SIZES) in ("quick", "small")


def table(rows: Sequence[Ratio]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| workload | subject | peer | of the subject | of the peer | ratio | quartiles | target |",
        f"|---|---|---|{'---:|' * 5}",
    ]
    for row in rows:
        if row.failed:
            lines.append(f"| {row.workload} | {row.subject} | {row.peer} | | | {failure(row)} | | |")
            continue
        digits = 0 if row.unit != "ratio" else 2
        target = "" if row.target is None else f"{row.target:.{digits}f} {'met' if row.met else '**missed**'}"
        suffix = "" if row.unit == "ratio" else f" {row.unit}"
        mine, theirs = (_amount(row, figure) for figure in (row.subject_us, row.peer_us))
        lines.append(
            f"| {row.workload} | {row.subject} | {row.peer} | {mine} | {theirs} "
            f"| {row.ratio:.{digits}f}{suffix} | {row.low:.{digits}f} to {row.high:.{digits}f} | {target} |"
        )
    return "\n".join(lines)


def failure(row: Ratio) -> str:
    """What a row without figures says."""
    return f"failed: {row.failed}: {row.reason}"


def duration(seconds: float) -> str:
    """A time with its unit."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    if seconds < 1.0:
        return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.2f} s"


def _amount(row: Ratio, figure: float) -> str:
    return duration(figure / 1e6) if row.measure == "seconds" else f"{figure / 1e12:.1f} {MILLIONS[row.measure]}"
