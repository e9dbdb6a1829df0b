"""The base class of contestants: training steps, and predictions of one example, in the library's own way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from benchmarks.workloads import Workload

Handle = TypeVar("Handle")
"""A library's result for losses or logits, which may not be computed yet."""


class Trainer(ABC, Generic[Handle]):
    """A model with the common weights. Predictions always use these weights, also after training."""

    library: ClassVar[str]
    """The name of the library's files in `benchmarks.models`."""

    averaged: bool = False
    """Whether the library returns only the mean of the losses of a call."""

    def __init__(self, workload: Workload, variant: str) -> None:
        self.workload, self.variant = workload, variant
        self.steps = 1
        """The number of training steps in one call."""
        self._unread: list[float] = []

    @abstractmethod
    def step(self) -> Handle:
        """Make one call, and return the losses of its steps."""

    @abstractmethod
    def infer(self) -> Handle:
        """The logits of the example."""

    @abstractmethod
    def array(self, handle: Handle) -> np.ndarray[Any, Any]:
        """The result as a NumPy array in f32."""

    def wait(self, handle: Handle) -> None:
        """Wait until the result is computed."""

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
        """The losses of the next n steps."""
        while len(self._unread) < n:
            self._unread += np.ravel(self.array(self.step())).tolist()
        found, self._unread = self._unread[:n], self._unread[n:]
        return found

    def run(self, n: int) -> None:
        """Run at least n steps, as in a loop that reads its losses later, and wait for the last one."""
        step = self.step
        for _ in range(-(-n // self.steps) - 1):
            step()
        self.wait(step())

    def predict(self, n: int) -> None:
        """Make n predictions, and wait for each."""

        infer, wait = self.infer, self.wait
        for _ in range(n):
            wait(infer())

    def outputs(self) -> np.ndarray[Any, Any]:
        """The logits of the example."""
        return self.array(self.infer())
