"""What the tests of wrappers share: a small model, its data, gradients and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn, optim

COMPILED = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
ON = pytest.mark.parametrize("engine", ["numpy", "jax", "torch"])


def net(engine: Any) -> Any:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm(4), nn.Linear(4, 2)).init(seed=2, device=engine).train()


def data(engine: Any, step: int, rows: int = 6) -> Any:
    x = np.random.default_rng(step).normal(size=(rows, 3)).astype(np.float32)
    return px.Tensor.from_inner(px.tensor(x, device=engine))


def gradients(model: Any, x: Any) -> Any:
    return optim.GradientsParams.from_grads(model(x).square().mean().backward(), model)


def values(model: Any) -> dict[str, np.ndarray]:
    return {path: param.val().numpy() for path, param in model.named_params()}
