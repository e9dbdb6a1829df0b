"""Counts that parameters share: one number of a compiled program, whatever the optimizer is asked before or after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Jax
from phlox.optim.adaptor import SimpleOptimizer
from phlox.optim.sharing import shared, sharing

DEVICE = Autodiff(Jax()).device()
X = px.ones((3, 4), device=DEVICE)


def train(model: nn.Linear, optimizer: Any) -> nn.Linear:
    loss = (model(X) ** 2).sum()
    return optimizer.step(0.1, model, optim.GradientsParams.from_grads(loss.backward(), model))


def weights(model: nn.Linear) -> list[Any]:
    return [param.val().numpy() for param in model.params()]


class Counting(SimpleOptimizer):
    """Counts for itself, as any optimizer may."""

    def init(self, tensor: Any) -> Any:
        return {"time": 0}

    def step(self, lr: float, tensor: Any, grad: Any, state: Any) -> Any:
        time = state["time"] + 1
        return tensor - grad * (lr / time), {"time": time}


@pytest.mark.parametrize("make", [optim.AdamWConfig().init, lambda: optim.OptimizerAdaptor(Counting())])
def test_compiled_counts_are_those_of_eager(make: Any) -> None:
    run = px.compile(train)
    models, optimizers = [nn.Linear(4, 2, device=DEVICE).init(seed=0) for _ in range(2)], [make(), make()]
    for _ in range(3):
        models = [train(models[0], optimizers[0]), run(models[1], optimizers[1])]
    for eager, compiled in zip(*map(weights, models), strict=True):
        np.testing.assert_allclose(compiled, eager, rtol=1e-5)
    assert [state["time"] for state in optimizers[1].states.values()] == [3, 3]
    assert run.programs == 1
    # The states have been looked at, and so are taken apart anew.
    models = [train(models[0], optimizers[0]), run(models[1], optimizers[1])]
    for eager, compiled in zip(*map(weights, models), strict=True):
        np.testing.assert_allclose(compiled, eager, rtol=1e-5)
    assert [state["time"] for state in optimizers[1].states.values()] == [4, 4]
    assert run.programs == 1


def test_equal_counts_are_one_number() -> None:
    model, optimizer = nn.Linear(4, 2, device=DEVICE).init(seed=0), optim.AdamWConfig().init()
    run = px.compile(train)
    for _ in range(2):
        model = run(model, optimizer)
    assert optimizer.pack(Jax().device()).leaves[-1].shape == (1,)


def test_parameters_may_count_apart() -> None:
    """One that is trained later stays behind; and both are right."""
    models = [nn.Linear(4, 2, device=DEVICE).init(seed=0).freeze("bias") for _ in range(2)]
    optimizers, run = [optim.AdamWConfig().init() for _ in range(2)], px.compile(train)
    for turn in range(5):
        if turn == 2:
            models = [model.unfreeze() for model in models]
        models = [train(models[0], optimizers[0]), run(models[1], optimizers[1])]
    for eager, compiled in zip(*map(weights, models), strict=True):
        np.testing.assert_allclose(compiled, eager, rtol=1e-5)
    assert optimizers[1].pack(Jax().device()).leaves[-1].shape == (2,)
    assert sorted(state["time"] for state in optimizers[1].states.values()) == [3, 5]


def test_shared_computes_once_in_its_scope() -> None:
    calls: list[Any] = []

    def double(x: Any) -> Any:
        calls.append(x)
        return [2 * x]

    assert shared(double, 3) is not shared(double, 3)
    with sharing():
        one = object.__new__(type("Number", (), {"__rmul__": lambda self, other: self, "__eq__": None}))
        assert shared(double, 3) is shared(double, 3)
        assert shared(double, one) is shared(double, one)
        assert shared(double, 4) == [8]
        assert shared(double, True) == [2] and shared(double, 1) == [2]
    assert calls == [3, 3, 3, one, 4, True, 1] or len(calls) == 7
    with sharing():
        assert shared(double, 3) == [6]
    assert len(calls) == 8
