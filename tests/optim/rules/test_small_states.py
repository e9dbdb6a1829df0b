"""Optimizers with states in 8 bits: against their formulas in NumPy, and against the states of 32 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import optim
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.errors import ConfigError, OptimizerError
from phlox.optim.rules import small_states
from phlox.optim.rules.small_states import LEAST
from phlox.optim.state.blocks import Blocks
from phlox.record import FULL, SafetensorsRecorder
from tests.optim.state.test_blocks import nearest

LARGE, SMALL, STEPS, LR = (80, 70), (LEAST - 1,), 12, 0.01
RNG = np.random.default_rng(0)
VALUES = [RNG.normal(size=LARGE), RNG.normal(size=SMALL)]
DRIFTS = 0.3 * np.cos(np.arange(STEPS))


class Weights(px.Module):
    def __init__(self, engine: Backend) -> None:
        self.weights = [px.Param(px.tensor(value, device=engine.device(), kind=px.Float)) for value in VALUES]


def step(model: Weights, optimizer: optim.Optimizer, drift: float) -> Weights:
    grads = {param.id: param.val() * 0.4 + drift for param in model.weights}
    return optimizer.step(LR, model, optim.GradientsParams(grads))


def run(optimizer: optim.Optimizer, model: Weights, drifts: Any = DRIFTS, way: Callable[..., Any] = step) -> Weights:
    for drift in drifts:
        model = way(model, optimizer, float(drift))
    return model


def adam(x: Any, *, decoupled: bool, decay: float = 0.0, amsgrad: bool = False) -> Any:
    """The formula in float64; moments of large tensors are rounded after each step."""
    kept: Any = nearest if x.size >= LEAST else lambda x, _: x
    m, v, top = np.zeros((3, *x.shape))
    for t, drift in enumerate(DRIFTS, 1):
        g = x * 0.4 + drift
        x, g = (x * (1.0 - LR * decay), g) if decoupled else (x, g + decay * x)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        top = np.maximum(top, v)
        root = np.sqrt((top if amsgrad else v) / (1.0 - 0.999**t))
        x = x - LR * m / (1.0 - 0.9**t) / (root + 1e-8)
        m, v, top = kept(m, "dynamic8"), kept(v, "udynamic8"), kept(top, "udynamic8")
    return x


def lion(x: Any) -> Any:
    m, kept = np.zeros(x.shape), nearest if x.size >= LEAST else lambda x, _: x
    for drift in DRIFTS:
        g = x * 0.4 + drift
        x, m = x - LR * np.sign(0.9 * m + 0.1 * g), kept(0.99 * m + 0.01 * g, "dynamic8")
    return x


CASES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "adam": (optim.AdamConfig(state_bits=8), lambda x: adam(x, decoupled=False)),
    "adamw": (optim.AdamWConfig(state_bits=8, weight_decay=0.1), lambda x: adam(x, decoupled=True, decay=0.1)),
    "amsgrad": (optim.AdamConfig(state_bits=8, amsgrad=True, weight_decay=0.1),
                lambda x: adam(x, decoupled=False, decay=0.1, amsgrad=True)),
    "lion": (optim.LionConfig(state_bits=8), lion),
}  # fmt: skip


@pytest.mark.parametrize("engine", [NumPy(float="f64"), Torch(float="f64"), Jax()], ids=repr)
@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_the_formula(name: str, engine: Backend) -> None:
    config, formula = CASES[name]
    full = engine.float_element == "f64"
    program = px.compile(step)
    for way in (step, program) if engine.compiles else (step,):
        model = run(config.init(), Weights(engine), way=way)
        for param, value in zip(model.weights, VALUES, strict=True):
            errors = np.abs(param.val().numpy() - formula(value))
            # A number that is nearly between two levels may be rounded to the other one.
            assert np.quantile(errors, 0.999) < (1e-12 if full else 1e-5) and errors.max() < 0.1 * LR * STEPS
    assert program.programs == (1 if engine.compiles else 0)


def test_it_converges_as_with_32_bits_on_a_quarter_of_the_memory() -> None:
    x = np.random.default_rng(1).normal(size=(256, 64)).astype(np.float32)
    y = np.tanh(x @ np.random.default_rng(2).normal(size=(64, 4), scale=0.2).astype(np.float32))
    losses: dict[int, float] = {}
    sizes: dict[int, int] = {}
    for bits in (8, 32):
        px.random.seed(0)
        model = px.nn.Sequential(px.nn.Linear(64, 128), px.nn.Relu(), px.nn.Linear(128, 4)).init(0, "torch").train()
        optimizer = optim.AdamWConfig(state_bits=bits).init()
        loss = px.tensor(0.0)
        for _ in range(150):
            loss, grads = px.value_and_grad(lambda m: (m(px.tensor(x, device="torch")) - px.tensor(y, device="torch"))
                                            .square().mean())(model)  # fmt: skip
            model = optimizer.step(3e-3, model, grads)
        losses[bits] = loss.item()
        moments = [optimizer.states[model.layers[0].weight.id][name] for name in ("moment_1", "moment_2")]
        sizes[bits] = sum(m.codes.nbytes + m.scales.nbytes if isinstance(m, Blocks) else m.nbytes for m in moments)
    assert losses[8] < 1.3 * losses[32] < 0.01
    assert sizes == {8: 2 * 64 * 128 * (1 + 4 / 256), 32: 8 * 64 * 128}


@pytest.mark.parametrize("way", [step, px.compile(step)], ids=["eager", "compiled"])
@pytest.mark.parametrize("engine", [NumPy(), Jax()], ids=repr)
def test_a_run_resumes_from_files_bit_for_bit_and_with_other_bits(engine: Backend, way: Callable[..., Any]) -> None:
    recorder = SafetensorsRecorder(precision=FULL)
    small, large = optim.AdamWConfig(state_bits=8), optim.AdamWConfig()
    before = small.init()
    model = run(before, Weights(engine), DRIFTS[:5], way)
    record = recorder.from_bytes(recorder.to_bytes(before.into_record()))

    def resumed(config: optim.AdamWConfig, record: Any) -> tuple[optim.Optimizer, list[Any]]:
        after = config.init()
        after.load_record(record)
        assert after.report(model).ok
        return after, [param.val().numpy() for param in run(after, model, DRIFTS[5:8], way).weights]

    expected = [param.val().numpy() for param in run(before, model, DRIFTS[5:8], way).weights]
    np.testing.assert_array_equal(resumed(small, record)[1][0], expected[0])
    of_32, values = resumed(large, record)
    assert np.abs(values[0] - expected[0]).max() < 0.2 * LR and np.array_equal(values[1], expected[1])
    again, _ = resumed(small, recorder.from_bytes(recorder.to_bytes(of_32.into_record())))
    kinds = [type(optimizer.states[model.weights[0].id]["moment_2"]) for optimizer in (of_32, again)]
    assert kinds == [px.Tensor, Blocks]


def test_states_follow_the_model_to_other_engines_and_groups_and_skipped_steps_keep_them() -> None:
    groups = [optim.Group("weights.1", state_bits=32, beta_1=0.5)]
    optimizer = optim.LionConfig(state_bits=8).init(groups=groups, skip_nonfinite=True)
    model = run(optimizer, Weights(Torch()), DRIFTS[:3])
    model = run(optimizer, model.to_device("jax"), DRIFTS[3:5], px.compile(step))
    codes = optimizer.states[model.weights[0].id]["moment"].codes
    assert codes.backend == Jax()
    after = px.compile(step)(model, optimizer, float("nan"))
    np.testing.assert_array_equal(optimizer.states[model.weights[0].id]["moment"].codes.numpy(), codes.numpy())
    np.testing.assert_array_equal(after.weights[0].val().numpy(), model.weights[0].val().numpy())


@pytest.mark.parametrize("engine", [NumPy(), Jax(), Torch()], ids=repr)
def test_large_parameters_are_stepped_in_portions(engine: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, in_parts = optim.AdamWConfig(state_bits=8).init(), optim.AdamWConfig(state_bits=8).init()
    expected = run(whole, Weights(engine), DRIFTS[:3])
    monkeypatch.setattr(small_states, "PORTION", LEAST)
    model = run(in_parts, Weights(engine), DRIFTS[:3])
    np.testing.assert_array_equal(model.weights[0].val().numpy(), expected.weights[0].val().numpy())
    states = [next(iter(optimizer.states.values()))["moment_2"] for optimizer in (whole, in_parts)]
    np.testing.assert_array_equal(states[0].codes.numpy(), states[1].codes.numpy())


def test_zero_gradients_give_zero_steps() -> None:
    for engine in (NumPy(), Jax(), Torch()):
        model, optimizer = Weights(engine), optim.AdamConfig(state_bits=8).init()
        after = optimizer.step(LR, model, optim.GradientsParams({p.id: p.val() * 0.0 for p in model.weights}))
        np.testing.assert_array_equal(after.weights[0].val().numpy(), model.weights[0].val().numpy())


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"state_bits: expected 8 \| 32, got int 4"):
        optim.AdamWConfig(state_bits=4)  # pyright: ignore[reportArgumentType]
    optimizer, other = optim.AdamConfig(state_bits=8).init(), optim.AdamConfig(state_bits=8).init()
    run(optimizer, Weights(NumPy()), DRIFTS[:1])
    model = Weights(NumPy())
    states = dict(zip([param.id for param in model.weights], optimizer.states.values(), strict=True))
    first, second = states
    optimizer.states.clear()
    optimizer.states.update({first: states[second], second: states[first]})
    other.load_record(optimizer.into_record())
    with pytest.raises(OptimizerError, match=r"weights\.0: .*for a parameter of shape \(80, 70\): moment_1: codes: "
                       r"expected Int of shape \(22, 64\), found Int of shape \(16, 64\)"):  # fmt: skip
        run(other, model, DRIFTS[:1])
