"""A decorator that differentiates in a way of its own stands wherever `Autodiff` does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, NumPy, Torch
from phlox.data import Loader
from phlox.train import Learner
from tests.autodiff.forward import Forward

RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 3)).astype(np.float32)
Y = np.sin(X.sum(1, keepdims=True))


def model() -> Any:
    return nn.Sequential([nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)]).init(seed=0, device=NumPy())


@pytest.mark.parametrize("engine", [NumPy(), Torch()], ids=repr)
def test_a_learner_trains_on_it(engine: Any) -> None:
    found: list[list[np.ndarray[Any, Any]]] = []
    for decorator in (Forward, Autodiff):
        given = model().to_device(decorator(engine))
        learner = Learner(given, optim.AdamConfig().init(), optim.ConstantLr(0.05), nn.mse_loss)
        history = learner.fit(Loader((X, Y), 8), epochs=3, progress=False)
        assert history[-1].train["loss"] < history[0].train["loss"]
        assert learner.model.params()[0].backend is decorator(engine)
        found.append([param.val().numpy() for param in learner.model.params()])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_module_is_taken_on_it() -> None:
    trained = model().train(tape=Forward)
    assert all(param.backend is Forward(NumPy()) for param in trained.params())
    x, y = px.tensor(X), px.tensor(Y)
    found = px.grad(lambda m: nn.mse_loss(m(x), y))(trained)
    wanted = px.grad(lambda m: nn.mse_loss(m(x), y))(model().train())
    assert all(g.backend is NumPy() for _, g in found.items())
    for mine, theirs in zip(found.items(), wanted.items(), strict=True):
        np.testing.assert_allclose(mine[1].numpy(), theirs[1].numpy(), rtol=1e-4, atol=1e-6)
    assert trained.valid().params()[0].backend is NumPy()
    assert trained.train().params()[0].backend is Forward(NumPy())  # which it stays on


def test_it_nests() -> None:
    x = px.tensor([0.3, -1.2], device=Forward(NumPy(float="f64")))
    found = px.grad(lambda x: (px.grad(lambda x: (x * x * x.tanh()).sum())(x) * x).sum())(x)
    wanted = px.grad(lambda x: (px.grad(lambda x: (x * x * x.tanh()).sum())(x) * x).sum())(x.inner())
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-12)


def test_what_it_lacks_is_named() -> None:
    x = px.tensor([1.0, 2.0], device=Forward(NumPy())).require_grad()
    with pytest.raises(px.errors.BackendError, match=r"Forward\(NumPy\(\)\) does not support `float_prod`"):
        x.prod()

    @px.custom_gradient
    def rounded(x: Any) -> Any:
        return x.round(), lambda g: g

    with pytest.raises(px.errors.UnsupportedError, match=r"takes no function with a gradient of its own"):
        rounded(x)
