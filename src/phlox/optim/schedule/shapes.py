"""Schedules that are a formula of the step; some are constant after their last step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

from phlox.optim.schedule import checks
from phlox.optim.schedule.base import LrSchedule
from phlox.optim.schedule.scalars import cos, least, piece, power
from phlox.other_names import answering


class ConstantLr(LrSchedule):
    """The same rate at every step.

    >>> ConstantLr(0.1).rate(1000)
    0.1
    """

    @answering
    def __init__(self, lr: float) -> None:
        self.lr = checks.rate(self, "lr", lr)

    def rate(self, step: int) -> float:
        return self.lr


class FunctionLr(LrSchedule):
    """The rate that a function returns for the step. The function is not saved with the state.

    >>> schedule = FunctionLr(lambda step: 0.1 / (1 + step))
    >>> [schedule.step() for _ in range(2)]
    [0.1, 0.05]
    """

    @answering
    def __init__(self, function: Callable[[int], float]) -> None:
        if not callable(cast("Any", function)):
            checks.refuse(self, f"expected a function of the step, got {function!r}; for one rate, take ConstantLr")
        self.function = function

    def rate(self, step: int) -> float:
        return self.function(step)


class LinearLr(LrSchedule):
    """Changes linearly from `initial_lr` to `final_lr` over `num_iters` steps, then is constant.

    rate(t) = initial_lr + (final_lr - initial_lr) * t / num_iters

    >>> schedule = LinearLr(1.0, 0.0, num_iters=4)
    >>> [schedule.step() for _ in range(6)]
    [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """

    @answering
    def __init__(self, initial_lr: float, final_lr: float, *, num_iters: int) -> None:
        self.initial_lr = checks.rate(self, "initial_lr", initial_lr)
        self.final_lr = checks.rate(self, "final_lr", final_lr)
        self.num_iters = checks.count(self, "num_iters", num_iters)

    def rate(self, step: int) -> float:
        fraction = least(step / self.num_iters, 1.0)
        return (1.0 - fraction) * self.initial_lr + fraction * self.final_lr


class CosineAnnealingLr(LrSchedule):
    """Decreases along half a cosine from `initial_lr` to `min_lr` over `num_iters` steps, then is constant.

    rate(t) = min_lr + (initial_lr - min_lr) / 2 * (1 + cos(pi * t / num_iters))

    `CosineRestartsLr` adds restarts. Loshchilov, Hutter 2017: "SGDR: Stochastic gradient descent with warm restarts".

    >>> schedule = CosineAnnealingLr(1.0, num_iters=2)
    >>> [round(schedule.step(), 3) for _ in range(4)]
    [1.0, 0.5, 0.0, 0.0]
    """

    @answering
    def __init__(self, initial_lr: float, *, num_iters: int, min_lr: float = 0.0) -> None:
        self.initial_lr = checks.rate(self, "initial_lr", initial_lr)
        self.num_iters = checks.count(self, "num_iters", num_iters)
        self.min_lr = checks.rate(self, "min_lr", min_lr)
        checks.ordered(self, ("min_lr", self.min_lr), ("initial_lr", self.initial_lr))

    def rate(self, step: int) -> float:
        return cosine(self.initial_lr, self.min_lr, least(step / self.num_iters, 1.0))


class ExponentialLr(LrSchedule):
    """Multiplies the rate by `gamma` after every step, without end: rate(t) = initial_lr * gamma**t.

    >>> schedule = ExponentialLr(1.0, gamma=0.5)
    >>> [schedule.step() for _ in range(3)]
    [1.0, 0.5, 0.25]
    """

    @answering
    def __init__(self, initial_lr: float, *, gamma: float) -> None:
        self.initial_lr = checks.rate(self, "initial_lr", initial_lr)
        self.gamma = checks.positive(self, "gamma", gamma)

    def rate(self, step: int) -> float:
        return self.initial_lr * power(self.gamma, step)


class StepLr(LrSchedule):
    """Multiplies the rate by `gamma` every `step_size` steps: rate(t) = initial_lr * gamma**(t // step_size).

    >>> schedule = StepLr(1.0, step_size=2, gamma=0.5)
    >>> [schedule.step() for _ in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    @answering
    def __init__(self, initial_lr: float, *, step_size: int, gamma: float = 0.1) -> None:
        self.initial_lr = checks.rate(self, "initial_lr", initial_lr)
        self.step_size = checks.count(self, "step_size", step_size)
        self.gamma = checks.positive(self, "gamma", gamma)

    def rate(self, step: int) -> float:
        return self.initial_lr * power(self.gamma, step // self.step_size)


class MultiStepLr(LrSchedule):
    """Multiplies the rate by `gamma` at each step in `milestones`, an increasing sequence.

    >>> schedule = MultiStepLr(1.0, milestones=[1, 3], gamma=0.5)
    >>> [schedule.step() for _ in range(5)]
    [1.0, 0.5, 0.5, 0.25, 0.25]
    """

    @answering
    def __init__(self, initial_lr: float, *, milestones: Sequence[int], gamma: float = 0.1) -> None:
        self.initial_lr = checks.rate(self, "initial_lr", initial_lr)
        self.milestones = checks.milestones(self, milestones)
        self.gamma = checks.positive(self, "gamma", gamma)

    def rate(self, step: int) -> float:
        rates = [partial(power, self.gamma, reached) for reached in range(len(self.milestones) + 1)]
        return self.initial_lr * piece(step, self.milestones, rates)


class PolynomialLr(LrSchedule):
    """Changes from `initial_lr` to `final_lr` over `num_iters` steps as a power of the steps left, then is constant.

    rate(t) = final_lr + (initial_lr - final_lr) * (1 - t / num_iters)**power

    Liu et al. 2015, "ParseNet", use a power of 0.9.

    >>> schedule = PolynomialLr(1.0, num_iters=2, power=2.0)
    >>> [schedule.step() for _ in range(4)]
    [1.0, 0.25, 0.0, 0.0]
    """

    @answering
    def __init__(self, initial_lr: float, *, num_iters: int, power: float = 1.0, final_lr: float = 0.0) -> None:
        self.initial_lr = checks.rate(self, "initial_lr", initial_lr)
        self.num_iters = checks.count(self, "num_iters", num_iters)
        self.power = checks.positive(self, "power", power)
        self.final_lr = checks.rate(self, "final_lr", final_lr)

    def rate(self, step: int) -> float:
        fraction_left = 1.0 - least(step / self.num_iters, 1.0)
        return self.final_lr + (self.initial_lr - self.final_lr) * fraction_left**self.power


class NoamLr(LrSchedule):
    """Increases linearly for `warm_up` steps, then decreases with the inverse square root of the step, without end.

    rate(t) = factor * model_size**-0.5 * min(n**-0.5, n * warm_up**-1.5), where n = t + 1

    The greatest rate is factor / sqrt(model_size * warm_up), at step `warm_up` - 1. Vaswani et al. 2017: "Attention is
    all you need", equation 3.

    >>> schedule = NoamLr(model_size=512, warm_up=4000)
    >>> round(schedule.rate(3999), 6)
    0.000699
    """

    @answering
    def __init__(self, *, model_size: int, warm_up: int, factor: float = 1.0) -> None:
        self.model_size = checks.count(self, "model_size", model_size)
        self.warm_up = checks.count(self, "warm_up", warm_up)
        self.factor = checks.rate(self, "factor", factor)

    def rate(self, step: int) -> float:
        number = step + 1
        return self.factor * self.model_size**-0.5 * least(number**-0.5, number * self.warm_up**-1.5)


class InverseSqrtLr(LrSchedule):
    """Decreases with the inverse square root of the step, without end: rate(t) = initial_lr / sqrt(1 + t / timescale).

    After a warm-up of `timescale` steps, the rate is proportional to 1 / sqrt(number of all steps). Zhai et al. 2022:
    "Scaling vision transformers".

    >>> schedule = InverseSqrtLr(1.0, timescale=100)
    >>> schedule.rate(0), schedule.rate(300)
    (1.0, 0.5)
    """

    @answering
    def __init__(self, initial_lr: float, *, timescale: int) -> None:
        self.initial_lr = checks.rate(self, "initial_lr", initial_lr)
        self.timescale = checks.count(self, "timescale", timescale)

    def rate(self, step: int) -> float:
        return self.initial_lr / (1.0 + step / self.timescale) ** 0.5


def cosine(first: float, last: float, fraction: float) -> float:
    """The value on half a cosine from `first` to `last`, at this fraction of the way."""
    return last + 0.5 * (first - last) * (1.0 + cos(math.pi * fraction))
