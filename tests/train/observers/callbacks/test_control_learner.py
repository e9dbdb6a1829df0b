"""Callbacks and loggers in trainings of the real learner, on every engine, stopped and resumed.

Serves: src/phlox/train/observers/callbacks/control.py, src/phlox/train/observers/loggers/files.py
Serves: src/phlox/train/observers/callbacks/profiling.py
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import metrics, nn, optim, random
from phlox.data import Loader
from phlox.errors import RunError
from phlox.train.learner import Learner
from phlox.train.observers.callback import Callback
from phlox.train.observers.callbacks.control import EarlyStopping, ReduceOnPlateau, StopAfter, Unfreeze
from phlox.train.observers.callbacks.profiling import Profile, Throughput
from phlox.train.observers.checkpoints.checkpoints import Checkpoints
from phlox.train.observers.loggers.files import CsvLogger, JsonlLogger
from phlox.train.observers.loggers.trackers import TensorBoardLogger
from phlox.train.observers.views.view import Print

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
Y = X @ np.array([[1.0], [-2.0], [0.5], [0.0]], np.float32)
TIMES = ("seconds", "rows_per_second")
ENGINES = pytest.mark.parametrize("engine", ["numpy", "jax", "torch"])


def data(seed: int = 0) -> Loader:
    return Loader((X, Y), batch_size=8, shuffle=True, seed=seed)


def learner(engine: str = "numpy", lr: Any = 0.02, frozen: str | None = None, **options: Any) -> Learner[Any]:
    random.seed(0)
    model = nn.Sequential([nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)]).init(seed=1).to_device(engine)
    if frozen is not None:
        model = model.freeze(frozen)
    return Learner(model, optim.AdamConfig(), lr, nn.mse_loss, **options)


def _on(one: Learner[Any], x: Any) -> Any:
    return px.tensor(x, device=one.model.valid()[0].weight.device)


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        rows = [dict(row) for row in csv.DictReader(path.read_text().splitlines())]
    return [{name: value for name, value in row.items() if name not in TIMES} for row in rows]


class Saves(Callback):
    """The state at a step, as a checkpoint is made of it; and a crash at a later one."""

    last = True

    def __init__(self, path: Path, step: int, crash: int) -> None:
        self.path, self.step, self.crash = path, step, crash

    def on_step_end(self, learner: Any) -> None:
        if learner.step == self.step:
            learner.save(self.path)
        if learner.step == self.crash:
            raise KeyboardInterrupt


def test_a_training_that_was_stopped_early_is_over(tmp_path: Path) -> None:
    def fit(patience: int) -> tuple[Learner[Any], EarlyStopping]:
        one = learner(lr=0.5)
        stopping = EarlyStopping("validation/loss", patience=patience, restore_best=True)
        one.fit(
            data(), epochs=40, validation=data(), callbacks=[stopping], folder=tmp_path / "run", resume=True,
            progress=False,
        )  # fmt: skip
        return one, stopping

    first, stopping = fit(2)
    assert first.step < 40 * 8 and stopping.bad == 2
    again, _ = fit(2)
    assert (again.step, again.stopped) == (first.step, first.stopped)
    for (path, one), (_, other) in zip(first.model.named_params(), again.model.named_params(), strict=True):
        np.testing.assert_array_equal(one.val().numpy(), other.val().numpy(), err_msg=path)
    assert fit(4)[0].step > first.step


@ENGINES
def test_files_of_a_resumed_training_end_as_those_of_one_that_was_not(engine: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": 3, "validation": data(1), "validate_every_steps": 3, "progress": False}

    def logs(folder: Path) -> list[Callback]:
        files = folder / "a.jsonl", folder / "a.csv"
        return [JsonlLogger(files[0], every_steps=2), CsvLogger(files[1], every_steps=5), Print(every_steps=4)]

    learner(engine).fit(data(), callbacks=logs(tmp_path / "whole"), **options)
    saves = Saves(tmp_path / "checkpoint.safetensors", 10, 14)
    with pytest.raises(KeyboardInterrupt):
        learner(engine).fit(data(), callbacks=[*logs(tmp_path / "broken"), saves], **options)
    learner(engine).fit(data(), callbacks=logs(tmp_path / "broken"), resume=saves.path, **options)
    for name in ("a.jsonl", "a.csv"):
        whole = rows_of(tmp_path / "whole" / name)
        assert len(whole) > 8 and rows_of(tmp_path / "broken" / name) == whole


@ENGINES
@pytest.mark.parametrize("ema", [None, 0.5])
def test_early_stopping_gives_the_best_weights_back(engine: str, ema: float | None) -> None:
    lr = optim.SequenceLr([0.02, 3.0, 0.02], milestones=[32, 48])  # it diverges after four epochs
    one = learner(engine, lr=lr, ema=ema)
    stopping = EarlyStopping(patience=2, restore_best=True)
    one.fit(data(), epochs=20, validation=data(1), callbacks=[stopping], progress=False)
    assert one.stopped is not None and "for 2 validations" in one.stopped
    assert (stopping.best_epoch, one.epoch) == (4, 6)
    assert one.evaluate(data(1))["loss"] == pytest.approx(stopping.best, rel=1e-6)
    assert one.history[-1].validation["loss"] > 2 * (stopping.best or 0.0)
    assert nn.mse_loss(one.model.valid()(_on(one, X)), _on(one, Y)).item() == pytest.approx(stopping.best, rel=1e-5)
    # The optimizer knows its parameters still, and training goes on from there.
    known = {str(name) for name in one.optimizer.into_record().paths()}
    one.fit(data(), epochs=1, validation=data(1), progress=False)
    assert {str(name) for name in one.optimizer.into_record().paths()} == known
    assert one.history[-1].validation["loss"] < 2 * (stopping.best or 0.0)


@ENGINES
def test_the_best_weights_are_in_a_checkpoint(engine: str, tmp_path: Path) -> None:
    def training() -> tuple[Learner[Any], EarlyStopping]:
        return learner(engine, lr=optim.SequenceLr([0.02, 3.0], milestones=[32])), EarlyStopping(restore_best=True)

    options: dict[str, Any] = {"epochs": 8, "validation": data(1), "progress": False}
    (whole, one), (broken, two), (again, three) = training(), training(), training()
    whole.fit(data(), callbacks=[one], **options)
    saves = Saves(tmp_path / "checkpoint.safetensors", 45, 50)
    with pytest.raises(KeyboardInterrupt):
        broken.fit(data(), callbacks=[two, saves], **options)
    again.fit(data(), callbacks=[three], resume=saves.path, **options)
    assert three.best_epoch == one.best_epoch == 4
    assert again.evaluate(data(1))["loss"] == whole.evaluate(data(1))["loss"] == pytest.approx(one.best, rel=1e-6)


@ENGINES
@pytest.mark.parametrize("accumulate", [1, 2])
def test_unfrozen_parameters_are_trained_from_then_on(engine: str, accumulate: int, tmp_path: Path) -> None:
    class Weights(Callback):
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def on_epoch_end(self, learner: Any) -> None:
            self.seen.append(np.array(learner.model[0].weight.val().numpy()))

    def callbacks() -> tuple[Any, ...]:
        return Weights(), Unfreeze("layers.0.**", epoch=3, lr_scale=0.5)

    one, (weights, unfreeze) = learner(engine, frozen="layers.0.**", accumulate=accumulate), callbacks()
    one.fit(data(), epochs=4, callbacks=[unfreeze, weights], progress=False)
    changed = [not np.array_equal(a, b) for a, b in zip(weights.seen, weights.seen[1:], strict=False)]
    assert changed == [False, True, True] and one.lr_scale == 0.5

    two, (before, unfreeze) = learner(engine, frozen="layers.0.**", accumulate=accumulate), callbacks()
    saves = Saves(tmp_path / "checkpoint.safetensors", 26, 27)
    with pytest.raises(KeyboardInterrupt):
        two.fit(data(), epochs=4, callbacks=[unfreeze, before, saves], progress=False)
    again, (after, unfreeze) = learner(engine, frozen="layers.0.**", accumulate=accumulate), callbacks()
    again.fit(data(), epochs=4, callbacks=[unfreeze, after], resume=saves.path, progress=False)
    assert np.array_equal(after.seen[-1], weights.seen[-1]) and again.lr_scale == 0.5


@ENGINES
def test_the_rate_falls_on_a_plateau(engine: str) -> None:
    schedule = optim.ReduceOnPlateauLr(0.5, factor=0.1, patience=0, threshold=10.0)  # nothing is better by so much
    one = learner(engine, lr=schedule)
    one.fit(data(), epochs=3, validation=data(1), callbacks=[ReduceOnPlateau()], progress=False)
    assert one.lr == pytest.approx(0.05) and len(one.events) == 2
    assert one.events[0][1].endswith("the learning rate is 0.05, it was 0.5")


@ENGINES
def test_the_speed_a_profile_and_events(engine: str, tmp_path: Path) -> None:
    speed, profile = Throughput(every_steps=4, flops_per_row=100.0), Profile((10, 12), tmp_path / "profile")
    log = JsonlLogger(tmp_path / "a.jsonl")
    learner(engine).fit(
        data(), epochs=3, callbacks=[speed, profile, log, TensorBoardLogger(tmp_path / "t"), StopAfter(steps=20)],
        progress=False,
    )  # fmt: skip
    assert speed.values["flops_per_second"] == pytest.approx(100.0 * speed.values["rows_per_second"])
    assert speed.values["rows_per_second"] == pytest.approx(8.0 * speed.values["steps_per_second"])
    assert profile.path is not None and profile.path.is_file()
    rows = rows_of(log.path)
    assert [row["step"] for row in rows] == [8, 16, 20]
    assert rows[-1]["throughput/rows_per_second"] == pytest.approx(speed.values["rows_per_second"])


def test_a_dry_run_leaves_no_trace(tmp_path: Path) -> None:
    stopping, log = EarlyStopping(patience=1, restore_best=True), JsonlLogger(tmp_path / "a.jsonl")
    one = learner()
    one.dry_run(data(), validation=data(1), callbacks=[stopping, log])
    assert not log.path.exists()
    one.fit(data(), epochs=2, validation=data(1), callbacks=[stopping, log], progress=False)
    assert [row["step"] for row in rows_of(log.path)] == [8, 16]


# --- names of values


def stepped(model: Any, batch: Any) -> Any:
    output = model(batch[0])
    loss = nn.mse_loss(output, batch[1])
    return loss, (output, batch[1]), {"extra": loss * 2.0}


def updated(model: Any, optimizer: Any, rate: Any, batch: Any) -> Any:
    loss, grads = px.value_and_grad(lambda model: nn.mse_loss(model(batch[0]), batch[1]))(model)
    return optimizer.step(rate, model, grads), {"mine": loss}


BY_NAME: dict[str, Any] = {
    "early": lambda name: EarlyStopping(name, mode="min"),
    "plateau": ReduceOnPlateau,
    "after": lambda name: StopAfter(value=(name, 0.0, "min")),
    "best": lambda name: Checkpoints(best=name, mode="min"),
}
MISSING: list[tuple[dict[str, Any], str, int, str]] = [
    # What the learner is given, the name, the steps that are taken before the error, and what it says.
    ({}, "val_loss", 0, "no value 'val_loss'; .* did you mean 'validation/loss'?"),
    ({}, "mae", 0, "did you mean 'validation/mae'"),
    ({}, "train_mae", 0, "did you mean 'train/mae'"),
    ({}, "validation/maee", 0, "will be: train/loss, train/mae, train/f/1, validation/loss, validation/mae, "),
    ({}, "validation/nothing", 0, "no value 'validation/nothing'"),
    ({}, "lr", 0, "no value 'lr'"),
    ({}, "validation/f/2", 0, "did you mean 'validation/f/1'"),
    ({"step": stepped, "loss": None}, "loss", 0, "did you mean 'validation/loss'"),
    ({"step": stepped, "loss": None}, "validation/extr", 8, "no value .*; did you mean 'validation/extra'"),
    ({"step": stepped, "loss": None}, "train/extr", 8, "no value .*; did you mean 'train/extra'"),
    ({"update": updated, "loss": None, "metrics": None, "validate": stepped}, "train/loss", 8, "there are: train/mine"),
]  # fmt: skip


@pytest.mark.parametrize("kind", BY_NAME)
@pytest.mark.parametrize(("options", "name", "steps", "message"), MISSING, ids=[str(n) for n in range(len(MISSING))])
def test_a_name_that_no_value_has_is_found_as_early_as_it_is_known(
    kind: str, options: dict[str, Any], name: str, steps: int, message: str, tmp_path: Path
) -> None:
    given = {
        "metrics": {
            "mae": metrics.MeanAbsoluteError(), "f": metrics.Collection({"1": metrics.MeanSquaredError()}),
        }, **options,
    }  # fmt: skip
    one = Learner(
        nn.Linear(4, 1).init(seed=0), optim.AdamConfig(), optim.ReduceOnPlateauLr(0.1), given.pop("loss", nn.mse_loss),
        **given,
    )  # fmt: skip
    with pytest.raises(RunError, match=message) as caught:
        one.fit(
            data(), epochs=2, validation=data(), callbacks=[BY_NAME[kind](name)], folder=tmp_path / "run",
            progress=False,
        )  # fmt: skip
    owner = {
        "early": "EarlyStopping: monitor", "plateau": "ReduceOnPlateau: monitor", "after": "StopAfter: value",
        "best": "Checkpoints: best",
    }  # fmt: skip
    assert one.step == steps and str(caught.value).startswith(owner[kind])


@pytest.mark.parametrize(
    "name", ["validation/loss", "train/mae", "validation/f/1", "validation/extra", "train/extra", "validation/recall/1"]
)
def test_a_name_that_a_value_has_is_none(name: str, tmp_path: Path) -> None:
    model = nn.Linear(4, 2).init(seed=0)
    labels = (Y[:, 0] > 0).astype(np.int64)
    given = {
        "mae": lambda output, target: output.mean(), "recall": metrics.Recall(num_classes=2, average=None),
        "f": metrics.Collection({"1": metrics.F1(num_classes=2)}),
    }  # fmt: skip

    def step(model: Any, batch: Any) -> Any:
        output = model(batch[0])
        loss = nn.cross_entropy_loss(output, batch[1])
        return loss, (output, batch[1]), {"extra": loss}

    how: dict[str, Any] = {"step": step} if "extra" in name else {"loss": nn.cross_entropy_loss}
    schedule = optim.ReduceOnPlateauLr(0.1, mode="max" if "recall" in name else "min")
    one = Learner(model, optim.SgdConfig(), schedule, metrics=given, **how)
    loader = Loader((X, labels), 16)
    one.fit(
        loader, epochs=1, validation=loader, folder=tmp_path / "run", progress=False,
        callbacks=[make(name) for make in BY_NAME.values()],
    )  # fmt: skip
    assert one.epoch == 1
