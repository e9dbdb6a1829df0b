"""Times contestants in alternating rounds, and computes ratios of figures from one run."""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

SIZES = "PHLOX_BENCHMARKS"
"""The environment variable that selects the sizes of a benchmark in its own process: `quick`, `small`, or all."""
MILLIONS = {"bytes": "MB", "flops": "MFLOP"}
"""The units of a million of each kind of figure that is not a time."""


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

    @property
    def met(self) -> bool | None:
        """Whether the target was met; None if there is none."""
        return None if self.target is None else self.ratio <= self.target

    @property
    def figure(self) -> str:
        """The ratio, with one more digit near 1, so that 1.00 is never marked "no"."""
        return f"{self.ratio:.{3 if abs(self.ratio - 1.0) < 0.005 else 2}f}"


def measure(
    contestants: dict[str, Callable[[], Any]], *, rounds: int = 15, seconds: float = 0.05
) -> dict[str, list[float]]:
    """The seconds per call of every contestant, in `rounds` alternating rounds of about `seconds` each."""
    calls: dict[str, int] = {}
    for name, run in contestants.items():
        run()
        start = time.perf_counter()
        run()
        once = max(time.perf_counter() - start, 1e-7)
        calls[name] = max(1, round(seconds / once))
    times: dict[str, list[float]] = {name: [] for name in contestants}
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            names = list(contestants)
            for name in names if turn % 2 == 0 else reversed(names):  # so that drift of the machine affects all equally
                run, n = contestants[name], calls[name]
                start = time.perf_counter()
                for _ in range(n):
                    run()
                times[name].append((time.perf_counter() - start) / n)
            gc.collect()
    finally:
        gc.enable()
    return times


def seconds_in_turn(
    contestants: dict[str, Callable[[], Any]], *, rounds: int, before: Callable[[], Any] | None = None
) -> dict[str, list[float]]:
    """The seconds of single long calls of every contestant, in `rounds` alternating rounds after one to warm up.

    `before` runs before each call. The result of the call is freed after it, untimed.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 1):
        names = list(contestants)
        for name in names if turn % 2 == 0 else reversed(names):
            if before is not None:
                before()
            gc.collect()
            start = time.perf_counter()
            result = contestants[name]()
            seconds = time.perf_counter() - start
            del result
            if turn:
                times[name].append(seconds)
    return times


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
    """The median of the ratios of all rounds, with quartiles; with `extra`, of the differences in nanoseconds."""
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
        digits = 0 if row.unit != "ratio" else 2
        target = "" if row.target is None else f"{row.target:.{digits}f} {'met' if row.met else '**missed**'}"
        suffix = "" if row.unit == "ratio" else f" {row.unit}"
        mine, theirs = (_amount(row, figure) for figure in (row.subject_us, row.peer_us))
        lines.append(
            f"| {row.workload} | {row.subject} | {row.peer} | {mine} | {theirs} "
            f"| {row.ratio:.{digits}f}{suffix} | {row.low:.{digits}f} to {row.high:.{digits}f} | {target} |"
        )
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """A time with its unit."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    if seconds < 1.0:
        return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms"
    return f"{seconds:.2f} s"


def _amount(row: Ratio, figure: float) -> str:
    return duration(figure / 1e6) if row.measure == "seconds" else f"{figure / 1e12:.1f} {MILLIONS[row.measure]}"
