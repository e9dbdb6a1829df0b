"""`check_gradients` passes what is right, of any structure and order, and names what is wrong."""

from __future__ import annotations

import pytest

import phlox as px
from phlox import nn
from phlox.backend import Jax, Torch
from phlox.errors import AutodiffError
from phlox.testing import Tolerance, check_gradients


def test_right_gradients_pass() -> None:
    x, y = px.random.normal((3, 2)), px.random.normal((2,))
    check_gradients(lambda x, y: (x * y).tanh(), x, y)
    check_gradients(lambda x: x.square().mean(), px.tensor([1.0, 2.0], device=Torch(float="f64")))
    check_gradients(lambda x: x.softmax(), px.tensor([1.0, 2.0], device=Jax()))  # by way of NumPy
    check_gradients(lambda inputs: inputs["a"][0] * inputs["b"], {"a": [x, "text"], "b": y})
    check_gradients(lambda x, i, scale: x.take(i) * scale, x, px.tensor([2, 0, 2]), 3.0)
    check_gradients(lambda x, y: x * 2.0, x, y)  # what is not used has a gradient of zero
    check_gradients(px.lift(lambda x: x * x), px.tensor([1.0, 2.0], device=Torch(float="f64")))


def test_modules_and_random_draws() -> None:
    model = nn.Sequential([nn.Linear(3, 4), nn.Dropout(0.5), nn.Gelu(), nn.Linear(4, 2)])
    check_gradients(lambda m, x: m(x), model, px.random.normal((5, 3)))
    with pytest.raises(AssertionError, match=r"towards inputs\[0\]\.layers\.0\.weight"):
        check_gradients(lambda m, x: m(x) + m.layers[0].weight.val().detach().sum(), model, px.random.normal((5, 3)))


def test_wrong_gradients_are_found_and_named() -> None:
    def half(x: px.Tensor) -> px.Tensor:
        return (x + x.detach()) * x * 0.5

    with pytest.raises(
        AssertionError, match=r"gradient towards inputs\[1\]\['w'\]: 1 of 2 .* worst at \(1,\): got 6\."
    ):
        check_gradients(
            lambda x, d: x + px.concat([d["w"][:1].square(), half(d["w"][1:])]),
            px.tensor([1.0, 2.0]),
            {"w": px.tensor([3.0, 4.0])},
            tolerance=Tolerance(1e-5, 1e-5),
        )


def test_nothing_to_check() -> None:
    with pytest.raises(AutodiffError, match="does not depend on any input"):
        check_gradients(lambda x: x.detach(), px.tensor([1.0]))


def test_second_derivatives() -> None:
    x = px.random.normal((3, 2))
    check_gradients(lambda x: (x * x.sum()).tanh(), x, order=2)
    check_gradients(lambda x: 2.0 * x, x, order=2)  # whose second derivative is zero, and on no tape
    check_gradients(lambda x: x.square().mean(), px.tensor([1.0, 2.0], device=Torch(float="f64")), order=2)
    model = nn.Sequential([nn.Linear(2, 3), nn.Dropout(0.5), nn.Gelu(), nn.Linear(3, 1)])
    check_gradients(lambda m, x: m(x), model, x, order=2)

    def right_only_once(x: px.Tensor) -> px.Tensor:
        return x.square().detach() + (2.0 * x).detach() * (x - x.detach())

    check_gradients(right_only_once, x)
    with pytest.raises(AssertionError, match=r"second derivative towards inputs\[0\]: 6 of 6"):
        check_gradients(right_only_once, x, order=2)
    with pytest.raises(AutodiffError, match="order must be 1 or 2"):
        check_gradients(lambda x: x, x, order=3)
