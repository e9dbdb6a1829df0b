"""Who is told how a training goes: the interface, and a file of metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from phlox.optim.optimizer import Rate
from phlox.train.metrics import Mean


@dataclass(frozen=True, slots=True)
class Plan:
    """What is about to be done."""

    epochs: int
    steps: int
    """Of an epoch."""
    batch_size: int
    first_epoch: int = 1


@dataclass(frozen=True, slots=True)
class StepReport:
    """A step that was just taken. Reading `means` waits for the engine; do so only as often as somebody looks."""

    epoch: int
    step: int
    """In this epoch, from 1."""
    lr: Rate
    means: Mapping[str, Mean]
    """Over this epoch so far."""


@dataclass(frozen=True, slots=True)
class EpochReport:
    """An epoch that has ended."""

    epoch: int
    steps: int
    """Since the beginning of the training."""
    lr: Rate
    """At the last step."""
    train: dict[str, float]
    """The loss and the metrics, each a mean over the epoch's batches as they were trained on."""
    held_out: dict[str, float]
    """The same over the held-out data after the epoch, without dropout; empty where there is none."""
    seconds: float
    """Spent on the steps."""
    rate: float
    """Rows (images, say) a second."""

    def flat(self) -> dict[str, float]:
        """All numbers under one name each: `train_loss`, `held_out_accuracy`, ...; rates by group as `lr_head`."""
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
    """Is told how a training goes; override what you need.

    >>> class Shout(Logger):
    ...     def epoch(self, report):
    ...         print(f"EPOCH {report.epoch}!")
    """

    def start(self, plan: Plan) -> None:
        """Before the first step."""

    def step(self, report: StepReport) -> None:
        """After each step."""

    def epoch(self, report: EpochReport) -> None:
        """After each epoch."""

    def stop(self) -> None:
        """At the end, also when the training was interrupted or has failed."""


@dataclass
class MetricsFile(Logger):
    """Writes a line of JSON for every epoch (https://jsonlines.org).

    `write` is given the whole text after each epoch, so that it can replace the file in one go: whoever reads it, at
    any moment, finds whole lines. `RunFolder.writer(name)` is such a function.

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
