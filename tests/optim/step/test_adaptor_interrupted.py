# ruff: noqa: B023
"""A step that is interrupted has happened or has not: weights, states and counts together, wherever Ctrl-C comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optax
import pytest

import phlox as px
from phlox import optim
from phlox.backend import Autodiff, Jax, NumPy, Torch
from tests.interruption import interrupt, moments
from tests.optim.problem import RATES, Weights, arrays, drifts, initial, step

pytestmark = [
    pytest.mark.usefixtures("hears_ctrl_c"),
    # Where a generator is closed, Python prints an exception and goes on: then nothing is interrupted.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

DEVICES = {"numpy": NumPy(), "jax": Jax(), "torch": Torch()}
OPTIMIZERS: dict[str, Callable[[], optim.Optimizer]] = {
    "adamw": lambda: optim.AdamWConfig().init(),
    "momentum": lambda: optim.SgdConfig(momentum=0.9).init(),
    "schedule-free": lambda: optim.ScheduleFreeAdamWConfig().init(),
    "muon and others": lambda: optim.MuonConfig().init(
        groups=[optim.Group(optim.vectors, optimizer=optim.AdamWConfig())]
    ),
    "donating": lambda: optim.AdamWConfig().init(donate=True),
    "clipped, guarded": lambda: optim.AdamWConfig().init(
        grad_clipping=optim.GradientClipping.global_norm(1.0), skip_nonfinite=True
    ),
}
FEW = 25
"""Moments of each action that are tried."""


def some(action: Callable[[], object]) -> list[int]:
    """Moments all over an action, and each of the last, where what it has come to is kept."""
    count = moments(action)
    return sorted({*range(1, count + 1, max(1, count // FEW)), *range(max(1, count - FEW), count + 1)})


def large() -> list[Any]:
    """So many elements that a step writes over memory of the optimizer's own."""
    rng = np.random.default_rng(0)
    return [rng.normal(size=shape) for shape in ((300, 300), (4, 3), (3,))]


@pytest.mark.every(3)
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    "place, values",
    [("numpy", initial), ("numpy", large), ("torch", large), ("jax", initial)],
    ids=["numpy", "numpy large", "torch large", "jax"],
)
def test_a_step(place: str, values: Callable[[], list[Any]], name: str) -> None:
    device = DEVICES[place].device()
    number = len(values())

    def trained(steps: int) -> tuple[Weights, optim.Optimizer]:
        model, optimizer = Weights(values(), device), OPTIMIZERS[name]()
        for one in range(steps):
            model = step(model, optimizer, RATES[one], drifts(one)[:number])
        return model, optimizer

    states = [record(*trained(steps)) for steps in (2, 3)]
    model, optimizer = trained(2)
    for moment in some(lambda: step(model, optimizer, RATES[2], drifts(2)[:number])):
        model, optimizer = trained(2)
        try:
            model = interrupt(lambda m=model, o=optimizer: step(m, o, RATES[2], drifts(2)[:number]), moment)
        except KeyboardInterrupt:
            pass
        found = record(model, optimizer)
        assert any(same(found, state) for state in states), moment


def record(model: px.Module, optimizer: optim.Optimizer) -> list[Any]:
    """Weights, and what the optimizer knows of each."""
    states = [leaf for state in optimizer.states.values() for leaf in leaves(state)]
    return [*arrays(model), *states]


def leaves(state: Any) -> list[Any]:
    if isinstance(state, dict):
        return [leaf for key in sorted(state) for leaf in leaves(state[key])]
    if isinstance(state, (list, tuple)):
        return [leaf for part in state for leaf in leaves(part)]
    return [state.numpy() if isinstance(state, px.Tensor) else state]


def same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_step_of_optax() -> None:
    device = DEVICES["jax"].device()

    def trained(steps: int) -> tuple[Weights, optim.Optimizer]:
        model, optimizer = Weights(initial(), device), optim.OptaxAdaptor(optax.adam(1e-2))
        for one in range(steps):
            model = step(model, optimizer, 1.0, drifts(one))
        return model, optimizer

    states = [record(*trained(steps)) for steps in (2, 3)]
    model, optimizer = trained(2)
    tried = some(lambda: step(model, optimizer, 1.0, drifts(2)))
    for moment in tried[-FEW:]:  # before, nothing is kept
        model, optimizer = trained(2)
        try:
            model = interrupt(lambda m=model, o=optimizer: step(m, o, 1.0, drifts(2)), moment)
        except KeyboardInterrupt:
            pass
        assert any(same(record(model, optimizer), state) for state in states), moment


def test_minimising() -> None:
    device = Autodiff(NumPy()).device()
    config = optim.LbfgsConfig(max_iter=2)

    def trained(calls: int) -> tuple[Weights, Any]:
        model, optimizer = Weights(initial(), device), config.init()
        for _ in range(calls):
            model = minimised(model, optimizer)
        return model, optimizer

    def minimised(model: Weights, optimizer: Any) -> Weights:
        return optimizer.minimize(
            0.1, model, lambda m: sum((p.val().square().sum() for p in m.weights[1:]), m.weights[0].val().sum() ** 2)
        )

    states = [(record(*found), found[1].outcome) for found in (trained(1), trained(2))]
    model, optimizer = trained(1)
    for moment in some(lambda: minimised(model, optimizer)):
        model, optimizer = trained(1)
        try:
            model = interrupt(lambda m=model, o=optimizer: minimised(m, o), moment)
        except KeyboardInterrupt:
            pass
        found = record(model, optimizer)
        assert any(same(found, state) and optimizer.outcome == outcome for state, outcome in states), moment


def parts(device: Any) -> tuple[Weights, Any, Any, Any]:
    model = Weights(initial(), device)
    return (
        model,
        optim.Ema(model, decay=0.5),
        optim.GradientsAccumulator(model),
        optim.LossScaler(device=device, interval=1),
    )


AROUND: dict[str, Callable[[Any, Any, Any, Any, Any], object]] = {
    "average": lambda model, ema, sums, scaler, grads: ema.update(model.map(lambda path, p: p.map(lambda x: x * 2.0))),
    "sums": lambda model, ema, sums, scaler, grads: sums.add(grads, model),
    "loss scale": lambda model, ema, sums, scaler, grads: scaler.unscaled(grads),
}


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("place", DEVICES)
def test_what_goes_with_a_step(place: str, name: str) -> None:
    device = DEVICES[place].device()
    act = AROUND[name]

    def made() -> tuple[Any, ...]:
        found = parts(device)
        grads = optim.GradientsParams({param.id: param.val() * 0.5 for param in found[0].weights})
        return (*found, grads)

    def kept(found: tuple[Any, ...]) -> list[Any]:
        return [array for part in found[1:4] for array in arrays(part)]

    before, after = made(), made()
    act(*after)
    states = [kept(before), kept(after)]
    for moment in some(lambda: act(*made())):
        found = made()
        try:
            interrupt(lambda f=found: act(*f), moment)
        except KeyboardInterrupt:
            pass
        assert any(same(kept(found), state) for state in states), moment


def test_gradients_that_are_taken_come_or_stay() -> None:
    model, _, sums, _ = parts(DEVICES["numpy"].device())
    grads = optim.GradientsParams({param.id: param.val() for param in model.weights})
    sums.add(grads, model)
    expected = arrays(sums)
    for moment in some(lambda: sums.take(model)):
        model, _, sums, _ = parts(DEVICES["numpy"].device())
        sums.add(optim.GradientsParams({param.id: param.val() for param in model.weights}), model)
        try:
            interrupt(lambda s=sums, m=model: s.take(m), moment)
        except KeyboardInterrupt:
            assert same(arrays(sums), expected), moment


def test_a_plateau_that_hears_of_a_metric() -> None:
    def heard(metrics: list[float]) -> optim.ReduceOnPlateauLr:
        schedule = optim.ReduceOnPlateauLr(1.0, patience=0, cooldown=2)
        for metric in metrics:
            schedule.report(metric)
        return schedule

    states = [vars(heard([1.0])), vars(heard([1.0, 2.0]))]
    for moment in range(1, moments(lambda: heard([1.0]).report(2.0)) + 1):
        schedule = heard([1.0])
        try:
            interrupt(lambda s=schedule: s.report(2.0), moment)
        except KeyboardInterrupt:
            pass
        assert vars(schedule) in states, moment
