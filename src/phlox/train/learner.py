"""`Learner`: a model, an optimizer, a schedule and a loss, joined to a training loop."""

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

    Of each batch the first array goes into the model, the others are the targets: the loss and the metrics are called
    with the model's output and those.

    Args:
        model: on any backend; it is trained on `Autodiff` of it, unless it is on a backend that differentiates.
        optimizer: changes the model by its gradients.
        schedule: gives the learning rate of each step.
        loss: `(output, *targets)` to one number, the smaller the better.
        metrics: by name, further numbers to be measured.
        compile: whether steps are run as one program each, on backends that have a compiler.

    Attributes:
        model: as it is after the last step, with a tape; `learner.model.valid()` is ready for use.
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
        self._judge = compiled(self._measure) if compile else self._measure

    @property
    def device(self) -> Device:
        """Where the model is, and batches are brought."""
        params = self.model.params()
        return params[0].device if params else as_device(None)

    def fit(
        self, batches: Batches, *, epochs: int, held_out: Batches | None = None, loggers: Sequence[Logger] = ()
    ) -> list[EpochReport]:
        """Train for `epochs` further epochs, and return the history.

        Loggers are told of every step and epoch, in their order. However the training ends, they are told to stop.

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
        """The loss and the metrics over all batches, without dropout; every row counts alike."""
        model, place = self.model.valid(), self.device
        if place.backend.inner is not None:
            place = place.on(place.backend.inner)
        means = {name: Mean() for name in self._measures}
        for arrays in batches.epoch():
            _count(means, self._judge(model, _brought(arrays, place)), len(arrays[0]))
        return {name: mean.value() for name, mean in means.items()}

    def _epoch(self, epoch: int, batches: Batches, held_out: Batches | None, loggers: Sequence[Logger]) -> EpochReport:
        means = {name: Mean() for name in self._measures}
        place, rows, begun = self.device, 0, perf_counter()
        lr: Rate = 0.0
        for step, arrays in enumerate(batches.epoch(epoch), start=1):
            lr = self.schedule.step()
            self.model, measured = self._update(self.model, self.optimizer, lr, _brought(arrays, place))
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
        judged = {} if held_out is None else self.evaluate(held_out)
        return EpochReport(epoch + 1, (epoch + 1) * len(batches), lr, train, judged, seconds, rows / seconds)

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
    """The model's output; that `Module` leaves its call to its subclasses is beyond a type checker."""
    return model(inputs)


def _brought(arrays: Sequence[Any], place: Device) -> Tensors:
    return tuple(tensor(array, device=place) for array in arrays)


def _count(means: Mapping[str, Mean], measured: Mapping[str, Any], rows: int) -> None:
    for name, mean in means.items():
        mean.add(measured[name], rows)
