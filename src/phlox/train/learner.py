"""`Learner`: a training loop for a model, an optimizer, a schedule and a loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, Generic, TypeVar

from phlox.backend import Device, as_device
from phlox.data import Batches
from phlox.errors import RunError
from phlox.module import GradientsParams, Module
from phlox.optim import LrSchedule, Optimizer
from phlox.optim.optimizer import Rate
from phlox.tensor import Tensor, tensor
from phlox.train.logger import EpochReport, Logger, Plan, StepReport
from phlox.train.metrics import Mean, Measure
from phlox.transform import compile as compiled

M = TypeVar("M", bound=Module)
Tensors = tuple[Tensor[Any, Any, Any], ...]


class Learner(Generic[M]):
    """Trains a model.

    The first array of each batch is the model's input, and the others are the targets. The loss and the metrics are
    called with the model's output and the targets.

    Args:
        model: a model on any backend. It is trained on `Autodiff` of its backend, unless that differentiates already.
        optimizer: updates the model by its gradients.
        schedule: returns the learning rate of each step.
        loss: `(output, *targets)` to a scalar, which training minimizes.
        metrics: further scalars to measure, by name.
        compile: whether each step is compiled into one program, on backends with a compiler.

    Attributes:
        model: the model after the last step, with a tape; use `learner.model.valid()` for inference.
        history: the reports of all epochs.

    >>> import numpy as np
    >>> from phlox import nn, optim
    >>> from phlox.data import Batches
    >>> x = np.linspace(-1, 1, 64, dtype=np.float32)[:, None]
    >>> learner = Learner(nn.Linear(1, 1), optim.SgdConfig().init(), optim.ConstantLr(0.3), nn.mse_loss)
    >>> history = learner.fit(Batches(x, 2 * x, batch_size=16, shuffle=True), epochs=20)
    >>> history[-1].train["loss"] < 1e-3
    True
    """

    def __init__(
        self,
        model: M,
        optimizer: Optimizer,
        schedule: LrSchedule[Any],
        loss: Measure,
        *,
        metrics: Mapping[str, Measure] | None = None,
        compile: bool = False,
    ) -> None:
        self.model: M = model.train()
        self.optimizer = optimizer
        self.schedule = schedule
        self.history: list[EpochReport] = []
        self._measures = {"loss": loss, **(metrics or {})}
        self._update = compiled(self._step, donate=("model", "optimizer")) if compile else self._step
        self._evaluate = compiled(self._measure) if compile else self._measure

    @property
    def device(self) -> Device:
        """The device of the model, to which batches are moved."""
        params = self.model.params()
        params = [param for param in params if not param.full_precision] or params
        return params[0].device if params else as_device(None)

    def fit(
        self, batches: Batches, *, epochs: int, held_out: Batches | None = None, loggers: Sequence[Logger] = ()
    ) -> list[EpochReport]:
        """Train for `epochs` further epochs, and return the history.

        `held_out` is the validation data; the loss and the metrics are measured on it after each epoch. Loggers are
        called after every step and epoch, in their order. Their `stop` is called however the training ends.

        Raises:
            RunError: the loss is no longer finite.
        """
        done = len(self.history)
        plan = Plan(done + epochs, len(batches), batches.batch_size, done + 1)
        started: list[Logger] = []
        try:
            for logger in loggers:
                started.append(logger)
                logger.start(plan)
            for epoch in range(done, done + epochs):
                report = self._epoch(epoch, batches, held_out, loggers)
                self.history.append(report)
                for logger in loggers:
                    logger.epoch(report)
        finally:
            for logger in reversed(started):
                logger.stop()
        return self.history

    def evaluate(self, batches: Batches) -> dict[str, float]:
        """The loss and the metrics over all batches, in inference mode; all rows have the same weight."""
        model, device = self.model.valid(), self.device
        if device.backend.inner is not None:
            device = device.on(device.backend.inner)
        means = {name: Mean() for name in self._measures}
        for arrays in batches.epoch():
            _count(means, self._evaluate(model, _to_device(arrays, device)), len(arrays[0]))
        return {name: mean.value() for name, mean in means.items()}

    def _epoch(self, epoch: int, batches: Batches, held_out: Batches | None, loggers: Sequence[Logger]) -> EpochReport:
        means = {name: Mean() for name in self._measures}
        device, rows, begun = self.device, 0, perf_counter()
        lr: Rate = 0.0
        for step, arrays in enumerate(batches.epoch(epoch), start=1):
            lr = self.schedule.step()
            self.model, measured = self._update(self.model, self.optimizer, lr, _to_device(arrays, device))
            _count(means, measured, len(arrays[0]))
            rows += len(arrays[0])
            report = StepReport(epoch + 1, step, lr, means)
            for logger in loggers:
                logger.step(report)
        train = {name: mean.value() for name, mean in means.items()}  # waits for the last step
        seconds = perf_counter() - begun
        if not math.isfinite(train["loss"]):
            raise RunError(
                f"epoch {epoch + 1}: the loss is {train['loss']}; lower the learning rate, or clip the gradients"
            )
        validation = {} if held_out is None else self.evaluate(held_out)
        return EpochReport(epoch + 1, (epoch + 1) * len(batches), lr, train, validation, seconds, rows / seconds)

    def _step(self, model: M, optimizer: Optimizer, lr: Rate, batch: Tensors) -> tuple[M, dict[str, Any]]:
        inputs, *targets = batch
        output = _called(model, inputs)
        loss = self._measures["loss"](output, *targets)
        measured = {name: measure(output, *targets) for name, measure in self._measures.items() if name != "loss"}
        grads = GradientsParams.from_grads(loss.backward(), model)
        measured = {"loss": loss, **measured}
        return optimizer.step(lr, model, grads), {name: value.detach() for name, value in measured.items()}

    def _measure(self, model: M, batch: Tensors) -> dict[str, Any]:
        inputs, *targets = batch
        output = _called(model, inputs)
        return {name: measure(output, *targets) for name, measure in self._measures.items()}


def _called(model: Any, inputs: Tensor[Any, Any, Any]) -> Any:
    """The model's output. A type checker does not know that subclasses of `Module` define `__call__`."""
    return model(inputs)


def _to_device(arrays: Sequence[Any], device: Device) -> Tensors:
    return tuple(tensor(array, device=device) for array in arrays)


def _count(means: Mapping[str, Mean], measured: Mapping[str, Any], rows: int) -> None:
    for name, mean in means.items():
        mean.add(measured[name], rows)
