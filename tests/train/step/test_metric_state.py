"""What a step reports by name: numbers and arrays of any engine, whose means are over all rows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn, optim
from phlox.data import Loader
from phlox.errors import RunError
from phlox.train import LambdaCallback, Learner

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
ENGINES: dict[str, tuple[str, dict[str, Any]]] = {
    "numpy": ("numpy", {}), "jax": ("jax", {}), "jax, two steps a call": ("jax", {"steps_per_call": 2}),
    "jax eager": ("jax", {"compile": False}), "torch": ("torch", {}),
}  # fmt: skip
EVERYWHERE = pytest.mark.parametrize("engine", ENGINES)


def learner(engine: str, scalars: Callable[[Any], dict[str, Any]], **options: Any) -> Learner[Any]:
    name, more = ENGINES[engine]

    def step(model: Any, batch: Any) -> Any:
        return model(batch[0]).square().mean(), None, scalars(batch[0])

    model = nn.Linear(3, 2).init(seed=0).to_device(name)
    return Learner(model, optim.SgdConfig(), 0.1, step=step, **(more | options))


def of_each_kind(x: px.Tensor) -> dict[str, Any]:
    return {
        "int": 3, "float": 0.5, "bool": True, "NumPy": np.float32(0.5), "whole": np.int64(3), "array": np.array(0.5),
        "truth": np.bool_(True), "tensor": x.sum(), "count": (x > 0.0).int().sum(), "any": (x > 0.0).any(),
        "own": x.sum().primitive, "list": [1.0, 2.0], "JAX": jnp.ones(2), "PyTorch": torch.ones(2),
        "columns": x.mean(axis=0), "matrix": x.T @ x,
    }  # fmt: skip


@EVERYWHERE
def test_numbers_and_arrays_of_any_engine(engine: str) -> None:
    data = Loader((X,), 16)  # of 16, 16 and 8 rows
    trained = learner(engine, of_each_kind)
    [report] = trained.fit(data, epochs=1, validation=data, progress=False)
    parts, rows = [X[:16], X[16:32], X[32:]], np.array([16.0, 16.0, 8.0])

    def mean(of: Callable[[Any], Any]) -> Any:
        return np.tensordot(rows / 40.0, np.array([of(part.astype(np.float64)) for part in parts]), 1)

    expected = {
        "int": 3, "float": 0.5, "bool": 1, "NumPy": 0.5, "whole": 3, "array": 0.5, "truth": 1, "any": 1,
        "tensor": mean(np.sum), "own": mean(np.sum), "count": mean(lambda x: (x > 0).sum()), "list": [1.0, 2.0],
        "JAX": [1.0, 1.0], "PyTorch": [1.0, 1.0], "columns": X.mean(axis=0), "matrix": mean(lambda x: x.T @ x),
    }  # fmt: skip
    for found in (report.train, report.validation):
        assert found.keys() == {"loss", *expected}
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
            assert isinstance(found[name], list if np.ndim(value) else float), name
    assert trained.value("validation/matrix/0/2") == report.validation["matrix"][0][2] and not trained.events


def test_a_metric_that_is_a_number_of_any_kind() -> None:
    functions: dict[str, Any] = {
        "bool": lambda output, target: True, "NumPy": lambda output, target: np.float32(0.5),
        "tensor": lambda output, target: (output == output).all(),
        "own": lambda output, target: target.mean().primitive,
    }  # fmt: skip
    for engine in ("numpy", "jax", "torch"):
        model = nn.Linear(3, 2).init(seed=0).to_device(engine)
        one = Learner(model, optim.SgdConfig(), 0.1, nn.mse_loss, metrics=functions)
        [report] = one.fit(Loader((X, X[:, :2]), 16), epochs=1, progress=False)
        expected = {"bool": 1.0, "NumPy": 0.5, "tensor": 1.0, "own": X[:, :2].mean()}
        assert {name: report.train[name] for name in expected} == pytest.approx(expected, rel=1e-5)


@EVERYWHERE
@pytest.mark.parametrize(("value", "message"), [
    (lambda x: "text", "the step reports 'v', a str; give a number, or an array of up to 100 numbers"),
    (lambda x: None, "the step reports 'v', a NoneType; give a number"),
    (lambda x: [1.0, "text"], "the step reports 'v', a list; give a number"),
    (lambda x: px.zeros((101,)), "'v', an array of shape (101,), which has more than 100 numbers; give the mean over"),
])  # fmt: skip
def test_what_cannot_be_reported_is_told_before_the_first_step(
    engine: str, value: Callable[[Any], Any], message: str
) -> None:
    one = learner(engine, lambda x: {"v": value(x)})
    before = one.model.weight.val().numpy().copy()
    with pytest.raises(RunError, match=re.escape(message)):
        one.fit(Loader((X,), 16), epochs=1, progress=False)
    assert one.step == 0 and np.array_equal(one.model.weight.val().numpy(), before)


@EVERYWHERE
def test_arrays_of_other_shapes_do_not_end_the_training(engine: str) -> None:
    data = Loader((X,), 16)
    one = learner(engine, lambda x: {"rows": x[:, 0], "mean": x.mean()})
    [first, second] = one.fit(data, epochs=2, validation=data, progress=False)
    np.testing.assert_allclose(first.train["rows"], (X[:16, 0] + X[16:32, 0]) / 2, rtol=1e-5, atol=1e-6)
    assert second.train["mean"] == pytest.approx(X.mean(), abs=1e-5) and first.validation["rows"] == first.train["rows"]
    [(step, text)] = one.events  # once, and not for each epoch
    assert step == 3 and text.startswith("the step reports 'rows' in shapes (16,) and (8,), which have no")
    assert text.endswith("Report the mean over rows, rows.mean(axis=0)")


def test_means_of_arrays_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    def fit(one: Learner[Any], **options: Any) -> Learner[Any]:
        one.fit(Loader((X,), 8, shuffle=True), epochs=1, progress=False, **options)
        return one

    def made() -> Learner[Any]:
        return learner("numpy", lambda x: {"columns": x.mean(axis=0), "mean": x.mean()})

    def save(one: Any) -> None:
        if one.step == 3:
            one.save(tmp_path / "state")

    whole = fit(made(), callbacks=[LambdaCallback(on_step_end=save)])
    again = fit(made(), resume=tmp_path / "state.safetensors")
    assert again.is_resumed and again.history[-1].train == whole.history[-1].train
