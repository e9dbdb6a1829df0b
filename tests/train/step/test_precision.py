from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.data import Loader
from phlox.errors import RunError
from phlox.module import Module, Param
from phlox.train import Checkpoints, Learner

X = np.random.default_rng(0).normal(size=(24, 8)).astype(np.float32)
Y = (X[:, :1] + 1000.25).astype(np.float32)
"""Which bf16 has not."""


class Counting(Module):
    """A model with a frozen part, running statistics, and a state that is set when it is called."""

    def __init__(self, device: Any) -> None:
        self.body = nn.Linear(8, 6, device=device)
        self.norm = nn.BatchNorm(6, device=device)
        self.head = nn.Linear(6, 1, device=device)
        self.calls = Param(px.zeros((), device=device), trained=False)

    def __call__(self, x: Any) -> Any:
        if self.training:
            self.calls.set(self.calls.val() + 1.0)
        SEEN.add(("x", x.backend.float_element))
        y = self.body(x)
        SEEN.add(("y", y.backend.float_element))
        return self.head(self.norm(y))


SEEN: set[tuple[str, str]] = set()


def loss(output: Any, target: Any) -> Any:
    SEEN.add(("output", output.backend.float_element))
    SEEN.add(("target", target.backend.float_element))
    return nn.mse_loss(output, target)


def step(model: Any, batch: Any) -> Any:
    x, y = batch
    SEEN.add(("batch", y.backend.float_element))
    return nn.mse_loss(model(x), y)


def carrying(model: Any, batch: Any, carry: Any) -> Any:
    SEEN.add(("carry", carry.backend.float_element))
    return nn.mse_loss(model(batch[0]) + carry, batch[1]), carry + 0.5


OF_LOSS = {("x", "bf16"), ("y", "bf16"), ("output", "f32"), ("target", "f32")}
OF_STEP = {("x", "bf16"), ("y", "bf16"), ("batch", "bf16")}
ROWS: dict[str, tuple[Any, dict[str, Any], set[tuple[str, str]]]] = {
    "numpy": (NumPy, {"loss": loss}, OF_LOSS),
    "jax": (Jax, {"loss": loss, "ema": 0.5}, OF_LOSS),
    "torch": (Torch, {"loss": loss, "accumulate": 2}, OF_LOSS),
    "torch, compiled": (Torch, {"loss": loss, "compile": True}, OF_LOSS),
    "step": (Jax, {"step": step, "accumulate": 2}, OF_STEP),
    "several steps a call": (Jax, {"step": step, "steps_per_call": 3}, OF_STEP),
    "carry": (Jax, {"step": carrying, "carry": np.float32(0.25)}, {("x", "bf16"), ("y", "bf16"), ("carry", "bf16")}),
}


@pytest.mark.every(3)
@pytest.mark.filterwarnings("ignore:.*batch norm takes:phlox.errors.RunWarning")
@pytest.mark.parametrize("row", ROWS)
def test_only_what_is_computed_in_a_step_is_rounded(row: str, tmp_path: Path) -> None:
    engine, options, seen = ROWS[row]
    device = Autodiff(engine()).device()
    model = Counting(device).init(0).freeze("body.**")
    frozen = {path: param.val().numpy() for path, param in model.body.named_params()}
    SEEN.clear()
    learner = Learner(model, optim.AdamWConfig(), 1e-3, precision="bf16", **options)
    data = Loader((X, Y), 4)
    learner.fit(data, epochs=1, progress=False, callbacks=[Checkpoints(tmp_path / "states")])
    assert seen == SEEN
    assert learner.model.head.weight.backend is device.backend

    saved = px.record.load(learner.model.valid().save(tmp_path / "model"))
    state = px.record.load(max((tmp_path / "states").glob("step-*"))).select("models.model")
    for path, before in frozen.items():
        for found in (saved, state, learner.weights()):
            np.testing.assert_array_equal(found[f"body.{path}"].tensor.read(), before, err_msg=path)
        np.testing.assert_array_equal(dict(learner.average.body.named_params())[path].val().numpy(), before)
    # What is trained, and its average, have bits that bf16 has not.
    for trained in (learner.model, learner.average):
        weights = trained.head.weight.val().numpy()
        assert (weights.view(np.uint32) & 0xFFFF).any()
    assert learner.model.calls.val().item() == 6.0
    mean = learner.model.norm.running_mean
    assert mean is not None
    statistics = mean.val()
    assert statistics.backend is device.backend and statistics.abs().sum().item() > 0.0

    again = Learner(model, optim.AdamWConfig(), 1e-3, precision="bf16", **options)
    again.load_state(learner.snapshot())
    assert again.evaluate(data) == learner.evaluate(data)
    output = learner.predict(data)
    full = learner.average.to_device(NumPy())(px.tensor(X, device=NumPy())).numpy()
    if "carry" not in options:
        assert learner.evaluate(data)["loss"] == pytest.approx(np.square(full - Y).mean(), rel=2e-3)
    np.testing.assert_allclose(output, full, atol=0.05)
    assert not np.array_equal(output, full)


def test_targets_are_not_rounded() -> None:
    model = nn.Linear(8, 1).init(0)
    for param in model.params():
        param.set(param.val() * 0.0)
    learner = Learner(model, optim.SgdConfig(), 0.1, nn.mse_loss, precision="bf16")
    assert learner.evaluate(Loader((X, Y), 8))["loss"] == pytest.approx(np.square(Y).mean(), rel=1e-6)


def test_what_has_half_precision_already_stays_so_and_an_update_gets_models_of_the_precision() -> None:
    half = nn.Linear(8, 1, device=Autodiff(Jax(float="bf16")).device()).init(0)
    learner = Learner(half, optim.AdamWConfig(), 1e-4, nn.mse_loss, precision="bf16")
    learner.fit(Loader((X, Y), 8), epochs=1, progress=False)
    assert learner.model.weight.backend.float_element == "bf16"
    assert any("master" in type(state).__name__.lower() for state in learner.optimizer.states.values())

    def update(model: Any, optimizer: Any, rate: Any, batch: Any) -> Any:
        assert model.weight.backend.float_element == batch[0].backend.float_element == "bf16"
        value, grads = px.value_and_grad(lambda m: nn.mse_loss(m(batch[0]), batch[1]))(model)
        return optimizer.step(rate, model, grads), {"loss": value}

    learner = Learner(nn.Linear(8, 1).init(0), optim.AdamWConfig(), 1e-4, update=update, precision="bf16")
    learner.fit(Loader((X, Y), 8), epochs=1, progress=False)
    assert (
        Learner(nn.Linear(8, 1), optim.SgdConfig(), 0.1, nn.mse_loss, precision="f64").model.weight.val().numpy().dtype
        == np.float64
    )
    with pytest.raises(RunError, match="precision"):
        Learner(nn.Linear(8, 1), optim.SgdConfig(), 0.1, nn.mse_loss, precision="f8")  # pyright: ignore[reportArgumentType]
