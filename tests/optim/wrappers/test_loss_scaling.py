"""Scaled losses: eagerly and compiled, on every engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import OptimizerError
from tests.optim.wrappers.small import COMPILED, ON, data

HALF: dict[str, Any] = {"numpy": NumPy(float="f16"), "jax": Jax(float="f16"), "torch": Torch(float="f16")}


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


@ON
def test_a_scaler_of_ones_own_is_placed_beside_the_losses(engine: str) -> None:
    half: Any = np.float32(0.5)
    mine = optim.LossScaler(np.float64(1024.0), growth=np.float64(2.0), backoff=half, interval=1)
    device = Autodiff(HALF[engine])
    placed = mine.to_device(device)
    model = nn.Linear(3, 1, device=device).init(seed=0)

    def step(model: Any, scaler: Any, x: Any) -> Any:
        grads = optim.GradientsParams.from_grads(scaler.scaled(model(x).mean()).backward(), model)
        return scaler.unscaled(grads).isfinite()

    assert px.compile(step)(model, placed, px.ones((4, 3), device=device)).item()
    assert placed.scale.val().item() == 2048.0 and mine.scale.val().item() == 1024.0
    like = optim.LossScaler(device=device)
    assert [param.val().device for param in placed.params()] == [param.val().device for param in like.params()]
    assert [param.val().numpy().dtype for param in placed.params()] == [np.float32, np.int32]


@pytest.mark.parametrize(
    "options", [{"initial": 0.0}, {"initial": np.inf}, {"interval": 0}, {"growth": 0.5}, {"backoff": 1.0}]
)
def test_scalers_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(OptimizerError, match="LossScaler: "):
        optim.LossScaler(**options)
