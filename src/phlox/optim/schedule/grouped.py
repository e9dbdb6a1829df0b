"""A schedule for each group of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast, final

from phlox.optim.schedule import checks
from phlox.optim.schedule.base import LrSchedule
from phlox.optim.schedule.compose import part_of


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
                "it needs a schedule for all parameters in no group under '*', and under the name of each group its "
                f"own, got {', '.join(map(repr, self.schedules)) or 'none'}",
            )

    def rate(self, step: int) -> Mapping[str, float]:
        return {name: schedule.rate(step) for name, schedule in self.schedules.items()}

    def parts(self) -> Mapping[str, LrSchedule[Any]]:
        # A path in a record is names joined by dots.
        return {name.replace("%", "%25").replace(".", "%2E"): part for name, part in self.schedules.items()}
