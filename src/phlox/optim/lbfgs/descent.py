"""One call of L-BFGS: the iterations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from phlox.optim.lbfgs.curvature import Array, CurvatureHistory
from phlox.optim.lbfgs.line_search import Point, strong_wolfe

if TYPE_CHECKING:
    from phlox.optim.lbfgs.optimizer import LbfgsConfig


class Evaluation(NamedTuple):
    """The loss and its gradient at some parameters."""

    values: Array
    loss: float
    gradient: Array
    greatest: float
    """The greatest magnitude of an element of the gradient."""
    total: float
    """The sum of all magnitudes."""
    slope: float
    """The product of the gradient with the direction of the step."""

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.greatest)


Evaluate: TypeAlias = "Callable[[Array, Array], Evaluation]"
"""A function of the parameters, and of the direction for the slope."""


class Descent:
    """The iterations of one call."""

    def __init__(self, config: LbfgsConfig, rate: float, history: CurvatureHistory, evaluate: Evaluate) -> None:
        self._config, self._rate, self._history, self._compute = config, rate, history, evaluate
        self._most = config.max_iter * 5 // 4 if config.max_eval is None else config.max_eval
        self.iterations = 0
        self.evaluations = 1

    def run(self, current: Evaluation) -> tuple[Evaluation, str]:
        """Run the iterations; returns the last point and the reason why it ended."""
        config, history = self._config, self._history
        if not self._rate or current.greatest <= config.tolerance_grad:
            return current, "gradient" if self._rate else "change"
        while True:
            self.iterations += 1
            iterations_left = config.max_iter - self.iterations + 1
            direction, slope, greatest = history.next_direction(current.gradient, iterations_left)
            history.length = self._rate
            if history.iterations == 1:  # the history has no curvature yet
                history.length *= min(1.0, 1.0 / current.total)
            if not slope <= -config.tolerance_change:
                history.length = 0.0
                return current, "slope" if slope <= 0.0 else "no step"
            is_last = self.iterations == config.max_iter
            before, current = current, self._step(current, direction, slope, greatest, is_last)
            if current is before:
                return current, "no step" if config.line_search else "not finite"
            if is_last:
                return current, "iterations"
            if self.evaluations >= self._most:
                return current, "evaluations"
            if current.greatest <= config.tolerance_grad:
                return current, "gradient"
            if greatest * history.length <= config.tolerance_change:
                return current, "change"
            if abs(current.loss - before.loss) < config.tolerance_change:
                return current, "change"

    def _step(self, current: Evaluation, direction: Array, slope: float, greatest: float, is_last: bool) -> Evaluation:
        """The point after a step; the same point if no step is taken."""
        history, config = self._history, self._config

        def evaluate(length: float) -> Point:
            self.evaluations += 1
            evaluation = self._compute(history.layout.stepped(current.values, direction, length), direction)
            if not evaluation.finite:
                return Point(length, math.inf, math.nan, evaluation)
            return Point(length, evaluation.loss, evaluation.slope, evaluation)

        if config.line_search is None:
            if is_last:  # the loss at the last point is not needed
                return current._replace(values=history.layout.stepped(current.values, direction, history.length))
            stepped = cast("Evaluation", evaluate(history.length).data)
            return stepped if stepped.finite else current
        start = Point(0.0, current.loss, slope, current)
        width = config.tolerance_change / max(greatest, 1e-300)
        trials = self._most - self.evaluations
        point = strong_wolfe(evaluate, start, history.length, trials, width)
        history.length = point.length
        return cast("Evaluation", point.data)
