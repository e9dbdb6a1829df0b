"""A learner with what callbacks read of one, on small real modules, without a training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

import phlox as px
from phlox import nn, optim
from phlox.errors import DataError, RunError
from phlox.record import LazyTensor, Record, TensorEntry, gather, restore
from phlox.train.events import EpochReport, Growing, History, entries_of
from phlox.train.observers.checkpoints.checkpoints import Checkpoints
from phlox.train.state import with_lines


class FakeLearner:
    """Its "training" adds one to the weights in each step, so the weights tell how many there have been."""

    def __init__(self, folder: Path | None = None, *callbacks: Any, steps_per_epoch: int = 3) -> None:
        with px.random.stream(0):
            self.model = nn.Linear(2, 3)
        self.optimizer = optim.AdamWConfig().init()
        self.callbacks = callbacks
        self.folder = folder
        self.steps_per_epoch = steps_per_epoch
        self.step = self.epoch = 0
        self.loss: Any = 1.0
        self.seconds = 0.0
        self.is_resumed = self.starts_over = False
        self.validation_data: Any = "some"
        self.team = None
        self.is_whole = True
        self.scores: dict[int, float] = {}
        self.events: Growing[tuple[int, str]] = Growing()
        self.history = History()
        self.reports = False  # does it add to it after each epoch?
        self.announced: list[Path] = []
        self.more: dict[str, Any] = {}

    # --- what callbacks may call

    def grown(self) -> dict[str, Any]:
        return {"history": self.history, "events": self.events}

    def snapshot(self, *, whole: bool = True, frozen: bool = True) -> Record:
        parts = {
            "model": self.model, "progress": {"step": self.step, "epoch": self.epoch}, **self.more,
            "log": {"counts": {name: len(entries) for name, entries in self.grown().items()}},
            "callbacks": {str(number): dict(one.state()) for number, one in enumerate(self.callbacks)},
        }  # fmt: skip
        record = on_host(gather(parts))
        return with_lines(record, self.grown()) if whole else record

    def load_state(self, record: Record) -> None:
        held = restore(record, {"model": self.model, "progress": {}, "callbacks": None, "log": None, **self.more})
        self.step, self.epoch = held["progress"]["step"], held["progress"]["epoch"]
        lines = held["log"].get("lines", {})
        self.history[:] = [EpochReport.from_plain(one) for one in entries_of(lines.get("history", ""))]
        self.events[:] = [(step, text) for step, text in entries_of(lines.get("events", ""))]
        for one, name in zip(self.callbacks, sorted(record["callbacks"]), strict=True):
            one.restore(record["callbacks"][name])
        self.is_resumed = True

    def weights(self, *, frozen: bool = True) -> Record:
        return on_host(self.model.into_record())

    def values(self) -> dict[str, Any]:
        return {"train/loss": self.loss, "validation/f1": self.scores.get(self.epoch, 0.0)}

    def value(self, name: str) -> float:
        if name not in self.values():
            raise RunError(f"there is no value {name!r}")
        return self.values()[name]

    def value_names(self, kind: str) -> tuple[list[str], bool]:
        return [], True

    def warn(self, text: str) -> None:
        self.events.append((self.step, text))

    def announce(self, path: Path) -> None:
        assert path.is_file()
        self.announced.append(path)

    # --- its training

    def fit(self, epochs: int, error: BaseException | None = None, at: int | None = None) -> FakeLearner:
        """Train until so many epochs have ended; `error` is raised after step `at`."""
        try:
            self.call("on_fit_start")
            while self.epoch < epochs:
                self.call("on_epoch_start")
                while self.step < (self.epoch + 1) * self.steps_per_epoch:
                    self.train()
                    self.call("on_step_end")
                    if error is not None and self.step == at:
                        raise error
                self.call("on_validation_start")
                self.epoch += 1
                self.call("on_validation_end")
                if self.reports:
                    self.history.append(EpochReport(self.epoch, self.step, 0.1, {"loss": 1.0 / self.step}))
                self.call("on_epoch_end")
        except BaseException as raised:
            self.is_whole = isinstance(raised, (DataError, OSError)) or not isinstance(raised, Exception)
            for one in self.callbacks:
                one.on_exception(self, raised)
            raise
        finally:
            for one in reversed(self.callbacks):
                one.on_fit_end(self)
        return self

    def train(self) -> None:
        self.step += 1
        self.model = self.model.load_record(shifted(self.model.into_record(), 1.0))

    def call(self, event: str) -> None:
        for one in self.callbacks:
            getattr(one, event)(self)


def on_host(record: Record) -> Record:
    """The record with copies of its tensors."""
    entries: dict[str, Any] = {
        path: TensorEntry(LazyTensor.from_array(np.array(record[path].tensor.read())), record[path].id)
        if path in record.tensors
        else record[path]
        for path in record
    }
    return Record(entries, record.metadata, aliases=record.aliases, unreadable=record.unreadable)


def shifted(record: Record, by: float) -> Record:
    entries = {
        path: TensorEntry(LazyTensor.from_array(entry.tensor.read() + np.float32(by)), entry.id)
        for path, entry in record.tensors.items()
    }
    return Record(entries, record.metadata)


def steps_in(record: Record) -> int:
    """How many steps the weights of a state (or the weights alone) have seen."""
    path = next(path for path in record.tensors if path.endswith("bias"))
    with px.random.stream(0):
        start = nn.Linear(2, 3).bias
    assert start is not None
    steps = float(record[path].tensor.read()[0] - start.val().numpy()[0])
    assert math.isclose(steps, round(steps), abs_tol=1e-3)
    return round(steps)


def at_once(*arguments: Any, **options: Any) -> Checkpoints:
    return Checkpoints(*arguments, background=False, **options)


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def steps(folder: Path) -> list[int]:
    return [int(path.stem[5:]) for path in sorted((folder / "checkpoints").glob("step-*"))]


def listed(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "checkpoints" / "checkpoints.json").read_text())
