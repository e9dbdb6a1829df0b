"""Checks that all contestants compute the same: the losses of the first steps, and the logits of one example."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from benchmarks.arena.entry import Entry
from benchmarks.workloads import STEPS, Workload

LOSSES = 10
"""The number of losses that are compared, from the first step on."""
LOSS_TOLERANCE, FIRST_TOLERANCE, OUTPUT_TOLERANCE, BF16_TOLERANCE = 1e-3, 0.05, 1e-4, 0.05
"""The tolerances of losses, of the first loss with dropout (masks differ), of logits, and of both in bf16."""


def compare_losses(workload: Workload, entries: list[Entry]) -> None:
    """Mark contestants whose losses differ from the median."""
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
    """Mark contestants whose logits differ from the median, relative to the largest logit."""
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
    """The median of the finite values."""
    return statistics.median([value for value in values if math.isfinite(value)] or [0.0])


def _distance(a: float, b: float) -> float:
    return abs(a - b) if math.isfinite(a) else math.inf


def _close(a: float, b: float, tolerance: float) -> bool:
    return abs(a - b) <= tolerance * abs(b)
