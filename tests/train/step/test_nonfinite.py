from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phlox import nn, optim
from phlox.backend import Jax, NumPy, Torch
from phlox.data import Loader
from phlox.errors import RunError
from phlox.module import Module
from phlox.train import Learner, NanGuard

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)
ENGINES = {"numpy": NumPy(), "jax": Jax(), "torch": Torch()}


class Root(Module):
    """The root of what a layer gives: NaN below zero."""

    def __init__(self) -> None:
        self.body = nn.Linear(3, 4)
        self.root = nn.Sequential([lambda x: x.sqrt(), nn.Linear(4, 1)])

    def __call__(self, x: Any) -> Any:
        return self.root(self.body(x).abs() + 1.0 - 1e4 * (x[:, :1] > 2.0).float())


def learner(engine: str, model: Module | None = None, **options: Any) -> Learner[Any]:
    model = (model or Root()).init(0, ENGINES[engine].device())
    return Learner(model, optim.SgdConfig(), 1e-3, nn.mse_loss, **options)


def data(row: int | None = None, value: float = 3.0) -> Loader:
    x = X.clip(-1.0, 1.0)
    if row is not None:
        x[row, 0] = value
    return Loader((x, Y), 8)


@pytest.mark.parametrize(("engine", "guards"), [("numpy", False), ("torch", False), ("jax", True), ("numpy", True)])
def test_the_step_the_rows_and_the_first_layer_are_named_and_the_step_is_not_taken(engine: str, guards: bool) -> None:
    trained, clean = learner(engine), learner(engine)
    message = (
        r"the loss of step 3 is nan: batch 2 of epoch 1, rows 16, 17, .*, 23; look at these rows, lower the learning "
        r"rate, or clip the gradients \(clip=\)\. First not finite: NaN \(4 of 32 elements\) in the output of "
        r"`sqrt` in `model.root.layers.0` \(<lambda>\)\n  at .*test_nonfinite.py:25, in <lambda>: .*\n  its operand: "
        r"\[8, 4\] from -9999 to "
    )
    with pytest.raises(RunError, match=message):
        trained.fit(data(row=21), epochs=1, callbacks=[NanGuard()] if guards else [], progress=False)
    assert trained.step == 2 and not trained.guards
    clean.fit(data(), steps=2, progress=False)
    for (path, one), (_, other) in zip(trained.model.named_params(), clean.model.named_params(), strict=True):
        np.testing.assert_array_equal(one.val().numpy(), other.val().numpy(), err_msg=path)
    trained.fit(data(), epochs=1, progress=False)


def test_a_compiled_loop_finds_it_some_steps_later() -> None:
    with pytest.raises(RunError, match=r"the loss of step 3 is nan: .* rows 16, .*\(noticed only after later steps"):
        learner("jax").fit(data(row=21), epochs=1, progress=False)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_data_that_are_not_finite_are_named(value: float) -> None:
    with pytest.raises(RunError, match=r"First not finite: the data\[0\] in row 5 of the batch"):
        learner("numpy").fit(data(row=21, value=value), epochs=1, progress=False)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_a_gradient_that_is_not_finite_is_found_before_it_is_taken(engine: str) -> None:
    def loss(output: Any, target: Any) -> Any:
        return (output * 0.0).abs().sqrt().mean()  # whose slope at zero is infinite

    model = nn.Linear(3, 1).init(0, ENGINES[engine].device())
    trained = Learner(model, optim.SgdConfig(), 1e-3, loss)
    before = trained.model.weight.val().numpy().copy()
    with pytest.raises(
        RunError,
        match=r"the loss of step 1 is 0\.0, and the gradient of `model\.(weight|bias)` is not.*\. First not finite: "
        r"infinity \(8 of 8 elements\) in the gradient through `sqrt` outside of all layers\n  at .*, in loss: ",
    ):
        trained.fit(data(), epochs=1, callbacks=[NanGuard()], progress=False)
    np.testing.assert_array_equal(trained.model.weight.val().numpy(), before)


def test_a_step_that_draws_is_looked_at_with_the_numbers_it_had() -> None:
    class Unlucky(Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(3, 1)
            self.dropout = nn.Dropout(0.5)

        def __call__(self, x: Any) -> Any:
            kept = self.dropout(x[:, :1] * 0.0 + 1.0)
            return self.layer(x) + (kept.mean() - 1.0).sqrt()  # NaN where fewer are kept than not

    with pytest.raises(RunError, match="First not finite: NaN .* in the output of `sqrt` in `model` "):
        learner("numpy", Unlucky()).fit(data(), epochs=9, progress=False)
