"""Numbers that a step is given by name: the same on every engine, without a new program for a new number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phlox import nn, optim
from phlox.backend import Jax, NumPy, Torch
from phlox.data import Loader
from phlox.errors import RunError
from phlox.train import LambdaCallback, Learner

X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
ENGINES = {
    "numpy": (NumPy(), {}), "jax": (Jax(), {}), "torch": (Torch(), {"compile": False}),
    "torch compiled": (Torch(), {"compile": True}), "jax, two steps a call": (Jax(), {"steps_per_call": 2}),
}  # fmt: skip


def by_name(
    model: Any, batch: Any, beta: Any, step: Any, epoch: Any, progress: Any, inputs: Any, other: Any = 7.0
) -> Any:
    loss = model(batch[0]).square().mean() * beta
    told = {"beta": beta, "step": step, "epoch": epoch, "progress": progress, "other": other}
    told |= {f"all/{name}": value for name, value in inputs.items()}
    return loss, None, {name: loss.detach() * 0.0 + value for name, value in told.items()}


def learner(backend: Any, **options: Any) -> Learner[Any]:
    model = nn.Linear(4, 2).init(0).to_device(backend)
    return Learner(model, optim.SgdConfig(), 0.1, step=by_name, inputs={"beta": 0.0}, **options)


def anneal(learner: Any) -> None:
    learner.inputs["beta"] = learner.epoch + 1.0


@pytest.mark.parametrize("engine", ENGINES)
def test_they_are_those_of_each_step(engine: str) -> None:
    backend, options = ENGINES[engine]
    trained = learner(backend, **options)
    data = Loader((X,), 10)
    history = trained.fit(
        data, epochs=2, validation=data, progress=False, callbacks=[LambdaCallback(on_epoch_start=anneal)]
    )
    expected = [
        {"beta": 1.0, "step": 1.5, "epoch": 0.0, "progress": 1.5 / 8, "other": 7.0},
        {"beta": 2.0, "step": 5.5, "epoch": 1.0, "progress": 5.5 / 8, "other": 7.0},
    ]
    for values in expected:
        values |= {f"all/{name}": value for name, value in values.items() if name != "other"}
    for report, values in zip(history, expected, strict=True):
        assert {name: report.train[name] for name in values} == pytest.approx(values)
        assert report.validation["beta"] == values["beta"]
    assert history[-1].validation["step"] == 8.0
    for program in trained.stepper._programs.values():
        assert getattr(program, "traces", 1) <= 1


def test_a_function_of_the_learner_and_a_loss_with_a_name() -> None:
    seen: list[float] = []

    def loss(output: Any, target: Any, *, margin: float) -> Any:
        seen.append(margin)
        return nn.mse_loss(output, target) * margin

    trained = Learner(
        nn.Linear(4, 1).init(0), optim.SgdConfig(), 0.1, loss, inputs={"margin": lambda learner: learner.step / 2}
    )  # fmt: skip
    trained.fit(Loader((X, X[:, :1]), 10), epochs=1, progress=False)
    assert seen == [0.0, 0.5, 1.0, 1.5]


def test_they_are_saved_and_go_on() -> None:
    trained = learner(NumPy())
    trained.fit(Loader((X,), 10), epochs=1, progress=False, callbacks=[LambdaCallback(on_step_end=anneal)])
    other = learner(NumPy())
    other.load_state(trained.snapshot())
    assert other.inputs == trained.inputs == {"beta": 1.0}


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "nobody gives it": ({"inputs": {}}, {"epochs": 1}, "step= asks for 'beta', which nobody gives: give inputs="),
    "a text": ({"inputs": {"beta": "big"}}, {"epochs": 1}, "inputs: 'beta' must be a number, an array or a function"),
    "no end": (
        {"inputs": {"beta": 1}},
        {"time": 60.0},
        "asks for `progress`, and the end of the training is not known",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_inputs_end_in_one_sentence(name: str) -> None:
    options, limits, message = WRONG[name]
    trained = Learner(nn.Linear(4, 2).init(0), optim.SgdConfig(), 0.1, step=by_name, **options)
    with pytest.raises(RunError, match=message):
        trained.fit(Loader((X,), 10), **limits, progress=False)
