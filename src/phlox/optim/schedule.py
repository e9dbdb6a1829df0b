"""Learning-rate schedules: objects that give the next rate, and whose state is a record."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from phlox.errors import OptimizerError, RecordError
from phlox.record import Record


class LrSchedule(ABC):
    """Gives the learning rate of one step after the other. Implement `rate`."""

    def __init__(self) -> None:
        self.taken = 0

    @abstractmethod
    def rate(self, step: int) -> float:
        """The learning rate of a step, the first being number zero."""

    def step(self) -> float:
        """The learning rate of the next step."""
        rate = self.rate(self.taken)
        self.taken += 1
        return rate

    def into_record(self) -> Record:
        """The position in the schedule."""
        return Record({"taken": self.taken}, {"schedule": type(self).__name__})

    def load_record(self, record: Record) -> None:
        """Go on where the record stands."""
        taken = record.values.get("taken")
        if not isinstance(taken, int) or isinstance(taken, bool) or taken < 0:
            raise RecordError("taken: the record is not a schedule's, which has a number of steps taken")
        self.taken = taken


class ConstantLr(LrSchedule):
    """The same rate at every step."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr

    def rate(self, step: int) -> float:
        return self.lr


class CosineAnnealingLr(LrSchedule):
    """From `initial_lr` down to `min_lr` along half a cosine over `num_iters` steps, then constant.

    Loshchilov, Hutter 2017, without restarts.

    >>> schedule = CosineAnnealingLr(1.0, num_iters=2)
    >>> [round(schedule.step(), 3) for _ in range(4)]
    [1.0, 0.5, 0.0, 0.0]
    """

    def __init__(self, initial_lr: float, *, num_iters: int, min_lr: float = 0.0) -> None:
        super().__init__()
        if num_iters < 1:
            raise OptimizerError(f"num_iters must be at least one, got {num_iters}")
        self.initial_lr, self.num_iters, self.min_lr = initial_lr, num_iters, min_lr

    def rate(self, step: int) -> float:
        done = min(step / self.num_iters, 1.0)
        return self.min_lr + 0.5 * (self.initial_lr - self.min_lr) * (1.0 + math.cos(math.pi * done))
