"""Tapes that go from one backend to another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import BackendError

X, W = np.array([1.0, 2.0, 0.5]), np.array([0.5, 0.25, -1.0])


def leaf(values: Any, engine: Any) -> Any:
    return px.tensor(values, device=Autodiff(engine)).require_grad()


ENGINES = [NumPy(), NumPy(float="f64"), Jax(), Torch(), Torch(float="f64")]


@pytest.mark.parametrize("there", ENGINES, ids=repr)
@pytest.mark.parametrize("here", ENGINES, ids=repr)
def test_gradients_flow_back_to_where_they_belong(here: Any, there: Any) -> None:
    x, w = leaf(X, here), leaf(W, there)
    y = ((x * x).to_device(Autodiff(there)) * w).exp()
    z = (y.to_device(Autodiff(here)) + x).sum()
    grads = z.backward()
    dx, dw = x.grad(grads), w.grad(grads)
    assert dx.backend is here and dw.backend is there
    np.testing.assert_allclose(dx.numpy(), np.exp(X * X * W) * 2.0 * X * W + 1.0, rtol=2e-6)
    np.testing.assert_allclose(dw.numpy(), np.exp(X * X * W) * X * X, rtol=2e-6)


def test_second_derivatives_between_backends() -> None:
    a = leaf(2.0, NumPy(float="f64"))
    b = px.Tensor.from_inner(a).require_grad()
    y = (b**3).to_device(Autodiff(Autodiff(Torch(float="f64")))) ** 2  # a^6
    first = b.grad(y.backward())
    assert first is not None and first.item() == 6.0 * 2.0**5
    second = a.grad(first.backward())
    assert second is not None and second.item() == 30.0 * 2.0**4


def test_without_a_tape_there_the_history_ends() -> None:
    x = leaf(X, NumPy())
    moved = (x * 2.0).to_device(Torch())
    assert moved.backend is Torch() and not moved.is_require_grad()
    back = moved.to_device(Autodiff(NumPy()))
    assert not back.is_require_grad()
    one = px.Tensor.from_inner(x).require_grad()
    assert (one * 2.0).to_device(Autodiff(Torch())).is_require_grad()  # by the tape below, which goes on
    assert not px.Tensor.from_inner(px.ones((2,), device=Autodiff(NumPy()))).to_device(Torch()).is_require_grad()


def test_from_one_strategy_to_another() -> None:
    x = leaf(X, NumPy(float="f64"))
    y = x.exp().to_device(Autodiff(NumPy(float="f64"), recompute=True)).sin().sum()
    gradient = x.grad(y.backward())
    assert gradient is not None
    np.testing.assert_allclose(gradient.numpy(), np.cos(np.exp(X)) * np.exp(X), rtol=1e-14)


def test_a_tensor_below_is_a_constant_above() -> None:
    x, w = leaf(X, NumPy()), px.tensor(W)
    mask = px.tensor([True, False, True])
    places = px.tensor([2, 0])
    for y in (x * w, w * x, w + x, x.maximum(w), w.minimum(x), px.where(mask, x, w), px.where(mask, w, x),
              px.concat([w, x]), px.stack([x, w]), w.reshape(1, 3) @ x.reshape(3, 1), x.take(places)):  # fmt: skip
        assert y.backend is Autodiff(NumPy())
        assert x.grad(y.sum().backward()) is not None
    assert (w > x).backend is (x == w).backend is Autodiff(NumPy())
    found = px.grad(lambda at: (at * w).sum())(px.tensor(X))
    assert found.backend is NumPy() and found.tolist() == W.tolist()
    for bad in (lambda: x * px.tensor(W, device=Torch()), lambda: x * px.tensor(W, device=NumPy(float="f64"))):
        with pytest.raises(BackendError, match=r"different backends, Autodiff\(NumPy\(\)\) and "):
            bad()
