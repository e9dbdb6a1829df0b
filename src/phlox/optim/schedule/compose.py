"""Schedules made of schedules: warm-up, sequence, product, sum, and one for each group of parameters."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast, final

from phlox.optim.schedule import checks
from phlox.optim.schedule.base import LrSchedule
from phlox.optim.schedule.scalars import from_zero, is_traced, piece, select
from phlox.optim.schedule.shapes import ConstantLr
from phlox.other_names import answering


@final
class WarmUpLr(LrSchedule):
    """Adds a linear warm-up before a schedule, from `start_lr` to the schedule's first rate in `num_iters` steps.

    rate(t) = start_lr + (schedule.rate(0) - start_lr) * t / num_iters, then schedule.rate(t - num_iters)

    A schedule of n steps then ends after `num_iters` + n steps. Goyal et al. 2017: "Accurate, large minibatch SGD:
    training ImageNet in 1 hour".

    >>> from phlox import optim
    >>> schedule = WarmUpLr(optim.LinearLr(1.0, 0.0, num_iters=2), num_iters=4)
    >>> [schedule.step() for _ in range(8)]
    [0.0, 0.25, 0.5, 0.75, 1.0, 0.5, 0.0, 0.0]
    """

    @answering
    def __init__(self, schedule: LrSchedule, *, num_iters: int, start_lr: float = 0.0) -> None:
        self.schedule = part_of(self, "schedule", schedule)
        self.num_iters = checks.count(self, "num_iters", num_iters)
        self.start_lr = checks.rate(self, "start_lr", start_lr)

    def rate(self, step: int) -> float:
        fraction = step / self.num_iters
        return select(
            step >= self.num_iters,
            lambda: self.schedule.rate(from_zero(step - self.num_iters)),
            lambda: (1.0 - fraction) * self.start_lr + fraction * self.schedule.rate(0),
        )

    def parts(self) -> Mapping[str, LrSchedule[Any]]:
        return {"schedule": self.schedule}

    def listeners(self, step: int) -> Iterator[LrSchedule[Any]]:
        if step >= self.num_iters:
            yield from self.schedule.listeners(step - self.num_iters)


@final
class SequenceLr(LrSchedule):
    """Runs schedules one after the other: each step in `milestones` starts the next schedule, from its first step.

    >>> from phlox import optim
    >>> schedule = SequenceLr([optim.ConstantLr(1.0), optim.LinearLr(0.5, 0.0, num_iters=2)], milestones=[2])
    >>> [schedule.step() for _ in range(6)]
    [1.0, 1.0, 0.5, 0.25, 0.0, 0.0]
    """

    @answering
    def __init__(self, schedules: Sequence[LrSchedule | float], *, milestones: Sequence[int]) -> None:
        self.schedules = tuple(part_of(self, f"schedules[{i}]", part) for i, part in enumerate(schedules))
        self.milestones = checks.milestones(self, milestones)
        if len(self.schedules) != len(self.milestones) + 1:
            checks.refuse(
                self,
                f"{len(self.schedules)} schedules need {max(len(self.schedules) - 1, 0)} milestones, one between each "
                f"and the next, got {len(self.milestones)}",
            )

    def rate(self, step: int) -> float:
        starts = (0, *self.milestones)
        rates = [
            lambda part=part, start=start: part.rate(from_zero(step - start))
            for part, start in zip(self.schedules, starts, strict=True)
        ]
        return piece(step, self.milestones, rates)

    def parts(self) -> Mapping[str, LrSchedule[Any]]:
        return _numbered(self.schedules)

    def listeners(self, step: int) -> Iterator[LrSchedule[Any]]:
        schedule, step = self._turn(step)
        yield from schedule.listeners(step)

    def _turn(self, step: int) -> tuple[LrSchedule, int]:
        number = bisect_right(self.milestones, step)
        return self.schedules[number], step - (self.milestones[number - 1] if number else 0)


@final
class ProductLr(LrSchedule):
    """Multiplies the rates of several schedules: `a * b`. A number is a constant factor.

    >>> from phlox import optim
    >>> schedule = optim.ExponentialLr(1.0, gamma=0.5) * optim.LinearLr(1.0, 0.0, num_iters=2)
    >>> [schedule.step() for _ in range(3)]
    [1.0, 0.25, 0.0]
    """

    @answering
    def __init__(self, *factors: LrSchedule | float) -> None:
        self.factors = _parts_of(self, "factors", factors)

    def rate(self, step: int) -> float:
        return math.prod(factor.rate(step) for factor in self.factors)

    def parts(self) -> Mapping[str, LrSchedule[Any]]:
        return _numbered(self.factors)


@final
class SumLr(LrSchedule):
    """Adds the rates of several schedules: `a + b`. A number is a constant rate.

    >>> from phlox import optim
    >>> schedule = optim.ConstantLr(0.5) + optim.LinearLr(1.0, 0.0, num_iters=2)
    >>> [schedule.step() for _ in range(3)]
    [1.5, 1.0, 0.5]
    """

    @answering
    def __init__(self, *terms: LrSchedule | float) -> None:
        self.terms = _parts_of(self, "terms", terms)

    def rate(self, step: int) -> float:
        rates = [term.rate(step) for term in self.terms]
        return sum(rates) if any(map(is_traced, rates)) else math.fsum(rates)

    def parts(self) -> Mapping[str, LrSchedule[Any]]:
        return _numbered(self.terms)


@final
class GroupedLr(LrSchedule[Mapping[str, float]]):
    """A schedule for each named group of parameters, and under "*" one for all others.

    `step` returns a dict, which is the learning rate for an optimizer with groups of these names. A number in place of
    a schedule is a constant rate.

    Raises `OptimizerError` if there is no "*", if a name is not a string, or if a value is neither a schedule of one
    rate nor a number.

    >>> from phlox import nn, optim
    >>> optimizer = optim.AdamWConfig().init(groups=[optim.Group("layers.head.**", name="head")])
    >>> schedule = GroupedLr({"head": optim.LinearLr(0.1, 0.0, num_iters=2), "*": 0.01})
    >>> [schedule.step() for _ in range(2)]
    [{'head': 0.1, '*': 0.01}, {'head': 0.05, '*': 0.01}]
    """

    by_group: ClassVar = True

    def __init__(self, schedules: Mapping[str, LrSchedule | float]) -> None:
        self.schedules = {name: part_of(self, repr(name), schedule) for name, schedule in schedules.items()}
        if not all(isinstance(name, str) and name for name in cast("dict[Any, Any]", self.schedules)):
            checks.refuse(self, f"the name of a group is a str, and not empty, got {', '.join(map(repr, schedules))}")
        if "*" not in self.schedules:
            checks.refuse(
                self,
                "it needs a schedule for each group under the group's name, and one under '*' for all other "
                f"parameters, got {', '.join(map(repr, self.schedules)) or 'none'}",
            )

    def rate(self, step: int) -> Mapping[str, float]:
        return {name: schedule.rate(step) for name, schedule in self.schedules.items()}

    def parts(self) -> Mapping[str, LrSchedule[Any]]:
        # A path in a record is names joined by dots.
        return {name.replace("%", "%25").replace(".", "%2E"): part for name, part in self.schedules.items()}


def part_of(owner: object, name: str, value: Any) -> LrSchedule:
    """The schedule itself, or a constant schedule for a number; it must have one rate, not one per group."""
    if checks.is_rate(value):
        return ConstantLr(value)
    if not isinstance(value, LrSchedule):
        checks.refuse(owner, f"{name} must be a schedule, or a finite number of at least zero, got {value!r}")
    schedule = cast("LrSchedule", value)
    if schedule.by_group:
        checks.refuse(
            owner,
            f"{name} is a {type(schedule).__name__}, which has a rate for each group; compose the schedules of its "
            "groups, and create a GroupedLr from the results",
        )
    return schedule


def _parts_of(owner: object, name: str, values: Sequence[Any]) -> tuple[LrSchedule, ...]:
    if not values:
        checks.refuse(owner, f"{name} must be one schedule or more, got none")
    return tuple(part_of(owner, f"{name}[{index}]", value) for index, value in enumerate(values))


def _numbered(schedules: Sequence[LrSchedule]) -> dict[str, LrSchedule[Any]]:
    return {str(index): schedule for index, schedule in enumerate(schedules)}
