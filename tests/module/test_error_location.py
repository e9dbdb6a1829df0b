"""Errors raised in the call of a module say where in the model it stands."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import PhloxError, ShapeError


class Block(px.Module):
    def __init__(self, width: int, device: Any = None) -> None:
        self.up = nn.Linear(4, width, device=device)
        self.down = nn.Linear(8, 4, device=device)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.down(self.up(x))


class Decoder(px.Module):
    def __init__(self, widths: list[int], device: Any = None) -> None:
        self.blocks = {"first": [Block(width, device) for width in widths]}
        self.scale = px.Param(px.ones((4,), device=device))
        self.name = "decoder"

    def __call__(self, x: px.Tensor) -> px.Tensor:
        for block in self.blocks["first"]:
            x = block(x)
        return x * self.scale.val()


class Model(px.Module):
    def __init__(self, widths: list[int], device: Any = None) -> None:
        self.decoder = Decoder(widths, device)

    def __call__(self, x: px.Tensor) -> px.Tensor:
        return self.decoder(x)


WHERE = r"^decoder\.blocks\.first\.1\.down: Linear\(weight \[8, 4\], bias \[4\]\): linear: x of shape \(2, 6\)"


@pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch(), Autodiff(NumPy())], ids=repr)
def test_the_whole_path_is_named(backend: Any) -> None:
    model, x = Model([8, 6], backend), px.ones((2, 4), device=backend)
    for call in (model, px.compile(lambda model, x: model(x)).__get__(model), model.train(), model.to_device(backend)):
        with pytest.raises(ShapeError, match=WHERE) as caught:
            call(x)
        assert str(caught.value).count("Linear") == 1 and "\n" not in str(caught.value)


def test_an_error_of_the_module_itself_and_of_one_passed_in() -> None:
    model = Model([])
    with pytest.raises(ShapeError, match=r"^decoder: Decoder\(scale \[4\]\): mul"):
        model(px.ones((2, 3)))
    with pytest.raises(ShapeError, match=r"^RotaryEncoding: x must be"):  # and not twice
        nn.RotaryEncoding(4)(px.ones((3,)))

    class Caller(px.Module):
        def __call__(self, other: Any, x: px.Tensor) -> px.Tensor:
            return other(x)

    class Outer(px.Module):
        def __init__(self) -> None:
            self.caller = Caller()

        def __call__(self, other: Any, x: px.Tensor) -> px.Tensor:
            return self.caller(other, x)

    # It is no part of those that call it, so it has no path in them.
    with pytest.raises(ShapeError, match=r"^up: Linear"):
        Outer()(Block(8), px.ones((2, 3)))


def test_a_call_of_super_names_the_module_once() -> None:
    class Doubled(nn.Linear):
        def __call__(self, x: px.Tensor) -> px.Tensor:
            return super().__call__(x) * 2.0

    with pytest.raises(ShapeError, match=r"^Doubled\(weight \[3, 2\], bias \[2\]\): linear: "):
        Doubled(3, 2)(px.ones((4, 4)))


def test_other_errors_pass_and_signatures_stay() -> None:
    class Wrong(px.Module):
        def __call__(self, x: px.Tensor, times: int = 2) -> px.Tensor:
            raise KeyError(times)

    with pytest.raises(KeyError, match="^2$"):
        Wrong()(px.ones(()))
    assert list(inspect.signature(Wrong.__call__).parameters) == ["self", "x", "times"]
    assert not issubclass(KeyError, PhloxError)


def test_a_call_that_is_compiled_stays_so() -> None:
    class Compiled(px.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(3, 2, device=Jax())

        @px.compile
        def __call__(self, x: px.Tensor) -> px.Tensor:
            return self.layer(x)

    model, x = Compiled(), px.ones((4, 3), device=Jax())
    assert model(x).shape == model(x).shape == (4, 2)
    assert vars(Compiled)["__call__"].traces == 1
    with pytest.raises(ShapeError, match=r"Linear\(weight \[3, 2\], bias \[2\]\): linear: x of shape \(4, 5\)"):
        model(px.ones((4, 5), device=Jax()))


def test_calls_that_take_x_alone_take_it_as_functions_do() -> None:
    layer = nn.Linear(2, 3)
    assert layer(x=px.ones((1, 2))).shape == (1, 3)
    assert list(inspect.signature(layer).parameters) == ["x"]
    call: Any = layer
    with pytest.raises(TypeError, match=r"Linear\.__call__\(\) missing 1 required positional argument: 'x'"):
        call()
    with pytest.raises(TypeError, match=r"Linear\.__call__\(\) takes 2 positional arguments but 3 were given"):
        call(px.ones((1, 2)), 1)

    class Twice(px.Module):
        def __call__(self, x: px.Tensor, /, times: float = 2.0, *more: float, scale: float = 1.0) -> px.Tensor:
            return x * (times * scale + sum(more))

    class Defaulted(px.Module):
        def __call__(self, x: float = 4.0) -> float:
            return x

    assert Twice()(px.ones((1,)), 3.0, 1.0, scale=2.0).tolist() == [7.0]
    assert Defaulted()() == 4.0
