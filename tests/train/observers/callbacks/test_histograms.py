"""Histograms of parameters and gradients: against PyTorch's own gradients, and without a trace in the training.

Serves: phlox/train/step/gradients.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn, optim
from phlox.data import Loader
from phlox.errors import ModuleError, RunError
from phlox.train import Histogram, Histograms, Learner, Logger

X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
Y = X[:, :2] * 2.0
DATA = Loader((X, Y), 8, shuffle=True)


class Rows(Logger):
    shows = (Histogram,)

    def begin(self, learner: Any) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, row: dict[str, Any]) -> None:
        self.rows.append({name: value for name, value in row.items() if isinstance(value, Histogram)})


def learner(engine: str, **options: Any) -> Learner[Any]:
    px.random.seed(3)
    layers = [nn.Linear(4, 8), nn.BatchNorm(8), nn.Relu(), nn.Dropout(0.3), nn.Linear(8, 2)]
    return Learner(
        nn.Sequential(layers).init(seed=1).to_device(engine), optim.AdamConfig(), 0.01, nn.mse_loss, **options
    )


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("engine", "options"),
    [
        ("numpy", {}), ("jax", {}), ("torch", {}), ("numpy", {"accumulate": 3, "loss_scaling": True, "ema": 0.9}),
        ("jax", {"steps_per_call": 2}),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*batch norm takes:phlox.errors.RunWarning")
def test_they_leave_no_trace_in_the_training(engine: str, options: dict[str, Any]) -> None:
    one, other, rows = learner(engine, **options), learner(engine, **options), Rows()
    one.fit(DATA, epochs=3, progress=False)
    other.fit(DATA, epochs=3, progress=False, callbacks=[Histograms(gradients=True, bins=5), rows])
    for (path, param), (_, twin) in zip(one.model.named_params(), other.model.named_params(), strict=True):
        np.testing.assert_array_equal(param.val().numpy(), twin.val().numpy(), err_msg=path)
    assert other.history[-1].train == one.history[-1].train
    paths = dict(other.model.named_params())
    trained = [path for path, param in paths.items() if param.trained]
    assert len(rows.rows) == 3 and rows.rows[2].keys() == {
        *(f"parameters/{path}" for path in paths), *(f"gradients/{path}" for path in trained)
    }  # fmt: skip
    for path, param in paths.items():
        counts, _ = np.histogram(param.val().numpy(), 5)
        assert rows.rows[2][f"parameters/{path}"].counts.tolist() == counts.tolist(), path


@pytest.mark.parametrize("engine", ["numpy", "jax", "torch"])
def test_gradients_are_those_of_the_last_batch(engine: str) -> None:
    model, rows = nn.Linear(4, 2).init(seed=0).to_device(engine), Rows()
    one = Learner(model, optim.SgdConfig(), 0.1, nn.mse_loss)
    one.fit(DATA, epochs=1, progress=False, callbacks=[Histograms(gradients=True), rows])
    weight = torch.tensor(one.model.weight.val().numpy().astype(np.float64), requires_grad=True)
    assert one.model.bias is not None and one.model.weight is not None
    bias = torch.tensor(one.model.bias.val().numpy().astype(np.float64))
    x, y = (torch.tensor(part.astype(np.float64)) for part in list(DATA.epoch(0))[-1])
    ((x @ weight + bias - y) ** 2).mean().backward()
    assert weight.grad is not None
    np.testing.assert_allclose(one.gradients()["weight"], weight.grad.numpy(), rtol=1e-4, atol=1e-6)
    found = rows.rows[0]["gradients/weight"]
    assert (found.min, found.max) == pytest.approx((weight.grad.min().item(), weight.grad.max().item()), rel=1e-4)


def test_some_of_them_after_some_epochs() -> None:
    rows = Rows()
    learner("numpy").fit(DATA, epochs=5, progress=False, callbacks=[Histograms(2, params="layers.0", bins=3), rows])
    expected = {"parameters/layers.0.weight", "parameters/layers.0.bias"}
    assert [set(row) for row in rows.rows] == [set(), expected, set(), expected, set()]
    learner("numpy").fit(DATA, steps=7, progress=False, callbacks=[Histograms(100, params=["**.bias"]), rows])
    assert len(rows.rows) == 2 and len(rows.rows[1]) == 2  # a training that ends within an epoch reports too


def test_of_several_models() -> None:
    models = {"teacher": nn.Linear(4, 2).init(seed=0), "student": nn.Linear(4, 2).init(seed=1)}

    def step(models: Any, batch: Any) -> Any:
        return nn.mse_loss(models["student"](batch[0]), models["teacher"](batch[0]).detach())

    rows = Rows()
    one = Learner(models, {"student": optim.SgdConfig()}, 0.1, step=step)
    one.fit(DATA, epochs=1, progress=False, callbacks=[Histograms(gradients=True, params="weight"), rows])
    assert rows.rows[0].keys() == {
        "parameters/teacher.weight", "parameters/student.weight", "gradients/student.weight"
    }  # fmt: skip


def test_what_cannot_be() -> None:
    options: Any
    for options in ({"every_epochs": 0}, {"bins": 1.5}):
        with pytest.raises(RunError, match="Histograms: (every_epochs|bins) must be a whole number of at least one"):
            Histograms(**options)
    one = learner("numpy")
    with pytest.raises(ModuleError, match=r"Histograms: .*layer\.0"):
        one.fit(DATA, epochs=1, progress=False, callbacks=[Histograms(params="layer.0")])
    with pytest.raises(RunError, match="gradients: there is no batch before the first step"):
        one.gradients()

    def update(model: Any, optimizer: Any, rate: Any, batch: Any) -> Any:
        raise AssertionError

    own = Learner(nn.Linear(4, 2).init(seed=0), optim.SgdConfig(), 0.1, update=update)
    with pytest.raises(RunError, match="Histograms: with update= the learner knows no gradients; report what you need"):
        own.fit(DATA, epochs=1, progress=False, callbacks=[Histograms(gradients=True)])
    assert one.step == own.step == 0
