"""Gradients of decompositions of matrices that are nearly singular, beside PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import phlox as px
from phlox.backend import NumPy, Torch


@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5)], ids=str)
@pytest.mark.parametrize("backend", [NumPy(float="f64"), Torch(float="f64")], ids=repr)
def test_singular_vectors_beside_a_tiny_singular_value(backend: Any, shape: tuple[int, int]) -> None:
    """No rounding is divided by that value: u and v have no more rows than the smaller side of the matrix."""
    rng = np.random.default_rng(5)
    size = min(shape)
    u, v = (np.linalg.qr(rng.normal(size=(rows, size)))[0] for rows in shape)
    a = u * np.array([3.0, 2.0, 1e-9]) @ v.T
    left, right = (rng.normal(size=factor.shape) for factor in (u, v))
    square = [shape[0] == size, shape[1] == size]  # of the other one the gradient is as large as 1 / 1e-9

    def loss(parts: Any, weights: Any) -> Any:
        u, _, vh = parts
        terms = [(u**2 * weights[0]).sum(), (vh**2 * weights[1].mT).sum()]
        return sum(term for term, counts in zip(terms, square, strict=True) if counts)

    x = torch.tensor(a, requires_grad=True)
    of_torch = loss(torch.linalg.svd(x, full_matrices=False), [torch.tensor(left), torch.tensor(right)])
    (wanted,) = torch.autograd.grad(of_torch, x)
    weights = [px.tensor(one, device=backend) for one in (left, right)]
    found = px.grad(lambda x: loss(px.linalg.svd(x, full_matrices=False), weights))(px.tensor(a, device=backend))
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-10, atol=1e-12)
