"""A schedule that reduces the rate when a metric stops improving."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, cast

from phlox.optim.schedule import checks
from phlox.optim.schedule.base import COUNT, NUMBER, RATE, LrSchedule
from phlox.other_names import answering


class ReduceOnPlateauLr(LrSchedule):
    """Multiplies the rate by `factor` if a metric has not improved for more than `patience` reports in a row.

    Call `report` with the metric, for example once per epoch; `step` returns the current rate. `rate(step)` also
    returns the current rate, for every step.

    Args:
        initial_lr: the rate until the first reduction.
        mode: whether a smaller ("min") or a greater ("max") metric is better.
        factor: the factor of a reduction, less than one.
        patience: the number of reports in a row without improvement before the rate is reduced.
        threshold: the smallest improvement on the best metric that counts.
        threshold_mode: whether the threshold is a fraction of the best metric ("rel") or absolute ("abs").
        cooldown: the number of reports after a reduction that are not counted as bad.
        min_lr: the lowest rate.
        eps: a reduction is skipped if it is not greater than this.

    Attributes:
        lr: the current rate.
        best: the best metric; infinity before the first report.

    Raises `OptimizerError` if the metric is NaN. An infinite metric is allowed.

    >>> schedule = ReduceOnPlateauLr(0.1, factor=0.5, patience=0)
    >>> for loss in (3.0, 2.0, 2.0):
    ...     schedule.report(loss)
    >>> schedule.step()
    0.05
    """

    saved: ClassVar = {"lr": RATE, "best": NUMBER, "bad": COUNT, "cooling": COUNT}

    @answering
    def __init__(
        self,
        initial_lr: float,
        *,
        mode: Literal["min", "max"] = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        self.initial_lr = checks.rate(self, "initial_lr", initial_lr)
        self.mode = checks.one_of(self, "mode", mode, ["min", "max"])
        self.factor = checks.positive(self, "factor", factor)
        if self.factor >= 1.0:
            checks.refuse(self, f"factor must be less than one, so that it reduces the rate, got {factor}")
        self.patience = checks.count(self, "patience", patience, least=0)
        self.threshold = checks.rate(self, "threshold", threshold)
        self.threshold_mode = checks.one_of(self, "threshold_mode", threshold_mode, ["rel", "abs"])
        self.cooldown = checks.count(self, "cooldown", cooldown, least=0)
        self.min_lr = checks.rate(self, "min_lr", min_lr)
        checks.ordered(self, ("min_lr", self.min_lr), ("initial_lr", self.initial_lr))
        self.eps = checks.rate(self, "eps", eps)
        self.lr = self.initial_lr
        self.best = math.inf if mode == "min" else -math.inf
        self.bad = 0
        self.cooling = 0

    def rate(self, step: int) -> float:
        return self.lr

    def hear(self, metric: float) -> None:
        try:
            value = float(cast("Any", metric))
        except (TypeError, ValueError):
            checks.refuse(self, f"the metric must be a number, got {metric!r}")
        if math.isnan(value):
            checks.refuse(
                self,
                "the metric is NaN, which cannot be compared with the best one; correct its input, or "
                "leave this report out",
            )
        if self._is_better(value):
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        if self.cooling:
            self.cooling -= 1
            self.bad = 0
        if self.bad > self.patience:
            reduced = max(self.lr * self.factor, self.min_lr)
            if self.lr - reduced > self.eps:
                self.lr = reduced
            self.cooling, self.bad = self.cooldown, 0

    def _is_better(self, metric: float) -> bool:
        sign = 1.0 if self.mode == "min" else -1.0
        if math.isinf(self.best):
            bar = self.best
        elif self.threshold_mode == "rel":
            bar = self.best * (1.0 - sign * self.threshold)
        else:
            bar = self.best - sign * self.threshold
        return sign * metric < sign * bar
