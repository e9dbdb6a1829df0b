"""Costs grow as the work does: calls of functions are counted, for a model and for one of four times as many layers.

Serves: src/phlox/module/, src/phlox/record/, src/phlox/optim/, src/phlox/transform/, src/phlox/train/
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.data import Loader
from phlox.record import Record
from phlox.train import Callback, Checkpoints, CsvLogger, Growing, JsonlLogger, Learner

LAYERS = 24
"""Of the smaller model; in the other one there are four times as many."""
SUFFIXES = ("safetensors", "json", "msgpack", "npz", "phlox")


class Counter:
    """Counts calls of functions, of Python's and of native ones."""

    def __init__(self) -> None:
        self.calls = 0

    def _count(self, frame: FrameType, event: str, argument: object) -> None:
        self.calls += event in ("call", "c_call")

    def of(self, run: Callable[[], object]) -> int:
        """The calls in a second call of `run`."""
        run()
        self.calls = 0
        sys.setprofile(self._count)
        try:
            run()
        finally:
            sys.setprofile(None)
        return self.calls


class Work:
    """A model of so many layers, and what is done with it, by name."""

    def __init__(self, layers: int, folder: Path) -> None:
        self.layers, self.folder = layers, folder
        self.x = px.ones((2, 4), device="numpy")
        self.model: Any = self.build()
        self.taped: Any = self.model.train()
        self.optimizer = optim.AdamWConfig().init()
        self.step()
        self.record = Record.merge({"model": self.model.into_record(), "optimizer": self.optimizer.into_record()})
        for suffix in SUFFIXES:
            px.record.save(self.model.into_record(), folder / f"model.{suffix}", durable=False)

    def build(self) -> Any:
        layers = [layer for _ in range(self.layers) for layer in (nn.Linear(4, 4), px.functional.relu)]
        return nn.Sequential(layers).init(seed=0, device="numpy")

    def step(self) -> None:
        loss = self.taped(self.x).sum()
        grads = optim.GradientsParams.from_grads(loss.backward(), self.taped)
        self.taped = self.optimizer.step(1e-3, self.taped, grads)

    def adapt(self) -> Any:
        return nn.lora(self.model, "*", rank=1)

    def runs(self) -> dict[str, Callable[[], object]]:
        """What is done."""
        model, x = self.model, self.x
        loads = {
            f"load {suffix}": lambda suffix=suffix: model.load_record(px.record.load(self.folder / f"model.{suffix}"))
            for suffix in SUFFIXES
        }
        saves = {
            f"save {suffix}": lambda suffix=suffix: px.record.save(
                model.into_record(), self.folder / f"saved.{suffix}", durable=False
            )
            for suffix in SUFFIXES
        }
        return {
            "build": self.build, "call": lambda: model(x), "step": self.step, "summary": lambda: str(model.summary(x)),
            "summary of a training": lambda: model.summary(x, training=True, optimizer=self.optimizer),
            "repr": lambda: repr(model), "freeze": lambda: model.freeze("layers.0"), "valid": model.valid,
            "trace": lambda: px.compile(lambda model, x: model(x))(model, x),
            "optimizer's record": lambda: self.optimizer.load_record(self.optimizer.into_record()),
            "a part of a record": lambda: self.record.select("optimizer"), **saves, **loads,
        }  # fmt: skip


@pytest.fixture(scope="module")
def works(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Callable[[], object]]]:
    return [Work(count, tmp_path_factory.mktemp("growth")).runs() for count in (LAYERS, 4 * LAYERS)]


NAMES = (
    "build", "call", "step", "summary", "summary of a training", "repr", "freeze", "valid", "trace",
    "optimizer's record", "a part of a record", *(f"{do} {suffix}" for do in ("save", "load") for suffix in SUFFIXES),
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_calls_grow_as_the_layers(works: list[dict[str, Callable[[], object]]], name: str) -> None:
    few, many = (Counter().of(runs[name]) for runs in works)
    assert many <= 4.2 * few, f"{name}: {few} calls for {LAYERS} layers, {many} for {4 * LAYERS}"


class Counts(Callback):
    """Notes the calls of each epoch, and keeps a value of it."""

    def __init__(self) -> None:
        self.counter = Counter()
        self.calls: list[int] = []
        self.kept: Growing[int] = Growing()

    def state(self) -> dict[str, Any]:
        return {"kept": self.kept}

    def on_epoch_end(self, learner: Any) -> None:
        sys.setprofile(None)
        self.calls.append(self.counter.calls)
        self.kept.append(len(self.calls))
        self.counter.calls = 0
        sys.setprofile(self.counter._count)


@pytest.mark.parametrize("keep", [pytest.param(3, marks=pytest.mark.full), None])
def test_the_last_epochs_take_as_many_calls_as_the_first(tmp_path: Path, keep: int | None) -> None:
    """With what they leave: a line in each log, a report in the history, a checkpoint."""
    counts = Counts()
    learner: Any = Learner(nn.Linear(2, 1), optim.SgdConfig(), 0.1, nn.mse_loss, compile=False)
    data = Loader((np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)), 4, shuffle=True)
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=keep, best="validation/loss", background=False)
    callbacks = [counts, JsonlLogger(tmp_path / "log.jsonl"), CsvLogger(tmp_path / "log.csv"), checkpoints]
    try:
        learner.fit(data, epochs=100, validation=data, callbacks=callbacks, progress=False)
    finally:
        sys.setprofile(None)
    early, late = counts.calls[50:70], counts.calls[80:100]
    assert statistics.median(late) <= 1.01 * statistics.median(early)
    assert sum(late) <= 1.25 * sum(early)  # some of them write a whole list
