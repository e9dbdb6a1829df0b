"""One call of L-BFGS: the iterations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from phlox.optim.lbfgs.curvature import Array, CurvatureHistory
from phlox.optim.lbfgs.line_search import Point, strong_wolfe

if TYPE_CHECKING:
    from phlox.optim.lbfgs.optimizer import LbfgsConfig


class Found(NamedTuple):
    """The loss and its gradient at some parameters."""

    values: Array
    loss: float
    gradient: Array
    greatest: float
    """The greatest magnitude of an element of the gradient."""
    total: float
    """The sum of all magnitudes."""
    slope: float
    """The product of the gradient with the direction of the step, if any."""

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.greatest)


Evaluate: TypeAlias = "Callable[[Array, Array], Found]"
"""A function of the parameters, and of the direction for the slope."""


class Descent:
    """The iterations of one call."""

    def __init__(self, config: LbfgsConfig, rate: float, memory: CurvatureHistory, evaluate: Evaluate) -> None:
        self._config, self._rate, self._memory, self._compute = config, rate, memory, evaluate
        self._most = config.max_iter * 5 // 4 if config.max_eval is None else config.max_eval
        self.iterations = 0
        self.evaluations = 1

    def run(self, here: Found) -> tuple[Found, str]:
        """Run the iterations; returns the last point and the reason why it ended."""
        c, memory = self._config, self._memory
        if not self._rate or here.greatest <= c.tolerance_grad:
            return here, "gradient" if self._rate else "change"
        while True:
            self.iterations += 1
            to_come = c.max_iter - self.iterations + 1
            direction, slope, greatest = memory.next_direction(here.gradient, to_come)
            memory.length = self._rate
            if memory.iterations == 1:  # nothing is known of the curvature yet
                memory.length *= min(1.0, 1.0 / here.total)
            if not slope <= -c.tolerance_change:
                memory.length = 0.0
                return here, "slope" if slope <= 0.0 else "no step"
            last = self.iterations == c.max_iter
            before, here = here, self._step(here, direction, slope, greatest, last)
            if here is before:
                return here, "no step" if c.line_search else "not finite"
            if last:
                return here, "iterations"
            if self.evaluations >= self._most:
                return here, "evaluations"
            if here.greatest <= c.tolerance_grad:
                return here, "gradient"
            if greatest * memory.length <= c.tolerance_change:
                return here, "change"
            if abs(here.loss - before.loss) < c.tolerance_change:
                return here, "change"

    def _step(self, here: Found, direction: Array, slope: float, greatest: float, last: bool) -> Found:
        """The point after a step; the same point if no step is taken."""
        memory, c = self._memory, self._config

        def evaluate(length: float) -> Point:
            self.evaluations += 1
            found = self._compute(memory.layout.stepped(here.values, direction, length), direction)
            if not found.finite:
                return Point(length, math.inf, math.nan, found)
            return Point(length, found.loss, found.slope, found)

        if c.line_search is None:
            if last:  # the loss there is not needed any more
                return here._replace(values=memory.layout.stepped(here.values, direction, memory.length))
            found = cast("Found", evaluate(memory.length).at)
            return found if found.finite else here
        start = Point(0.0, here.loss, slope, here)
        width = c.tolerance_change / max(greatest, 1e-300)
        trials = self._most - self.evaluations
        point = strong_wolfe(evaluate, start, memory.length, trials, width)
        memory.length = point.length
        return cast("Found", point.at)
