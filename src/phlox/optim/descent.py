"""One call of L-BFGS: from a place to a better one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

from phlox.optim.curvature import Memory, Vector, dot, greatest, plus, total
from phlox.optim.line_search import Point, strong_wolfe

if TYPE_CHECKING:
    from phlox.optim.lbfgs import LbfgsConfig


class Found(NamedTuple):
    """The loss and its gradient somewhere."""

    values: Vector
    loss: float
    gradient: Vector

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(greatest(self.gradient))


class Descent:
    """One call: from a place to a better one."""

    def __init__(self, config: LbfgsConfig, rate: float, memory: Memory, evaluate: Callable[[Vector], Found]) -> None:
        self._config, self._rate, self._memory, self._compute = config, rate, memory, evaluate
        self._most = config.max_iter * 5 // 4 if config.max_eval is None else config.max_eval
        self.iterations = 0
        self.evaluations = 1

    def run(self, here: Found) -> tuple[Found, str]:
        """Where it ends, and why."""
        c, memory = self._config, self._memory
        if not self._rate or greatest(here.gradient) <= c.tolerance_grad:
            return here, "gradient" if self._rate else "change"
        while True:
            self.iterations += 1
            direction = memory.next_direction(here.gradient)
            memory.length = self._rate
            if memory.iterations == 1:  # nothing is known of the curvature yet
                memory.length *= min(1.0, 1.0 / total(here.gradient))
            slope = dot(here.gradient, direction)
            if not slope <= -c.tolerance_change:
                memory.length = 0.0
                return here, "slope" if slope <= 0.0 else "no step"
            last = self.iterations == c.max_iter
            before, here = here, self._step(here, direction, slope, last)
            if here is before:
                return here, "no step" if c.line_search else "not finite"
            if last:
                return here, "iterations"
            if self.evaluations >= self._most:
                return here, "evaluations"
            if greatest(here.gradient) <= c.tolerance_grad:
                return here, "gradient"
            if greatest(direction) * memory.length <= c.tolerance_change:
                return here, "change"
            if abs(here.loss - before.loss) < c.tolerance_change:
                return here, "change"

    def _step(self, here: Found, direction: Vector, slope: float, last: bool) -> Found:
        """Where a step leads; the same place, if none is to be taken."""
        memory, c = self._memory, self._config

        def evaluate(length: float) -> Point:
            self.evaluations += 1
            found = self._compute(plus(here.values, direction, length))
            if not found.finite:
                return Point(length, math.inf, math.nan, found)
            return Point(length, found.loss, dot(found.gradient, direction), found)

        if c.line_search is None:
            if last:  # nobody asks any more for the loss there
                return here._replace(values=plus(here.values, direction, memory.length))
            found = cast("Found", evaluate(memory.length).at)
            return found if found.finite else here
        start = Point(0.0, here.loss, slope, here)
        width = c.tolerance_change / max(greatest(direction), 1e-300)
        trials = self._most - self.evaluations
        point = strong_wolfe(evaluate, start, memory.length, trials, width)
        memory.length = point.length
        return cast("Found", point.at)
