"""A learner that trains nothing: what callbacks read of one, moved on by a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from phlox.backend import as_device
from phlox.train.events import EpochReport, Plan, Values
from phlox.train.observers.callback import Callback


class FakeLearner:
    """Has `steps` steps of 10 rows in each of `epochs` epochs; None where it says nothing about them."""

    def __init__(self, *, epochs: int | None = 3, steps: int | None = 4, total: int | None = None) -> None:
        self.plan = Plan(epochs, total or (epochs * steps if epochs and steps else None), steps, 10)
        self.epoch = self.step = self.updates = self.rows = 0
        self.lr: Any = 0.01
        self.history: list[EpochReport] = []
        self.validation: Values = {}
        self.events: list[tuple[int, str]] = []
        self.stopped: str | None = None
        self.is_resumed = self.starts_over = False
        self.folder: Path | None = None
        self.metrics: Any = {}
        self.model: Any = {}
        self.device = as_device("numpy")
        self.now: Values = {"loss": 1.0}
        self.seconds = 0.0
        self.reads = 0
        self.description: dict[str, Any] = {"loss": "mse_loss"}

    @property
    def loss(self) -> float:
        self.reads += 1
        return self.now["loss"]

    def settings(self) -> dict[str, Any]:
        return {"lr": 0.01, "clip": None}

    def means(self) -> Values:
        self.reads += 1
        return dict(self.now)

    def warn(self, text: str) -> None:
        self.events.append((self.step, text))

    # --- moved on by a test

    def begin(self, *callbacks: Callback) -> None:
        self.callbacks: Any = callbacks
        self.tell("on_fit_start")

    def tell(self, event: str, *args: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, *args)

    def begin_epoch(self) -> None:
        self.rows = 0
        self.tell("on_epoch_start")

    def take(self, steps: int = 1, **values: Any) -> None:
        for _ in range(steps):
            self.step += 1
            self.rows += 10
            self.now = values or self.now
            self.tell("on_step_end")

    def validate(self, **values: Any) -> None:
        self.tell("on_validation_start")
        self.validation = values
        self.tell("on_validation_end")

    def end_epoch(self, seconds: float = 1.5) -> None:
        self.epoch += 1
        self.history.append(
            EpochReport(self.epoch, self.step, self.lr, dict(self.now), dict(self.validation), seconds, self.rows)
        )
        self.tell("on_epoch_end")

    def end(self, error: BaseException | None = None) -> None:
        if error is not None:
            self.tell("on_exception", error)
        self.tell("on_fit_end")
