"""Gradients of products whose factors are shared by a stack: one product of large matrices, not a stack of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
import torch

import phlox as px
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch

Shape = tuple[int, ...]
PAIRS: list[tuple[Shape, Shape]] = [
    ((4, 5, 6), (6, 7)),
    ((2, 3, 5, 6), (6, 7)),
    ((5, 6), (4, 6, 7)),
    ((1, 5, 6), (4, 6, 7)),
    ((4, 5, 6), (1, 6, 7)),
    ((2, 3, 5, 6), (3, 6, 7)),
    ((2, 3, 5, 6), (2, 1, 6, 7)),
    ((2, 1, 5, 6), (1, 3, 6, 7)),
    ((1, 5, 6), (6, 7)),
    ((1, 1, 5, 6), (1, 6, 7)),
    ((0, 5, 6), (6, 7)),
    ((4, 5, 6), (6,)),
    ((6,), (4, 6, 7)),
]


def _gradients(x: Any, y: Any, g: Any) -> list[Any]:
    x, y = x.require_grad(), y.require_grad()
    grads = ((x @ y) * g).sum().backward()
    return [x.grad(grads), y.grad(grads)]


@pytest.mark.parametrize(("left", "right"), PAIRS, ids=str)
def test_values(left: Shape, right: Shape) -> None:
    rng = np.random.default_rng(len(left) + 7 * len(right))
    a, b = rng.normal(size=left), rng.normal(size=right)
    g = rng.normal(size=(a @ b).shape)
    given = [torch.tensor(one, requires_grad=True) for one in (a, b)]
    wanted = torch.autograd.grad(given[0] @ given[1], given, torch.tensor(g))
    backends: list[Backend] = [NumPy(float="f64"), Jax(float="f64"), Torch(float="f64")]
    for backend in backends:
        tensors = [px.tensor(one, device=Autodiff(backend)) for one in (a, b, g)]
        for found, right_one in zip(_gradients(*tensors), wanted, strict=True):
            assert found.shape == tuple(right_one.shape)
            np.testing.assert_allclose(found.numpy(), right_one.numpy(), rtol=1e-10, atol=1e-12)


def test_in_a_batch() -> None:
    rng = np.random.default_rng(1)
    a, b, g = rng.normal(size=(3, 4, 5, 6)), rng.normal(size=(6, 2)), rng.normal(size=(3, 4, 5, 2))
    for backend in (NumPy(float="f64"), Jax(float="f64"), Torch(float="f64")):
        x, w, towards = (px.tensor(one, device=backend) for one in (a, b, g))

        def weight(x: Any, w: Any, towards: Any) -> Any:
            return px.grad(lambda w: ((x @ w) * towards).sum())(w)

        found = px.vmap(weight, in_axes=(0, None, 0))(x, w, towards)
        np.testing.assert_allclose(found.numpy(), np.einsum("bijk,bijl->bkl", a, g), rtol=1e-10)


def _results(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        for inner in equation.params.values():
            if hasattr(inner, "jaxpr"):
                yield from _results(inner.jaxpr)
        yield from (one.aval for one in equation.outvars)


@pytest.mark.parametrize(("left", "right"), [pair for pair in PAIRS[:7] if pair[0] != pair[1]], ids=str)
def test_nothing_is_as_large_as_a_gradient_for_every_matrix_of_the_stack(left: Shape, right: Shape) -> None:
    left, right = (tuple(16 if size > 4 else size for size in shape) for shape in (left, right))

    def both(*arrays: Any) -> list[Any]:
        tensors = [px.Tensor.from_inner(px.Tensor.from_primitive(x, Jax())) for x in arrays]
        return [one.primitive for one in _gradients(*tensors)]

    a, b = np.zeros(left, np.float32), np.zeros(right, np.float32)
    program = jax.make_jaxpr(both)(a, b, a @ b)
    largest = max(math.prod(aval.shape) for aval in _results(program.jaxpr))
    assert largest <= max(a.size, b.size, (a @ b).size)


@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e9])
@pytest.mark.parametrize("backend", [NumPy(float="f64"), Torch(float="f64")], ids=repr)
def test_the_second_derivative_of_a_determinant(backend: Any, scale: float) -> None:
    """By the formula of Leibniz: the Hessian of a determinant of order 3 is its elements, with signs."""
    a = np.random.default_rng(7).normal(size=(3, 3)) * scale
    signs = np.zeros((3, 3, 3))
    for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        signs[i, j, k], signs[i, k, j] = 1.0, -1.0
    wanted = np.einsum("ijk,abc,kc->iajb", signs, signs, a)
    found = px.hessian(px.linalg.det)(px.tensor(a, device=backend))
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12, atol=1e-13 * scale)
