"""Averages of weights: eagerly and compiled, on every engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import NumPy
from phlox.errors import OptimizerError
from tests.optim.wrappers.small import COMPILED, ON, data, gradients, net, values


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
