"""Embeddings against torch.nn: values and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch

BACKENDS: list[Backend] = [NumPy(float="f64"), NumPy(), Jax(), Torch()]

RNG = np.random.default_rng(0)

each_backend = pytest.mark.parametrize("backend", BACKENDS, ids=repr)

THEIR_NAMES = {"gamma": "weight", "beta": "bias", "slope": "weight"}


def their_name(path: str) -> str:
    return THEIR_NAMES.get(path, path)


def match(module: Any, twin: Any) -> None:
    """Give both the same values, random ones, so that no scale is one and no shift is zero."""
    for path, param in module.named_params():
        other = getattr(twin, their_name(path))
        values = np.abs(RNG.normal(size=param.shape)) + 0.3
        param.set(px.tensor(values, device=param.device, kind=px.Float))
        own = param.val().numpy().astype(np.float64)
        other.data = torch.tensor(own.T.copy() if isinstance(twin, torch.nn.Linear) else own)


def tolerances(backend: Backend) -> dict[str, Any]:
    return {"rtol": 1e-9, "atol": 1e-11} if "f64" in repr(backend) else {"rtol": 2e-4, "atol": 2e-5}


@each_backend
@pytest.mark.parametrize("padding", [None, 4, -2])
def test_embedding(backend: Backend, padding: int | None) -> None:
    device = Autodiff(backend).device()
    module = nn.EmbeddingConfig(5, 3, padding_index=padding).init(device).init(0)
    twin = torch.nn.Embedding(5, 3, padding_idx=padding, dtype=torch.float64)
    if padding is not None:
        assert module.weight.val().numpy()[padding].tolist() == [0.0, 0.0, 0.0]
    match(module, twin)
    indices = np.array([[0, 4, 4], [1, 3, 4]])
    y, expected = module(px.tensor(indices, device=device)), twin(torch.tensor(indices))
    np.testing.assert_array_equal(y.numpy(), expected.detach().numpy())
    grads = px.GradientsParams.from_grads((y * y).sum().backward(), module)
    (expected * expected).sum().backward()
    gradient = grads.get(module.weight.id)
    assert gradient is not None and twin.weight.grad is not None
    np.testing.assert_allclose(gradient.numpy(), twin.weight.grad.numpy(), **tolerances(backend))
