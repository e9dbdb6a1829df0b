"""`Learner.lr_find`: the loss at learning rates from low to high."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from phlox.errors import RunError
from phlox.host.text import html_by
from phlox.optim import ExponentialLr
from phlox.optim.schedule.sketch import bars
from phlox.train.loop.fit import Fit
from phlox.train.loop.limits import Limits
from phlox.train.trials.trial import on_trial

if TYPE_CHECKING:
    from phlox.train.learner import Learner

_SMOOTH = 0.9
"""The weight of the earlier losses in the smoothed loss."""
_DIVERGED = 4.0
"""The search ends when the loss is this many times the lowest."""


@dataclass(frozen=True)
class LrCurve:
    """The losses that `Learner.lr_find` measured at each learning rate; `print` it."""

    rates: list[float]
    """The learning rate of each step."""
    losses: list[float]
    """The smoothed loss of each step, before its update."""

    @property
    def suggestion(self) -> float:
        """The learning rate at which the loss falls fastest, as a first choice.

        The first steps, where few losses are smoothed, and the steps after the lowest loss do not count. Raises
        `RunError` if the loss does not fall at any rate.
        """
        width = max(1, len(self.rates) // 10)
        indices = range(2 * width, min(self.losses.index(min(self.losses)) + 1, len(self.rates) - width))
        if not indices:
            raise RunError("lr_find: the loss does not fall at any of the rates; begin at a lower rate (low=)")
        falls = [self.losses[index - width] - self.losses[index + width] for index in indices]
        return self.rates[indices[falls.index(max(falls))]]

    def __str__(self) -> str:
        low, high = min(self.losses), max(self.losses)
        try:
            summary = f"it falls fastest at {self.suggestion:.1e}"
        except RunError as error:
            summary = str(error).removeprefix("lr_find: ")
        rates = f"{self.rates[0]:.1e} to {self.rates[-1]:.1e}"
        drawn = bars([loss - low for loss in self.losses], 60)
        return f"loss {low:.4g} to {high:.4g} at learning rates {rates}\n{drawn}\n{summary}"

    _repr_html_ = html_by("phlox.train.observers.views.pages", "page_of_lr_curve")


def lr_find(learner: Learner[Any], data: Any, low: float, high: float, steps: int) -> LrCurve:
    """See `Learner.lr_find`."""
    if not (0.0 < low < high < math.inf):
        raise RunError(f"lr_find: low and high must be rates above 0, high the higher one, got {low} and {high}")
    if steps < 10:
        raise RunError(f"lr_find: {steps} steps are too few to find a rate; give 10 or more")
    rates: list[float] = []
    losses: list[float] = []
    team, state, stepper = learner.team, learner.state, learner.stepper
    with on_trial(learner), nullcontext() if team is None else team.scope():
        gamma = (high / low) ** (1.0 / (steps - 1))
        state.schedules = {name: ExponentialLr(low, gamma=gamma) for name in state.schedules}
        state.lr_set = None
        smooth, lowest = 0.0, math.inf
        stream = learner.feed(data)
        fit = Fit(learner, stream, None, Limits(None, steps, None))
        fit.leave_former_epoch()
        while len(rates) < steps:
            stepper.begin_epoch()
            num_before = len(rates)
            for batch in stream.epoch(learner.epoch):
                try:
                    fit.run_steps([(stream.number, batch)])
                    loss = learner.loss
                except RunError:
                    loss = math.nan
                rates.append(low * gamma ** len(rates))
                smooth = _SMOOTH * smooth + (1.0 - _SMOOTH) * loss
                losses.append(smooth / (1.0 - _SMOOTH ** len(rates)))
                lowest = min(lowest, losses[-1])
                if len(rates) == steps or not losses[-1] <= _DIVERGED * max(lowest, 0.0) + 1e-9 + abs(lowest):
                    steps = len(rates)
                    break
            if len(rates) == num_before:
                raise RunError("lr_find: there is no batch in the data")
            state.epoch += 1
    finite = [index for index, loss in enumerate(losses) if math.isfinite(loss)]
    if not finite:
        raise RunError("lr_find: no rate has a finite loss; with update= put a 'loss' into its logs")
    return LrCurve([rates[index] for index in finite], [losses[index] for index in finite])
