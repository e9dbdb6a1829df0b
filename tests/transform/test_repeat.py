"""Calls of a compiled function that are like the one before, which are read in a shorter way: it must not show."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Backend, Jax, Torch
from phlox.errors import CompileError, DonatedError

BACKENDS = (Jax(), Torch(), Jax(float="f64"))


class Net(px.Module):
    def __init__(self, device: Any, width: int = 3) -> None:
        self.layer = nn.Linear(2, width, device=device)
        self.dropout = nn.Dropout(0.5)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.dropout(self.layer(x)).square().mean()


def step(model: Any, optimizer: Any, lr: float, x: px.Tensor) -> Any:
    loss = model(x)
    grads = optim.GradientsParams.from_grads(loss.backward(), model)
    return optimizer.step(lr, model, grads), loss


def batch(backend: Backend, n: int = 4) -> px.Tensor:
    return px.tensor(np.linspace(-1, 1, 2 * n).reshape(n, 2), device=Autodiff(backend))


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_numbers_shapes_and_settings_may_change_between_calls(backend: Backend) -> None:
    rates = [0.1, 0.1, 0.1, 0.0, -0.0 + 0.0, 0.2, 0.2, 0.1]
    batches = [4, 4, 4, 4, 6, 6, 4, 4]

    def trained(run: Any) -> tuple[list[float], Any]:
        px.random.seed(0)
        model, optimizer = Net(Autodiff(backend).device()).init(0), optim.AdamWConfig().init()
        losses: list[float] = []
        for turn, (rate, n) in enumerate(zip(rates, batches, strict=True)):
            if turn == 5:
                optimizer.grad_clipping = optim.GradientClipping.norm(0.01)
            model, loss = run(model, optimizer, rate, batch(backend, n))
            losses.append(loss.item())
        return losses, model

    compiled = px.compile(step, donate=("model", "optimizer"))
    got, mine = trained(compiled)
    wanted, other = trained(step)
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    np.testing.assert_allclose(mine.layer.weight.val().numpy(), other.layer.weight.val().numpy(), rtol=1e-4, atol=1e-6)
    assert compiled.programs == 2  # without clipping and with it
    assert (
        compiled.recordings <= 6
    )  # to find states; for two programs, at two sizes, and for numbers held by the engine


@pytest.mark.parametrize("backend", BACKENDS[:2], ids=repr)
def test_signs_of_zero_and_numbers_that_are_none_reach_the_function(backend: Backend) -> None:
    divided = px.compile(lambda x, number: x / number)
    x = px.ones((1,), device=backend)
    for number in (2.0, 2.0, 2.0, 0.0, -0.0, 0.0, -0.0, float("nan"), float("nan"), 2.0, 2.0):
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(divided(x, number).numpy(), np.float32(1.0) / np.float32(number))


def test_held_numbers_are_not_recorded_anew() -> None:
    scaled = px.compile(lambda x, number: x * number)
    x = px.ones((2,), device=Jax())
    for number in (2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 4.0):
        assert scaled(x, number).tolist() == [number] * 2
    assert scaled.recordings == 1


def test_a_number_may_be_donated() -> None:
    scaled = px.compile(lambda x, number: (x * number, x.sum() * number), donate=("number",))
    for _ in range(4):
        assert scaled(px.ones((2,), device=Jax()), 3.0)[0].tolist() == [3.0, 3.0]


def test_other_arguments_are_read_anew() -> None:
    device = Jax().device()
    run = px.compile(lambda model, x, flag: model.layer(x) if flag else x)
    first, second = Net(device).init(0), Net(device, 5).init(1)
    x = px.ones((1, 2), device=device)
    for model, flag, width in (
        (first, True, 3),
        (first, True, 3),
        (second, True, 5),
        (first, False, 2),
        (second, True, 5),
    ):
        assert run(model, x, flag).shape == (1, width)
    other = px.ones((1, 2), device=Jax(float="f64"))
    assert run(Net(other.device).init(0), other, True).backend is Jax(float="f64")
    with pytest.raises(CompileError, match="history"):
        run(first, px.ones((1, 2), device=Autodiff(Jax())).require_grad(), False)


def test_what_was_donated_is_still_refused() -> None:
    device = Autodiff(Jax()).device()
    run = px.compile(step, donate=("model",))
    model, optimizer, x = Net(device).init(0), optim.SgdConfig().init(), batch(Jax())
    used = model
    for _ in range(3):
        used, (model, _) = model, run(model, optimizer, 0.1, x)
    with pytest.raises(DonatedError, match="model was donated"):
        run(used, optimizer, 0.1, x)
    run(model, optimizer, 0.1, x)


def test_nothing_is_kept_alive() -> None:
    device = Autodiff(Jax()).device()
    run = px.compile(step)
    model, optimizer, x = Net(device).init(0), optim.AdamWConfig().init(), batch(Jax())
    for _ in range(3):
        model, _ = run(model, optimizer, 0.1, x)
    states = [state["moment_1"].primitive for state in optimizer.states.values()]
    gone = [weakref.ref(one) for one in (model, optimizer, *states)]
    del model, optimizer, states
    gc.collect()
    assert [ref() for ref in gone] == [None] * len(gone)
