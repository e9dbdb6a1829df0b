"""A small network, its training step, and comparison: shared by the tests of `compile`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import phlox as px
from phlox import nn, optim
from phlox.backend import Autodiff, Jax

TAPE = Autodiff(Jax()).device()
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4)


class Norm(px.Module):
    """Keeps a running mean."""

    def __init__(self, size: int, device: Any) -> None:
        self.mean = px.Param(px.zeros((size,), device=device), trained=False)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        if x.backend.differentiates:
            self.mean.set(self.mean.val() * 0.9 + x.mean(axis=0) * 0.1)
        return x - self.mean.val()


def network(seed: int = 0, device: Any = TAPE, rate: float = 0.5) -> nn.Sequential:
    layers = [
        nn.Linear(4, 8, device=device),
        nn.Gelu(),
        nn.Dropout(rate),
        Norm(8, device),
        nn.Linear(8, 1, device=device),
    ]
    return nn.Sequential(layers).init(seed)


def data(values: Any = X, device: Any = TAPE) -> px.Tensor:
    return px.tensor(values, device=device)


def step(model: Any, optimizer: optim.Optimizer, lr: float, x: px.Tensor) -> tuple[Any, px.Tensor]:
    loss = model(x).square().mean()
    return optimizer.step(lr, model, optim.GradientsParams.from_grads(loss.backward(), model)), loss


class Counting:
    """A function that counts how often it is called."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn, self._calls = fn, list[None]()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._calls.append(None)  # not a number: px.compile warns of those that a traced function changes
        return self.fn(*args, **kwargs)

    @property
    def calls(self) -> int:
        return len(self._calls)


def values(module: px.Module) -> list[Any]:
    return [param.val().numpy() for param in module.params()]


def close(left: px.Module, right: px.Module, rtol: float = 2e-4) -> None:
    for a, b in zip(values(left), values(right), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6)
