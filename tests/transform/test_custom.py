"""Derivatives of one's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import AutodiffError, BackendError, ShapeError

BACKENDS = [NumPy(), Jax(), Torch()]


@px.custom_gradient
def cube(x: Any) -> Any:
    """A derivative that is wrong by a factor, to be told from the right one."""
    return x * x * x, lambda g: g * x * x * 30.0


@px.custom_gradient
def scaled(x: Any, factor: float, y: Any, n: Any) -> Any:
    def backward(g: Any, h: Any) -> Any:
        return g * factor + h * y, None

    return (x * factor, x * y + n.float()), backward


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_the_gradient_is_what_its_author_says(backend: Any) -> None:
    x = px.tensor([1.0, 2.0], device=Autodiff(backend)).require_grad()
    y = cube(x)
    assert y.tolist() == [1.0, 8.0] and y.backend is Autodiff(backend)
    gradient = x.grad((y * 2.0).sum().backward())
    assert gradient is not None and gradient.backend is backend
    assert gradient.tolist() == [60.0, 240.0]
    # Without a tape it is called as it is.
    assert cube(px.tensor([3.0], device=backend)).tolist() == [27.0]
    assert not cube(px.tensor([3.0], device=Autodiff(backend))).is_require_grad()


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
def test_several_arguments_and_results(backend: Any) -> None:
    device = Autodiff(backend).device()
    x, y = (px.tensor(v, device=device).require_grad() for v in ([1.0, 2.0], [3.0, 5.0]))
    n = px.tensor([7, 9], device=device)
    first, second = scaled(x, 4.0, y, n)
    assert first.tolist() == [4.0, 8.0] and second.tolist() == [10.0, 19.0]
    found = (first + 10.0 * second).sum().backward()
    assert [None if v is None else v.tolist() for v in (x.grad(found), y.grad(found))] == [[34.0, 54.0], None]
    # A result that nobody uses has a gradient of zeros.
    first, _ = scaled(x, 4.0, y, n)
    gradient = x.grad(first.sum().backward())
    assert gradient is not None and gradient.tolist() == [4.0, 4.0]


def test_it_is_differentiated_itself() -> None:
    second = px.grad(lambda x: px.grad(lambda x: cube(x).sum())(x).sum())(px.tensor([1.0, 2.0]))
    assert second.tolist() == [60.0, 120.0]  # of 30 x^2
    np.testing.assert_allclose(
        px.hessian(lambda x: cube(x).sum())(px.tensor([1.0, 2.0])).numpy(), np.diag([60.0, 120.0])
    )


def test_as_a_method_and_under_compile() -> None:
    class Scale:
        def __init__(self, by: float) -> None:
            self.by = by

        @px.custom_gradient
        def apply(self, x: Any) -> Any:
            return x, lambda g: g * self.by

    assert px.grad(lambda x: Scale(3.0).apply(x).sum())(px.tensor([1.0])).tolist() == [3.0]
    assert cube.__doc__ is not None and "factor" in cube.__doc__
    step = px.compile(lambda x: px.grad(lambda x: cube(x).sum())(x))
    assert step(px.tensor([1.0, 2.0], device=Jax())).tolist() == [30.0, 120.0]


def test_bad_input_is_explained() -> None:
    x = px.tensor([1.0, 2.0], device=Autodiff(NumPy())).require_grad()
    with pytest.raises(AutodiffError, match="returns a pair, its result and a function"):
        px.custom_gradient(lambda x: x)(x)
    with pytest.raises(AutodiffError, match="returned 2 gradients for 1 Float argument"):
        px.custom_gradient(lambda x: (x * 1.0, lambda g: (g, g)))(x).sum().backward()
    with pytest.raises(ShapeError, match=r"towards Float argument 0 has shape \(\), but the argument has shape \(2,\)"):
        px.custom_gradient(lambda x: (x * 1.0, lambda g: g.sum()))(x).sum().backward()
    with pytest.raises(BackendError, match=r"different backends, Autodiff\(NumPy\(\)\) and Torch\(\)"):
        px.custom_gradient(lambda x, y: (x, lambda g: (g, g)))(x, px.ones((2,), device=Torch()))
    with pytest.raises(AutodiffError, match=r"must be Float tensors made of its arguments.*got Float on Torch\(\)"):
        px.custom_gradient(lambda x: (px.ones((2,), device=Torch()), lambda g: g))(x)
