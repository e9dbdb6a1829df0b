"""Averages of weights, accumulated gradients, scaled losses: eagerly and compiled, on every engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import OptimizerError

ENGINES = ["numpy", "jax", "torch"]
HALF: dict[str, Any] = {"numpy": NumPy(float="f16"), "jax": Jax(float="f16"), "torch": Torch(float="f16")}
COMPILED = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
ON = pytest.mark.parametrize("engine", ENGINES)


def net(engine: Any) -> Any:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm(4), nn.Linear(4, 2)).init(seed=2, device=engine).train()


def data(engine: Any, step: int, rows: int = 6) -> Any:
    x = np.random.default_rng(step).normal(size=(rows, 3)).astype(np.float32)
    return px.Tensor.from_inner(px.tensor(x, device=engine))


def gradients(model: Any, x: Any) -> Any:
    return optim.GradientsParams.from_grads(model(x).square().mean().backward(), model)


def values(model: Any) -> dict[str, np.ndarray]:
    return {path: param.val().numpy() for path, param in model.named_params()}


@COMPILED
@ON
@pytest.mark.parametrize("warm_up", [False, True])
def test_the_average_is_that_of_the_formula(warm_up: bool, engine: str, compiled: bool) -> None:
    def step(model: Any, ema: Any, optimizer: Any, x: Any) -> Any:
        model = optimizer.step(0.1, model, gradients(model, x))
        ema.update(model)
        return model

    run: Callable[..., Any] = px.compile(step) if compiled else step
    model = net(engine)
    ema, optimizer = optim.Ema(model, decay=0.8, warm_up=warm_up), optim.SgdConfig().init()
    expected = {path: value.astype(np.float64) for path, value in values(model).items()}
    for n in range(1, 6):
        model = run(model, ema, optimizer, data(engine, n))
        decay = min(0.8, n / (n + 9)) if warm_up else 0.8
        for path, value in values(model).items():
            trained = "mean" not in path and "var" not in path
            expected[path] = decay * expected[path] + (1 - decay) * value if trained else value
    found = values(ema.average)
    assert found.keys() == expected.keys()
    for path in found:
        np.testing.assert_allclose(found[path], expected[path], rtol=1e-5, atol=1e-6, err_msg=path)
    assert not any(param.trained for param in ema.params())
    assert type(ema.average) is nn.Sequential
    assert ema.average(data(engine, 9).inner()).shape == (6, 2)


def test_an_average_is_saved_and_goes_on() -> None:
    model = net("numpy")
    ema = optim.Ema(model, decay=0.5, warm_up=True)
    ema.update(model.map(lambda _, param: param.map(lambda x: x * 3.0)))
    other = optim.Ema(net("jax"), decay=0.5, warm_up=True).load_record(ema.into_record())
    twice = model.map(lambda _, param: param.map(lambda x: x * -1.0))
    ema.update(twice)
    other.update(twice.to_device("jax"))
    for path, value in values(ema).items():
        np.testing.assert_allclose(values(other)[path], value, rtol=1e-6)
    assert ema.updates.val().item() == 2


def test_half_precision_averages_move_at_small_steps() -> None:
    layer = nn.Linear(1, 1, bias=False, initializer=nn.Ones(), device=NumPy(float="f16")).init()
    ema = optim.Ema(layer, decay=0.999)
    away = layer.map(lambda _, param: param.map(lambda x: x * 3.0))
    for _ in range(10):
        ema.update(away)
    assert ema.average.weight.val().item() > 1.01


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_an_average_of_no_decay(decay: float) -> None:
    with pytest.raises(OptimizerError, match=r"the decay lies in \[0, 1\)"):
        optim.Ema(net("numpy"), decay=decay)


def test_an_average_of_another_model() -> None:
    ema = optim.Ema(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    with pytest.raises(OptimizerError, match=r"Ema: .*`layers\.1\.weight` is another parameter"):
        ema.update(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 3)))
    with pytest.raises(OptimizerError, match="Ema: .*it has 2 parameters, not 4"):
        ema.update(nn.Sequential(nn.Linear(3, 4)))


@COMPILED
@ON
@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
def test_small_batches_make_the_step_of_a_large_one(mean: bool, engine: str, compiled: bool) -> None:
    """Twice three batches, and at last one: the sum of torch's gradients of all of them."""
    model = nn.Linear(3, 2).init(seed=2, device=engine).train()
    weight, bias = (torch.nn.Parameter(torch.tensor(value)) for value in values(model).values())

    def add(accumulator: Any, model: Any, x: Any) -> None:
        accumulator.add(gradients(model, x), model)

    def take(accumulator: Any, model: Any, optimizer: Any) -> Any:
        return optimizer.step(0.1, model, accumulator.take(model))

    run_add: Callable[..., Any] = px.compile(add) if compiled else add
    run_take: Callable[..., Any] = px.compile(take) if compiled else take
    accumulator = optim.GradientsAccumulator(model, mean=mean)
    optimizer = optim.AdamWConfig().init()
    theirs = torch.optim.AdamW([weight, bias], lr=0.1)
    seed = 0
    for size in (3, 3, 1):
        theirs.zero_grad()
        for _ in range(size):
            x = data(engine, seed)
            seed += 1
            run_add(accumulator, model, x)
            loss = (torch.tensor(x.numpy()) @ weight + bias).square().mean()
            (loss / size if mean else loss).backward()
        theirs.step()
        model = run_take(accumulator, model, optimizer)
        np.testing.assert_allclose(model.weight.val().numpy(), weight.detach().numpy(), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(model.bias.val().numpy(), bias.detach().numpy(), rtol=1e-4, atol=1e-6)
    assert accumulator.count.val().item() == 0


def test_an_accumulator_of_another_model() -> None:
    model, other = nn.Linear(3, 2).train(), nn.Linear(4, 2).train()
    accumulator = optim.GradientsAccumulator(model)
    with pytest.raises(OptimizerError, match="this Linear has not the parameters that it was made for"):
        accumulator.take(other)
    twin = nn.Linear(3, 2).train()
    with pytest.raises(OptimizerError, match="none of the 2 gradients is of a parameter of this Linear"):
        accumulator.add(gradients(twin, data("numpy", 0)), model)
    assert accumulator.count.val().item() == 0


@COMPILED
@ON
def test_scaling_finds_gradients_that_f16_would_lose(engine: str, compiled: bool) -> None:
    device = Autodiff(HALF[engine])
    model = nn.Linear(3, 1, bias=False, initializer=nn.Ones(), device=device).init()
    x = px.full((4, 3), 2.0**-14, device=device)

    def step(model: Any, scaler: Any, x: Any) -> Any:
        loss = (model(x) * 2.0**-12).mean()  # the gradient, 2**-26, is below what f16 has
        lost = optim.GradientsParams.from_grads(loss.backward(), model)
        loss = (model(x) * 2.0**-12).mean()
        kept = optim.GradientsParams.from_grads(scaler.scaled(loss).backward(), model)
        return lost.norm(), scaler.unscaled(kept).norm()

    run: Callable[..., Any] = px.compile(step) if compiled else step
    scaler = optim.LossScaler(device=HALF[engine])
    lost, kept = run(model, scaler, x)
    assert lost.item() == 0.0
    np.testing.assert_allclose(kept.item(), 3**0.5 * 2.0**-26, rtol=2e-3)
    assert (scaler.scale.val().item(), scaler.good_steps.val().item()) == (32768.0, 1)


@COMPILED
@ON
def test_the_scale_grows_and_shrinks(engine: str, compiled: bool) -> None:
    model = nn.Linear(3, 1).init(seed=0, device=engine).train()
    scaler = optim.LossScaler(8.0, interval=2, device=engine)

    def step(scaler: Any, model: Any, x: Any) -> Any:
        grads = optim.GradientsParams.from_grads(scaler.scaled(model(x).mean()).backward(), model)
        return scaler.unscaled(grads).isfinite()

    run: Callable[..., Any] = px.compile(step) if compiled else step
    found = []
    for scale in (1.0, 1.0, 1.0, np.inf, np.nan, 1.0, 1.0):
        with np.errstate(all="ignore"):  # NumPy warns, as it does of its own arrays
            finite = run(scaler, model, data(engine, 1) * scale)
        assert finite.item() == bool(np.isfinite(scale))
        found.append(scaler.scale.val().item())
    assert found == [8.0, 16.0, 16.0, 8.0, 4.0, 4.0, 8.0]


@pytest.mark.parametrize(
    "options", [{"initial": 0.0}, {"initial": np.inf}, {"interval": 0}, {"growth": 0.5}, {"backoff": 1.0}]
)
def test_scalers_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(OptimizerError, match="LossScaler: "):
        optim.LossScaler(**options)
