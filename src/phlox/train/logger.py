"""`Logger`, the interface for following a training, and `MetricsFile`, which writes metrics to a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from phlox.optim.optimizer import Rate
from phlox.train.metrics import Mean


@dataclass(frozen=True, slots=True)
class Plan:
    """The size of a training, before it starts."""

    epochs: int
    steps: int
    """Steps in each epoch."""
    batch_size: int
    first_epoch: int = 1


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step that has just been taken. Reading `means` waits for the engine, so read it only when it is shown."""

    epoch: int
    step: int
    """The number of the step in this epoch, from 1."""
    lr: Rate
    means: Mapping[str, Mean]
    """The means over this epoch so far."""


@dataclass(frozen=True, slots=True)
class EpochReport:
    """An epoch that has ended."""

    epoch: int
    steps: int
    """The number of steps since the beginning of the training."""
    lr: Rate
    """The learning rate of the last step."""
    train: dict[str, float]
    """The loss and the metrics, each the mean over the epoch's batches during training."""
    held_out: dict[str, float]
    """The same on the validation data after the epoch, in inference mode; empty without validation data."""
    seconds: float
    """The time of the steps."""
    rate: float
    """Rows (for example images) per second."""

    def flat(self) -> dict[str, float]:
        """All values in one dict: `train_loss`, `held_out_accuracy`, ...; learning rates of groups as `lr_head`."""
        measured = {f"train_{name}": value for name, value in self.train.items()}
        measured |= {f"held_out_{name}": value for name, value in self.held_out.items()}
        rates = (
            {f"lr_{name}": rate for name, rate in self.lr.items()} if isinstance(self.lr, Mapping) else {"lr": self.lr}
        )
        return {
            "epoch": self.epoch, "step": self.steps, **rates, **measured,
            "seconds": round(self.seconds, 4), "rows_per_second": round(self.rate, 1),
        }  # fmt: skip


class Logger:
    """Follows a training: override the methods that you need.

    >>> class Shout(Logger):
    ...     def epoch(self, report):
    ...         print(f"EPOCH {report.epoch}!")
    """

    def start(self, plan: Plan) -> None:
        """Called before the first step."""

    def step(self, report: StepReport) -> None:
        """Called after each step."""

    def epoch(self, report: EpochReport) -> None:
        """Called after each epoch."""

    def stop(self) -> None:
        """Called at the end, also if the training was interrupted or has failed."""


@dataclass
class MetricsFile(Logger):
    """Writes one line of JSON for every epoch (https://jsonlines.org).

    `write` gets the whole text after each epoch, so that it can replace the file atomically: a reader finds only
    complete lines at any moment. `RunFolder.writer(name)` is such a function.

    >>> texts = []
    >>> log = MetricsFile(lambda data: texts.append(data))
    >>> log.epoch(EpochReport(1, 10, 0.1, {"loss": 2.5}, {}, 1.0, 640.0))
    >>> texts[-1]
    b'{"epoch": 1, "step": 10, "lr": 0.1, "train_loss": 2.5, "seconds": 1.0, "rows_per_second": 640.0}\\n'
    """

    write: Callable[[bytes], Any]
    lines: list[str] = field(default_factory=list[str])

    def epoch(self, report: EpochReport) -> None:
        self.lines.append(json.dumps(report.flat()) + "\n")
        self.write("".join(self.lines).encode())
