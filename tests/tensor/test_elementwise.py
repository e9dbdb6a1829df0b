"""Operators, elementwise functions and activations: what cannot be done says what was tried, and what to do instead."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import phlox as px
from phlox import functional as f
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import KindError, PhloxError, RangeError, ShapeError
from phlox.testing.conformance.row import SPECIAL

BACKENDS = [NumPy(), Jax(), Torch(), Autodiff(NumPy()), Autodiff(Jax()), Autodiff(Torch())]


@pytest.fixture(params=BACKENDS, ids=repr)
def device(request: pytest.FixtureRequest) -> Any:
    return request.param.device()


def floats(device: Any, *shape: int) -> Any:
    return px.ones(shape, device=device)


def ints(device: Any, *values: int) -> Any:
    return px.tensor(list(values), kind=px.Int, device=device)


def bools(device: Any, *values: bool) -> Any:
    return px.tensor(list(values), kind=px.Bool, device=device)


# What is tried, the class of the error, and what the message must say.
CASES: dict[str, tuple[Callable[[Any], Any], type[PhloxError], tuple[str, ...]]] = {
    "float << 1": (lambda d: floats(d, 2) << 1, KindError, ("left_shift", "Float", ".int()")),
    "bool >> bool": (lambda d: bools(d, True) >> bools(d, True), KindError, ("right_shift", "Bool", ".int()")),
    "~float": (lambda d: ~floats(d, 2), KindError, ("not", "Float", ".bool()")),
    "int & True": (lambda d: ints(d, 1) & True, KindError, ("and", "Int", "bool", "1 or 0")),
    "1 | bool": (lambda d: 1 | bools(d, True), KindError, ("or", "Bool", "int", ".int()")),
    "2.5 & int": (lambda d: 2.5 & ints(d, 1), KindError, ("and", "Int", "2.5", ".float()")),
    "int & bool": (lambda d: ints(d, 1) & bools(d, True), KindError, ("and", "Int", "Bool", ".int()")),
    "divmod(float, int)": (lambda d: divmod(floats(d, 1), ints(d, 1)), KindError, ("floordiv", "Float", ".float()")),
    "divmod(bool, bool)": (lambda d: divmod(bools(d, True), bools(d, True)), KindError, ("floordiv", "Bool", ".int()")),
    "int << 2**40": (lambda d: ints(d, 1) << 2**40, RangeError, ("left_shift", str(2**40), "integers")),
    "int ** -1": (lambda d: ints(d, 2) ** -1, RangeError, ("pow", "negative power", ".float()")),
    "int.asin": (lambda d: ints(d, 1).asin(), KindError, ("asin", "Int", ".float()")),
    "bool.lgamma": (lambda d: bools(d, True).lgamma(), KindError, ("lgamma", "Bool", ".float()")),
    "int.isclose": (lambda d: ints(d, 1).isclose(ints(d, 1)), KindError, ("isclose", "Int", ".float()")),
    "int.fmod": (lambda d: ints(d, 1).fmod(2), KindError, ("fmod", "Int", ".float()")),
    "int.silu": (lambda d: ints(d, 1).silu(), KindError, ("silu", "Int", ".float()")),
    "bool.sum": (lambda d: bools(d, True).sum(), KindError, ("sum", "Bool", ".int()")),
    "atan2 of text": (lambda d: floats(d, 1).atan2(cast(Any, "a")), KindError, ("atan2", "tensor or a scalar", "str")),
    "maximum of None": (lambda d: floats(d, 1).maximum(cast(Any, None)), KindError, ("maximum", "tensor or a scalar")),
    "hypot of int": (lambda d: floats(d, 1).hypot(ints(d, 1)), KindError, ("hypot", "Float", "Int", ".float()")),
    "lerp of text": (lambda d: floats(d, 1).lerp(1.0, cast(Any, "a")), KindError, ("lerp", "or a scalar", "str")),
    "clip of list": (lambda d: floats(d, 1).clip(cast(Any, [0])), KindError, ("clip", "tensor or a scalar", "list")),
    "clip int by float": (lambda d: ints(d, 1).clip(0.5), KindError, ("clip", "Int", "0.5", ".float()")),
    "clip of int tensor": (lambda d: floats(d, 1).clip(ints(d, 1)), KindError, ("clip", "Float", "Int")),
    "xlogy of True": (lambda d: floats(d, 1).xlogy(True), KindError, ("xlogy", "Float", "bool")),
    "isclose of ints": (lambda d: floats(d, 1).isclose(cast(Any, np.ones(1, int))), KindError, ("isclose", "int64")),
    "elu of tensor": (lambda d: floats(d, 1).elu(floats(d, 1)), KindError, ("elu", "`alpha`", "number")),
    "leaky_relu of text": (lambda d: floats(d, 1).leaky_relu(cast(Any, "a")), KindError, ("leaky_relu", "`slope`")),
    "nan_to_num of tensor": (lambda d: floats(d, 1).nan_to_num(floats(d, 1)), KindError, ("nan_to_num", "`nan`")),
    "celu 0": (lambda d: floats(d, 1).celu(0), RangeError, ("celu", "alpha", "zero")),
    "atan2 shapes": (lambda d: floats(d, 2).atan2(floats(d, 3)), ShapeError, ("atan2", "(2,)", "(3,)", "broadcast")),
    "// shapes": (lambda d: floats(d, 2) // floats(d, 3), ShapeError, ("floordiv", "(2,)", "(3,)", "broadcast")),
    "& shapes": (lambda d: ints(d, 1, 2) & ints(d, 1, 2, 3), ShapeError, ("and", "(2,)", "(3,)", "broadcast")),
    "clip shapes": (lambda d: floats(d, 2).clip(floats(d, 3)), ShapeError, ("clip", "(2,)", "(3,)", "broadcast")),
    "lerp shapes": (lambda d: floats(d, 2).lerp(floats(d, 3), 0.5), ShapeError, ("lerp", "(2,)", "(3,)", "broadcast")),
    "isclose shapes": (lambda d: floats(d, 2).isclose(floats(d, 3)), ShapeError, ("isclose", "(2,)", "(3,)")),
    "xlogy shapes": (lambda d: floats(d, 2).xlogy(floats(d, 3)), ShapeError, ("xlogy", "(2,)", "(3,)", "broadcast")),
    "int @ shapes": (lambda d: ints(d, 1, 2) @ ints(d, 1, 2, 3), ShapeError, ("matmul", "(2,)", "(3,)")),
    "prelu shapes": (lambda d: floats(d, 2, 4).prelu(floats(d, 3)), ShapeError, ("prelu", "(3,)", "(2, 4)", "channel")),
    "prelu matrix": (lambda d: f.prelu(floats(d, 2, 4), floats(d, 2, 4)), ShapeError, ("prelu", "(2, 4)", "channel")),
    "glu odd": (lambda d: floats(d, 2, 3).glu(), ShapeError, ("glu", "(2, 3)", "even")),
    "swiglu axis": (lambda d: f.swiglu(floats(d, 2, 4), 2), ShapeError, ("swiglu", "axis 2", "(2, 4)")),
    "glu of a number": (lambda d: floats(d).glu(), ShapeError, ("glu", "axis", "()")),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_done(case: str, device: Any) -> None:
    call, kind, parts = CASES[case]
    with pytest.raises(kind) as caught:
        call(device)
    assert [part for part in parts if part not in str(caught.value)] == [], str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("divisor", [0, "tensor"])
@pytest.mark.parametrize("name", ["//", "%", "divmod"])
def test_integers_are_not_divided_by_zero(name: str, divisor: Any, device: Any) -> None:
    y = ints(device, 1, 0) if divisor == "tensor" else divisor
    call: Any = {"//": lambda x: x // y, "%": lambda x: x % y, "divmod": lambda x: divmod(x, y)}[name]
    with pytest.raises(ZeroDivisionError, match="zero"):
        call(ints(device, 5, 6))


def test_numbers_on_the_left_of_what_has_no_meaning(device: Any) -> None:
    for call in (lambda: "a" & ints(device, 1), lambda: divmod("a", floats(device, 1)), lambda: [1] << ints(device, 1)):
        with pytest.raises(TypeError):
            cast(Any, call)()


QUIET = [
    "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc", "erfinv", "lgamma", "digamma",
    "logit", "exp2", "log2", "log10", "trunc", "sigmoid", "tan", "relu6", "leaky_relu", "elu", "selu", "celu",
    "log_sigmoid", "softplus", "mish", "silu", "softsign", "tanhshrink", "hardtanh", "hardsigmoid", "hardswish",
    "hardshrink", "softshrink", "nan_to_num",
]  # fmt: skip


@pytest.mark.parametrize("name", QUIET)
def test_infinities_and_nans_are_results_without_warnings(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        getattr(px.tensor(SPECIAL, device=NumPy()), name)()


@pytest.mark.parametrize("name", ["atan2", "hypot", "logaddexp", "copysign", "xlogy", "fmod", "isclose"])
def test_so_they_are_of_two_operands(name: str) -> None:
    x, y = (px.tensor(grid, device=NumPy()) for grid in np.meshgrid(SPECIAL, SPECIAL))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        getattr(x, name)(y)
        divmod(x, y)


def test_shifts_of_wider_integers() -> None:
    x = px.tensor([-5, 1], device=NumPy(int="i64"))
    assert (x << 40).tolist() == [-5 << 40, 1 << 40]
    assert (x << 64).tolist() == [0, 0] and (x >> 64).tolist() == [-1, 0] and (x >> -3).tolist() == [-1, 0]


def test_operands_from_below_the_tape() -> None:
    """A tensor on B is a constant on Autodiff(B), on either side."""
    plain = px.tensor([0.5, 2.0], device=NumPy())
    x = px.tensor([1.0, 1.0], device=Autodiff(NumPy())).require_grad()
    for y in (
        plain.clip(x * 0.75, 1.5),
        plain.lerp(x, plain),
        plain.xlogy(x),
        plain.atan2(x),
        plain.isclose(x).float() * x,
    ):
        assert y.backend is Autodiff(NumPy()) and x.grad(y.sum().backward()) is not None
