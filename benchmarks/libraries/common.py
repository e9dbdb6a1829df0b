"""What every contestant is: training steps, and predictions of one example, by the library's own means."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from benchmarks.workloads import Workload

Handle = TypeVar("Handle")
"""What a library gives for losses or logits, perhaps not ready yet."""


class Trainer(ABC, Generic[Handle]):
    """The model is there, with the common weights; predictions are made with those, whatever was trained."""

    library: ClassVar[str]
    """As the files of the models are called."""

    averaged: bool = False
    """Whether the library only tells the mean of the losses of a call."""

    def __init__(self, workload: Workload, variant: str) -> None:
        self.workload, self.variant = workload, variant
        self.steps = 1
        """Training steps of one call."""
        self._unread: list[float] = []

    @abstractmethod
    def step(self) -> Handle:
        """One call: the losses of its steps."""

    @abstractmethod
    def infer(self) -> Handle:
        """The logits of the example."""

    @abstractmethod
    def array(self, handle: Handle) -> np.ndarray[Any, Any]:
        """Read back, in f32."""

    def wait(self, handle: Handle) -> None:
        """Until it is there."""

    @cached_property
    def written(self) -> ModuleType:
        """The model in this library."""
        return self.workload.written_with(self.library)

    @cached_property
    def data(self) -> tuple[dict[str, Any], Any, Any, Any]:
        """Weights, inputs, targets and the example."""
        maths, sizes = self.workload.maths, self.workload.sizes
        x, y = maths.batch(sizes)
        x, example = (self.workload.inputs(self.library, inputs) for inputs in (x, maths.example(sizes)))
        return maths.weights(sizes), x, y, example

    def losses(self, n: int) -> list[float]:
        """Of the next n steps."""
        while len(self._unread) < n:
            self._unread += np.ravel(self.array(self.step())).tolist()
        found, self._unread = self._unread[:n], self._unread[n:]
        return found

    def run(self, n: int) -> None:
        """At least n steps, as a loop that reads its losses later, and the wait for the last."""
        step = self.step
        for _ in range(-(-n // self.steps) - 1):
            step()
        self.wait(step())

    def predict(self, n: int) -> None:
        """n predictions, each awaited."""
        infer, wait = self.infer, self.wait
        for _ in range(n):
            wait(infer())

    def outputs(self) -> np.ndarray[Any, Any]:
        """The logits of the example."""
        return self.array(self.infer())
