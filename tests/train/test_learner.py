from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.data import Batches
from phlox.errors import RunError
from phlox.train import EpochReport, Learner, Logger, Mean, MetricsFile, Plan, StepReport, accuracy

X = np.random.default_rng(0).normal(size=(48, 3)).astype(np.float32)
Y = (X @ [[1.0], [-2.0], [0.5]]).astype(np.float32)


def learner(lr: float = 0.1, **options: Any) -> Learner[nn.Linear]:
    with px.random.stream(1):
        model = nn.Linear(3, 1)
    return Learner(model, optim.SgdConfig().init(), optim.ConstantLr(lr), nn.mse_loss, **options)


class Recorder(Logger):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def start(self, plan: Plan) -> None:
        self.events.append(plan)

    def step(self, report: StepReport) -> None:
        self.events.append((report.epoch, report.step))

    def epoch(self, report: EpochReport) -> None:
        self.events.append(report.epoch)

    def stop(self) -> None:
        self.events.append("stop")


def test_sgd_against_numpy() -> None:
    trained = learner()
    w = trained.model.weight.val().numpy().astype(np.float64)
    b = trained.model.bias.val().numpy().astype(np.float64)  # type: ignore[union-attr]
    history = trained.fit(Batches(X, Y, batch_size=16), epochs=3)
    for report in history:
        losses = []
        for start in range(0, 48, 16):
            x, y = X[start : start + 16].astype(np.float64), Y[start : start + 16]
            error = x @ w + b - y
            losses.append((error**2).mean())
            w, b = w - 0.1 * 2 * x.T @ error / 16, b - 0.1 * 2 * error.mean(axis=0)
        assert report.train["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    np.testing.assert_allclose(trained.model.weight.val().numpy(), w, rtol=1e-4)


def test_every_row_counts_alike_in_evaluation() -> None:
    trained = learner()
    w, b = trained.model.weight.val().numpy(), trained.model.bias.val().numpy()  # type: ignore[union-attr]
    expected = ((X @ w + b - Y) ** 2).mean()
    assert trained.evaluate(Batches(X, Y, batch_size=32))["loss"] == pytest.approx(expected, rel=1e-5)


def test_dropout_is_off_in_evaluation() -> None:
    model = nn.Sequential([nn.Dropout(0.9), nn.Linear(3, 1)])
    trained = Learner(model, optim.SgdConfig().init(), optim.ConstantLr(0.1), nn.mse_loss)
    batches = Batches(X, Y, batch_size=48)
    assert trained.evaluate(batches) == trained.evaluate(batches)


def test_loggers_are_told_in_order_and_fit_goes_on_where_it_was() -> None:
    seen, trained = Recorder(), learner()
    batches = Batches(X, Y, batch_size=24)
    trained.fit(batches, epochs=1, loggers=[seen])
    assert seen.events == [Plan(1, 2, 24, 1), (1, 1), (1, 2), 1, "stop"]
    seen.events.clear()
    history = trained.fit(batches, epochs=1, held_out=batches, loggers=[seen])
    assert seen.events == [Plan(2, 2, 24, 2), (2, 1), (2, 2), 2, "stop"]
    assert [report.steps for report in history] == [2, 4] and not history[0].held_out
    assert history[1].held_out["loss"] == pytest.approx(trained.evaluate(batches)["loss"])


def test_loggers_are_stopped_when_the_training_fails() -> None:
    class Interrupt(Logger):
        def step(self, report: StepReport) -> None:
            raise KeyboardInterrupt

    seen = Recorder()
    with pytest.raises(KeyboardInterrupt):
        learner().fit(Batches(X, Y, batch_size=24), epochs=1, loggers=[seen, Interrupt()])
    assert seen.events[-1] == "stop"


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_loss_that_is_no_longer_finite_ends_it() -> None:
    with pytest.raises(RunError, match=r"epoch \d+: the loss is (nan|inf); lower the learning rate"):
        learner(lr=1e9).fit(Batches(X, Y, batch_size=16), epochs=50)


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_compiled_equals_eager(name: str) -> None:
    losses = []
    for compiled in (False, True):
        with px.random.stream(2):
            model = nn.Sequential([nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1)]).to_device(name)
            trained = Learner(
                model, optim.AdamWConfig().init(), optim.CosineAnnealingLr(0.1, num_iters=6), nn.mse_loss,
                compile=compiled,
            )  # fmt: skip
            batches = Batches(X, Y, batch_size=16, shuffle=True)
            history = trained.fit(batches, epochs=2, held_out=batches)
        losses.append([(report.train["loss"], report.held_out["loss"]) for report in history])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_accuracy_and_mean() -> None:
    logits = px.tensor([[0.0, 2.0, 1.0], [3.0, 1.0, 2.0], [0.0, 0.0, 1.0], [5.0, 1.0, 1.0]])
    assert accuracy(logits, px.tensor([1, 0, 0, 0])).item() == 0.75
    mean = Mean()
    assert math.isnan(mean.value())
    mean.add(px.tensor(2.0), 3)
    mean.add(6.0)
    assert mean.value() == mean.value() == 3.0


def test_metrics_file_always_holds_whole_lines() -> None:
    texts: list[bytes] = []
    log = MetricsFile(texts.append)
    learner().fit(Batches(X, Y, batch_size=16), epochs=3, held_out=Batches(X, Y, batch_size=48), loggers=[log])
    for count, text in enumerate(texts, start=1):
        lines = text.decode().splitlines(keepends=True)
        assert len(lines) == count and all(line.endswith("\n") for line in lines)
        last = json.loads(lines[-1])
        assert last["epoch"] == count and last["step"] == 3 * count
        assert {"lr", "train_loss", "held_out_loss", "seconds", "rows_per_second"} <= set(last)
