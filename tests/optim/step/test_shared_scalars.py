"""Counts that parameters share: one number of a compiled program, whatever the optimizer is asked before or after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Jax
from phlox.optim.state.flat import FlatState
from phlox.optim.step.adaptor import SimpleOptimizer
from phlox.optim.step.shared_scalars import shared, sharing

DEVICE = Autodiff(Jax()).device()
X = px.ones((3, 4), device=DEVICE)


def train(model: Any, optimizer: Any) -> Any:
    loss = (model(X) ** 2).sum()
    return optimizer.step(0.1, model, optim.GradientsParams.from_grads(loss.backward(), model))


def weights(model: Any) -> list[Any]:
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


class Deep(px.Module):
    """20 parameters."""

    def __init__(self) -> None:
        self.layers = [nn.Linear(4, 4, device=DEVICE) for _ in range(10)]

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


CONFIGS = {"nadam": optim.NAdamConfig(), "schedule-free": optim.ScheduleFreeAdamWConfig(warmup_steps=3)}


def reals(optimizer: Any) -> int:
    packed = optimizer.pack(Jax().device())
    return sum(backend is None for backend in packed.form.backends)


@pytest.mark.parametrize(("name", "numbers"), [("nadam", 1), ("schedule-free", 2)])
def test_equal_reals_are_one_number(name: str, numbers: int) -> None:
    model, optimizer, run = Deep().init(seed=0), CONFIGS[name].init(), px.compile(train)
    for _ in range(3):
        model = run(model, optimizer)
        assert reals(optimizer) == numbers
    assert run.programs <= 2  # the first call has no states yet


@pytest.mark.parametrize("name", CONFIGS)
def test_reals_are_those_of_eager_after_every_switch(name: str) -> None:
    models, optimizers = [Deep().init(seed=0) for _ in range(2)], [CONFIGS[name].init() for _ in range(2)]
    run = px.compile(train)
    for turn in range(6):
        step = run if turn in (1, 2, 4) else train
        models = [train(models[0], optimizers[0]), step(models[1], optimizers[1])]
        eager, mixed = (list(optimizer.states.values()) for optimizer in optimizers)
        for mine, its in zip(eager, mixed, strict=True):
            numbers = [key for key, value in mine.items() if isinstance(value, (int, float))]
            assert len(numbers) >= 2
            for key in numbers:
                assert its[key] == pytest.approx(mine[key], rel=1e-6), key
    for eager, mixed in zip(*map(weights, models), strict=True):
        np.testing.assert_allclose(mixed, eager, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
def test_reals_of_parameters_that_began_apart_stay_apart(name: str) -> None:
    models = [nn.Linear(4, 2, device=DEVICE).init(seed=0).freeze("bias") for _ in range(2)]
    optimizers, run = [CONFIGS[name].init() for _ in range(2)], px.compile(train)
    for turn in range(5):
        if turn == 2:
            models = [model.unfreeze() for model in models]
        models = [train(models[0], optimizers[0]), run(models[1], optimizers[1])]
    for eager, compiled in zip(*map(weights, models), strict=True):
        np.testing.assert_allclose(compiled, eager, rtol=1e-4, atol=1e-6)
    key = "product" if name == "nadam" else "weight_sum"
    apart = [state[key] for state in optimizers[1].states.values()]
    assert apart[0] != apart[1]
    assert apart == pytest.approx([state[key] for state in optimizers[0].states.values()], rel=1e-6)


@pytest.mark.full
def test_numbers_stay_one_where_steps_may_be_skipped() -> None:
    model, run = Deep().init(seed=0), px.compile(train)
    optimizer = optim.NAdamConfig().init(skip_nonfinite=True)
    for _ in range(3):
        model = run(model, optimizer)
        assert reals(optimizer) == 1
        assert optimizer.pack(Jax().device()).leaves[-1].shape == (1,)
    model.layers[0].weight.set(model.layers[0].weight.val() * float("inf"))
    run(model, optimizer)
    assert {state["time"] for state in optimizer.states.values()} == {3}
    assert reals(optimizer) == 1


def test_reals_come_back_from_a_record() -> None:
    model, optimizer, run = Deep().init(seed=0), optim.NAdamConfig().init(), px.compile(train)
    for _ in range(2):
        model = run(model, optimizer)
    other = optim.NAdamConfig().init()
    other.load_record(optimizer.into_record())
    (product,) = {state["product"] for state in optimizer.states.values()}
    assert 0.0 < product < 1.0
    model = run(model, other)
    assert reals(other) == 1
    assert {state["time"] for state in other.states.values()} == {3}
    assert {state["product"] < product for state in other.states.values()} == {True}


def test_zeros_of_either_sign_and_numbers_of_other_places_are_several() -> None:
    states: Any = {"a": {"x": 0.0, "y": 0.0}, "b": {"x": -0.0, "y": 0.0}, "c": {"x": 0.0, "y": 1.0}}
    packed = FlatState.of(states, Jax().device(), shared=True)
    assert packed.leaves == (0.0, 0.0, -0.0, 1.0)
    assert str(packed.unpack()) == str(states)
    assert len(FlatState.of(states, Jax().device()).leaves) == 6
