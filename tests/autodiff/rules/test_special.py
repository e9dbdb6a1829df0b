"""Gradients of special functions that few other tests ask for, beside PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox.backend import NumPy, Torch


@pytest.mark.parametrize("backend", [NumPy(float="f64"), Torch(float="f64")], ids=repr)
def test_the_target_of_the_binary_cross_entropy_has_a_gradient(backend: Any) -> None:
    """The loss is linear in its target: the slope is what it rises by from 0 to 1, also if a logarithm is clamped."""
    rng = np.random.default_rng(3)
    p, target, weight = rng.uniform(0.01, 0.99, 12), rng.uniform(0.0, 1.0, 12), rng.normal(size=12)
    p[:4] = 0.0, 1.0, 1e-60, 1.0 - 1e-15
    at_zero, at_one = (
        torch.nn.functional.binary_cross_entropy(torch.tensor(p), torch.full((12,), end).double(), reduction="none")
        for end in (0.0, 1.0)
    )
    tensors = [px.tensor(one, device=backend) for one in (p, target, weight)]

    def weighed(target: Any) -> Any:
        return (px.functional.binary_cross_entropy(tensors[0], target, reduction="none") * tensors[2]).sum()

    found = px.grad(weighed)(tensors[1])
    np.testing.assert_allclose(found.numpy(), weight * (at_one - at_zero).numpy(), rtol=1e-12)

    def slope(p: Any) -> Any:
        slopes = px.grad(lambda target: px.functional.binary_cross_entropy(p, target, reduction="sum"))
        return (slopes(tensors[1]) * tensors[2]).sum()

    bend = np.full(12, -1.0)  # of the other logarithm, where one is clamped
    bend[3:] = -1.0 / (p[3:] * (1.0 - p[3:]))
    np.testing.assert_allclose(px.grad(slope)(tensors[0]).numpy(), weight * bend, rtol=1e-12)
