"""The kit finds what is wrong, and says where."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import AutodiffError
from phlox.testing import TOLERANCES, Tolerance, assert_close, check_gradients, tolerance_of

NAN, INF = float("nan"), float("inf")


def test_close() -> None:
    for backend in (NumPy(), Jax(), Torch(float="f64")):
        x = px.tensor([1.0, NAN, INF, -INF, 0.0], device=backend)
        assert_close(x, [1.0, NAN, INF, -INF, -0.0])
        assert_close(x, x)
        assert_close(px.zeros((0, 2), device=backend), np.zeros((0, 2)))
        assert_close(px.tensor([1, 2], device=backend), [1, 2])
    assert_close(px.tensor([1.0, 2.0]), px.tensor([1.0, 2.0 + 1e-6], device=Torch()))
    assert_close(px.tensor([1.0, 2.0]), [1.1, 2.2], tolerance=Tolerance(0.1, 0.0))


@pytest.mark.parametrize(
    "actual, expected, parts",
    [
        (px.ones((2, 3)), np.ones(3), ("y", "(2, 3)", "(3,)")),
        (px.tensor([1.0, 2.0, 3.0]), [1.0, 2.5, 4.0], ("y", "2 of 3", "(2,)", "3.0", "4.0", "rtol=1e-05")),
        (px.tensor([1.0]), [NAN], ("1 of 1", "nan")),
        (px.tensor([NAN]), [1.0], ("1 of 1", "got nan")),
        (px.tensor([1.0]), [INF], ("got 1.0, expected inf",)),
        (px.tensor([INF]), [-INF], ("got inf, expected -inf",)),
        (px.tensor([1, 2]), [1, 3], ("got 2.0, expected 3.0", "rtol=0")),
        (px.tensor([True]), [False], ("1 of 1",)),
        (px.tensor([1.0], device=NumPy(float="f64")), [1.0 + 1e-9], ("rtol=1e-11",)),
    ],
)
def test_not_close(actual: Any, expected: Any, parts: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_close(actual, expected, name="y")
    assert [part for part in parts if part not in str(caught.value)] == [], str(caught.value)


def test_tolerances() -> None:
    for backend in (NumPy(), NumPy(float="f64"), Jax(float="bf16"), Torch(float="f16"), Autodiff(NumPy())):
        assert tolerance_of(backend) is TOLERANCES[backend.float_element]
    assert Tolerance(1e-3, 1e-4).times(2.0) == Tolerance(2e-3, 2e-4)
    order = [TOLERANCES[name] for name in ("f64", "f32", "f16", "bf16")]
    assert order == sorted(order)


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
