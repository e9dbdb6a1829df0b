# ruff: noqa: E501
"""What cannot be done says what was tried, on what, and what to do instead; the engines' own errors never come out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import phlox as px
from phlox import functional as f
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import (
    BackendError,
    DeviceError,
    EngineNotInstalledError,
    IndexRangeError,
    KindError,
    PhloxError,
    RangeError,
    ShapeError,
)

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


# --- kinds: what is tried, and what the message must say besides the operation

KINDS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "int + float": (lambda d: ints(d, 0, 1, 2) + floats(d, 3), ("add", "Int", "Float", ".float()")),
    "float * bool": (lambda d: floats(d, 1) * bools(d, True), ("mul", "Float", "Bool", ".float()")),
    "int == bool": (lambda d: px.arange(1, device=d) == bools(d, True), ("equal", "Int", "Bool", ".int()")),
    "int + 0.5": (lambda d: px.arange(3, device=d) + 0.5, ("add", "Int", "0.5", ".float()")),
    "0.5 - int": (lambda d: 0.5 - px.arange(3, device=d), ("sub", "Int", "0.5", ".float()")),
    "int ** 0.5": (lambda d: px.arange(3, device=d) ** 0.5, ("pow", "Int", ".float()")),
    "float + True": (lambda d: floats(d, 3) + True, ("add", "Float", "bool", "1 or 0")),
    "bool + 1": (lambda d: bools(d, True) + 1, ("add", "Bool", ".int()")),
    "bool + bool": (lambda d: bools(d, True) + bools(d, True), ("add", "Bool", ".float()", ".int()")),
    "float & float": (lambda d: floats(d, 3) & floats(d, 3), ("and", "Float", ".bool()")),
    "~float": (lambda d: ~floats(d, 3), ("not", "Float", ".bool()")),
    "bool // bool": (lambda d: bools(d, True) // bools(d, True), ("floordiv", "Bool", ".int()")),
    "int / int": (lambda d: px.arange(3, device=d) / 2, ("div", "Int", ".float()")),
    "bool < bool": (lambda d: bools(d, True) < bools(d, True), ("less", "Bool", ".float()", ".int()")),
    "int.exp": (lambda d: px.arange(3, device=d).exp(), ("exp", "Int", ".float()")),
    "int.mean": (lambda d: px.arange(3, device=d).mean(), ("mean", "Int", ".float()")),
    "int.softmax": (lambda d: px.arange(3, device=d).softmax(), ("softmax", "Int", ".float()")),
    "int.log_softmax": (lambda d: px.arange(3, device=d).log_softmax(), ("log_softmax", "Int", ".float()")),
    "bool.gelu": (lambda d: bools(d, True).gelu(), ("gelu", "Bool", ".float()")),
    "bool.sum": (lambda d: bools(d, True).sum(), ("sum", "Bool", ".int()")),
    "bool.max": (lambda d: bools(d, True).max(), ("max", "Bool", ".int()")),
    "float.any": (lambda d: floats(d, 3).any(), ("any", "Float", ".bool()")),
    "bool @ bool": (lambda d: bools(d, True) @ bools(d, True), ("matmul", "Bool", ".int()")),
    "float @ int": (lambda d: floats(d, 2) @ ints(d, 1, 2), ("matmul", "Int", ".float()")),
    "float @ number": (lambda d: floats(d, 2).matmul(2.0), ("matmul", "float")),
    "where int": (lambda d: px.where(ints(d, 1), floats(d, 1), 0.0), ("where", "Bool", "Int")),
    "where branches": (lambda d: px.where(bools(d, True), floats(d, 1), ints(d, 1)), ("where", "Float", "Int", ".float()")),
    "where number": (lambda d: px.where(bools(d, True), ints(d, 1), 0.5), ("where", "Int", "0.5")),
    "concat": (lambda d: px.concat([floats(d, 1), ints(d, 1)]), ("concat", "Float", "Int", ".float()")),
    "take": (lambda d: floats(d, 3).take(floats(d, 1)), ("take", "Int", "Float")),
    "index by floats": (lambda d: floats(d, 3)[floats(d, 1)], ("index", "Int", "Float")),
    "index by text": (lambda d: floats(d, 3)["a"], ("index", "str", "Int")),
    "index by float": (lambda d: floats(d, 3)[1.0], ("index", "float", "integers")),
    "one_hot": (lambda d: px.one_hot(floats(d, 3), 3), ("one_hot", "Int", "Float")),
    "linear of ints": (lambda d: f.linear(ints(d, 1, 2), floats(d, 2, 2)), ("linear", "Float", "Int", ".float()")),
    "linear by ints": (lambda d: f.linear(floats(d, 1, 2), ints(d, 1, 2).reshape(2, 1)), ("linear", "Float", "Int")),
    "array of ints": (lambda d: floats(d, 2) + np.arange(2), ("add", "Float", "int64", "phlox.tensor(array, kind=phlox.Float)")),
    "array of floats left": (lambda d: np.ones(2) * ints(d, 2), ("mul", "Int", "float64", "phlox.Int")),
    "axis of float": (lambda d: floats(d, 2).sum(0.5), ("sum", "integer", "0.5")),
    "tensor of None": (lambda d: px.tensor(None, device=d), ("tensor", "NoneType")),
    "tensor of text": (lambda d: px.tensor("abc", device=d), ("tensor", "floats, ints or booleans")),
    "tensor of complex": (lambda d: px.tensor([1j], device=d), ("complex128", "floats, ints or booleans")),
}  # fmt: skip


@pytest.mark.parametrize("case", KINDS)
def test_kinds_do_not_mix(case: str, device: Any) -> None:
    call, parts = KINDS[case]
    with pytest.raises(KindError) as caught:
        call(device)
    assert isinstance(caught.value, TypeError)
    assert [part for part in parts if part not in str(caught.value)] == [], str(caught.value)


SHAPES: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "add": (lambda d: floats(d, 2, 3) + floats(d, 4), ("add", "(2, 3)", "(4,)", "broadcast")),
    "int add": (lambda d: ints(d, 1, 2) + ints(d, 1, 2, 3), ("add", "(2,)", "(3,)", "broadcast")),
    "less": (lambda d: floats(d, 2) < floats(d, 3), ("less", "(2,)", "(3,)", "broadcast")),
    "maximum": (lambda d: floats(d, 2).maximum(floats(d, 3)), ("maximum", "(2,)", "(3,)", "broadcast")),
    "pow": (lambda d: floats(d, 2) ** floats(d, 3), ("pow", "(2,)", "(3,)", "broadcast")),
    "where": (lambda d: px.where(bools(d, True, False), floats(d, 3), floats(d, 2)), ("where", "(2,)", "(3,)", "broadcast")),
    "matmul": (lambda d: floats(d, 2, 3) @ floats(d, 4, 5), ("matmul", "(2, 3)", "(4, 5)", "last axis")),
    "matmul vector": (lambda d: floats(d, 3) @ floats(d, 4), ("matmul", "(3,)", "(4,)")),
    "matmul batch": (lambda d: floats(d, 2, 3, 3) @ floats(d, 4, 3, 3), ("matmul", "(2,)", "(4,)", "broadcast")),
    "matmul of one": (lambda d: floats(d) @ floats(d, 4), ("matmul", "()", "need an axis")),
    "axis": (lambda d: floats(d, 2, 3).sum(2), ("sum", "axis 2", "(2, 3)")),
    "negative axis": (lambda d: floats(d, 2, 3).softmax(-3), ("softmax", "axis -3", "(2, 3)")),
    "axis twice": (lambda d: floats(d, 2, 3).mean((0, -2)), ("mean", "repeats", "(2, 3)")),
    "argmax axis": (lambda d: floats(d, 2, 3).argmax(5), ("argmax", "axis 5", "(2, 3)")),
    "cumsum of one": (lambda d: floats(d).cumsum(0), ("cumsum", "axis 0", "()")),
    "max of nothing": (lambda d: floats(d, 0, 3).max(0), ("max", "(0, 3)", "size 0")),
    "min of nothing": (lambda d: ints(d).min(), ("min", "(0,)", "size 0")),
    "argmax of nothing": (lambda d: floats(d, 3, 0).argmax(1), ("argmax", "(3, 0)", "size 0")),
    "argmin of nothing": (lambda d: floats(d, 3, 0).argmin(), ("argmin", "(3, 0)", "size 0")),
    "logsumexp of nothing": (lambda d: floats(d, 0).logsumexp(), ("logsumexp", "(0,)", "size 0")),
    "reshape": (lambda d: floats(d, 2, 3).reshape(4, 2), ("reshape", "(2, 3)", "(4, 2)")),
    "reshape -1": (lambda d: floats(d, 2, 3).reshape(-1, 4), ("reshape", "(2, 3)", "(-1, 4)")),
    "reshape twice -1": (lambda d: floats(d, 2, 3).reshape(-1, -1), ("reshape", "(-1, -1)")),
    "reshape by half": (lambda d: floats(d, 2).reshape(0.5), ("reshape", "integers", "0.5")),
    "permute_dims": (lambda d: floats(d, 2, 3).permute_dims(0, 0), ("permute_dims", "(0, 0)", "(2, 3)")),
    "T": (lambda d: floats(d, 2, 3, 4).T, ("T", "rank 2", "(2, 3, 4)", ".mT")),
    "swapaxes": (lambda d: floats(d, 2).swapaxes(0, 1), ("swapaxes", "axis 1", "(2,)")),
    "squeeze": (lambda d: floats(d, 2, 1).squeeze(0), ("squeeze", "(0,)", "(2, 1)")),
    "expand_dims": (lambda d: floats(d, 2).expand_dims(3), ("expand_dims", "3", "(2,)")),
    "broadcast_to": (lambda d: floats(d, 2).broadcast_to((3,)), ("broadcast_to", "(2,)", "(3,)")),
    "broadcast_to less": (lambda d: floats(d, 2, 2).broadcast_to((2,)), ("broadcast_to", "(2, 2)", "(2,)")),
    "pad": (lambda d: floats(d, 2).pad(((1, 1), (0, 0))), ("pad", "(2,)")),
    "pad less": (lambda d: floats(d, 2).pad(((-1, 1),)), ("pad", "non-negative")),
    "concat": (lambda d: px.concat([floats(d, 2, 3), floats(d, 3, 3)], 1), ("concat", "(2, 3)", "(3, 3)", "other than 1")),
    "concat nothing": (lambda d: px.concat([]), ("concat", "no tensors")),
    "stack": (lambda d: px.stack([floats(d, 2), floats(d, 3)]), ("stack", "(2,)", "(3,)")),
    "take_along_axis": (lambda d: floats(d, 2, 3).take_along_axis(ints(d, 0)), ("take_along_axis", "(1,)", "(2, 3)")),
    "take_along_axis beside": (
        lambda d: floats(d, 2, 3).take_along_axis(ints(d, 0).reshape(1, 1), 1), ("take_along_axis", "(1, 1)", "(2, 3)")),
    "split": (lambda d: floats(d, 2).split(0), ("split", "0")),
    "truth": (lambda d: bool(floats(d, 2) > 0.0), ("(2,)", ".any()", ".all()")),
    "item": (lambda d: floats(d, 2).item(), ("item", "(2,)")),
    "length of one": (lambda d: len(floats(d)), ("rank 0",)),
    "full": (lambda d: px.full((2, -1), 0.0, device=d), ("negative", "(2, -1)")),
    "zeros of a fraction": (lambda d: px.zeros(cast(Any, 3.5), device=d), ("sequence of integers", "3.5")),
    "tensor": (lambda d: px.tensor([[1.0], [1.0, 2.0]], device=d), ("tensor", "equal lengths")),
    "uniform": (lambda d: px.random.uniform((2, -1), device=d), ("uniform", "negative")),
    "linear": (lambda d: f.linear(floats(d, 2, 3), floats(d, 4, 5)), ("linear", "(2, 3)", "(4, 5)")),
    "linear bias": (lambda d: f.linear(floats(d, 2, 3), floats(d, 3, 5), floats(d, 3)), ("linear", "(3,)", "(3, 5)")),
    "layer_norm": (lambda d: f.layer_norm(floats(d, 2, 3), floats(d, 2)), ("layer_norm", "gamma", "(2,)", "(2, 3)")),
    "cross_entropy": (lambda d: f.cross_entropy(floats(d, 2, 3), ints(d, 0)), ("cross_entropy", "(1,)", "(2, 3)")),
    "conv2d rank": (lambda d: f.conv2d(floats(d, 2, 3), floats(d, 1, 1, 1, 1)), ("conv2d", "(2, 3)", "channels")),
    "conv2d channels": (lambda d: f.conv2d(floats(d, 1, 2, 4, 4), floats(d, 3, 3, 2, 2)), ("conv2d", "3 channels")),
    "conv2d groups": (lambda d: f.conv2d(floats(d, 1, 4, 4, 4), floats(d, 3, 2, 2, 2), groups=2), ("conv2d", "2 groups")),
    "conv2d bias": (lambda d: f.conv2d(floats(d, 1, 2, 4, 4), floats(d, 3, 2, 2, 2), floats(d, 2)), ("conv2d", "bias", "(2,)")),
    "conv2d window": (lambda d: f.conv2d(floats(d, 1, 2, 4, 4), floats(d, 3, 2, 5, 2)), ("conv2d", "larger")),
    "conv2d stride": (lambda d: f.conv2d(floats(d, 1, 2, 4, 4), floats(d, 3, 2, 2, 2), stride=0), ("conv2d", "stride", "0")),
    "max_pool2d": (lambda d: f.max_pool2d(floats(d, 2, 2), 2), ("max_pool2d", "(2, 2)")),
    "max_pool2d window": (lambda d: f.max_pool2d(floats(d, 1, 1, 2, 2), 3), ("max_pool2d", "(3, 3)", "(1, 1, 2, 2)")),
    "avg_pool2d padding": (lambda d: f.avg_pool2d(floats(d, 1, 1, 4, 4), 2, padding=2), ("avg_pool2d", "half")),
}  # fmt: skip


@pytest.mark.parametrize("case", SHAPES)
def test_shapes_fit(case: str, device: Any) -> None:
    call, parts = SHAPES[case]
    with pytest.raises(ShapeError) as caught:
        call(device)
    assert isinstance(caught.value, ValueError)
    assert [part for part in parts if part not in str(caught.value)] == [], str(caught.value)


INDICES: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "x[3]": (lambda d: floats(d, 3)[3], ("index 3", "axis 0", "(3,)")),
    "x[0, -4]": (lambda d: floats(d, 2, 3)[0, -4], ("index -4", "axis 1", "(2, 3)")),
    "too many": (lambda d: floats(d, 2, 3)[0, 0, 0], ("too many indices: 3", "(2, 3)")),
    "two dots": (lambda d: floats(d, 2, 3)[..., ...], ("(2, 3)",)),
    "step zero": (lambda d: floats(d, 2)[::0], ("step of a slice",)),
    "x[indices]": (lambda d: floats(d, 3)[ints(d, 0, 3)], ("index", "3", "size 3")),
    "take": (lambda d: floats(d, 3, 2).take(ints(d, 0, -4)), ("take", "-4", "size 3")),
    "take int": (lambda d: ints(d, 1, 2).take(ints(d, 5)), ("take", "5", "size 2")),
    "take_along_axis": (lambda d: floats(d, 1, 3).take_along_axis(ints(d, 7).reshape(1, 1)), ("take_along_axis", "7", "size 3")),
    "embedding": (lambda d: f.embedding(floats(d, 3, 2), ints(d, 3)), ("embedding", "3", "size 3")),
    "cross_entropy": (lambda d: f.cross_entropy(floats(d, 2, 3), ints(d, 0, 3)), ("cross_entropy", "3", "less than 3")),
    "cross_entropy below": (lambda d: f.cross_entropy(floats(d, 2, 3), ints(d, 0, -1)), ("cross_entropy", "-1", "at least 0")),
    "one_hot": (lambda d: px.one_hot(ints(d, 0, 3), 3), ("one_hot", "3", "less than 3")),
    "one_hot below": (lambda d: px.one_hot(ints(d, -1), 3), ("one_hot", "-1", "at least 0")),
}  # fmt: skip


@pytest.mark.parametrize("case", INDICES)
def test_indices_are_in_range(case: str, device: Any) -> None:
    call, parts = INDICES[case]
    with pytest.raises(IndexRangeError) as caught:
        call(device)
    assert isinstance(caught.value, IndexError)
    assert [part for part in parts if part not in str(caught.value)] == [], str(caught.value)


def test_indices_out_of_range_are_seen_on_the_tape(device: Any) -> None:
    if not device.backend.differentiates:
        pytest.skip("no tape")
    x = floats(device, 3, 2).require_grad()
    with pytest.raises(IndexRangeError, match="size 3"):
        x.take(ints(device, 3))
    with pytest.raises(IndexRangeError, match="cross_entropy"):
        f.cross_entropy(x, ints(device, 0, 0, 2))


RANGES: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "tensor": (lambda d: px.tensor([1, 2**40], device=d), (str(2**40), "int32", "wider")),
    "tensor below": (lambda d: px.tensor(-(2**31) - 1, device=d), (str(-(2**31) - 1), "int32")),
    "tensor of no backend": (lambda d: px.tensor([2**70], device=d), (str(2**70),)),
    "unsigned": (lambda d: px.tensor(np.array([2**63], np.uint64), device=d), (str(2**63), "int32")),
    "float": (lambda d: px.tensor([1.0, 1e39], device=d), ("1e+39", "float32", "wider")),
    "of a kind": (lambda d: px.tensor([3e9], kind=px.Int, device=d), ("3000000000", "int32")),
    "NaN of a kind": (lambda d: px.tensor([float("nan")], kind=px.Int, device=d), ("nan", "integer")),
    "arange": (lambda d: px.arange(2**31, 2**31 + 2, device=d), (str(2**31 + 1), "int32")),
    "full": (lambda d: px.full((2,), 2**31, device=d), (str(2**31), "int32")),
    "full float": (lambda d: px.full((2,), -1e39, device=d), ("-1e+39", "float32")),
    "full_like": (lambda d: px.full_like(ints(d, 1), 2**31), (str(2**31), "int32")),
    "operand": (lambda d: ints(d, 1) + 2**40, ("add", str(2**40), "int32")),
    "left operand": (lambda d: 2**40 - ints(d, 1), ("sub", str(2**40), "int32")),
    "compared": (lambda d: ints(d, 1) < 2**40, ("less", str(2**40), "int32")),
    "clip": (lambda d: ints(d, 1).clip(-(2**40)), ("clip", str(-(2**40)), "int32")),
    "huge": (lambda d: floats(d, 1) * 10**400, ("mul", "float32")),
    "int()": (lambda d: px.tensor([1.0, 3e9], device=d).int(), ("into_int", "3000000000")),
    "int() of NaN": (lambda d: px.tensor([float("nan")], device=d).int(), ("into_int", "nan")),
    "int() of infinity": (lambda d: px.tensor([float("-inf")], device=d).int(), ("into_int", "-inf")),
    "negative power": (lambda d: ints(d, 2) ** -1, ("pow", "negative", ".float()")),
    "negative powers": (lambda d: ints(d, 2, 3) ** ints(d, 1, -1), ("pow", "negative", ".float()")),
    "step zero": (lambda d: px.arange(0, 5, 0, device=d), ("arange", "zero")),
    "probability": (lambda d: px.random.bernoulli((2,), 1.5, device=d), ("bernoulli", "1.5")),
    "no integers": (lambda d: px.random.integers((2,), 3, 3, device=d), ("integers", "[3, 3)")),
}  # fmt: skip


@pytest.mark.parametrize("case", RANGES)
def test_values_fit(case: str, device: Any) -> None:
    call, parts = RANGES[case]
    with pytest.raises(RangeError) as caught:
        call(device)
    assert isinstance(caught.value, ValueError)
    assert [part for part in parts if part not in str(caught.value)] == [], str(caught.value)


def test_what_fits_is_taken(device: Any) -> None:
    assert px.tensor([2**31 - 1, -(2**31)], device=device).tolist() == [2**31 - 1, -(2**31)]
    assert px.tensor([float("inf"), float("nan")], device=device).numpy()[0] == np.inf
    assert px.tensor([16777217.0], kind=px.Int, device=device).tolist() == [16777217]
    assert px.tensor([2**40], device=NumPy(int="i64")).tolist() == [2**40]
    assert px.tensor([1e39], device=NumPy(float="f64")).tolist() == [1e39]
    assert px.tensor([1.9, -1.9], kind=px.Int, device=device).tolist() == [1, -1]
    assert px.tensor([0.0, 2.0], kind=px.Bool, device=device).tolist() == [False, True]
    assert px.tensor([True, False], kind=px.Float, device=device).tolist() == [1.0, 0.0]
    assert px.tensor([], device=device).kind is px.Float


@pytest.mark.parametrize("operation", ["//", "%"])
def test_integer_division_by_zero(operation: str, device: Any) -> None:
    calls: list[Callable[..., Any]] = [lambda x, y: x // y, lambda x, y: x % y]
    call = calls[operation == "%"]
    name = "floordiv" if operation == "//" else "mod"
    for x, y in ((ints(device, 1, 2), ints(device, 1, 0)), (ints(device, 1, 2), 0), (5, ints(device, 0, 1))):
        with pytest.raises(ZeroDivisionError, match=rf"{name}\(.*Int \(2,\).*by zero"):
            call(x, y)


def test_backends_do_not_mix() -> None:
    x, y, z = (floats(b.device(), 2) for b in (NumPy(), NumPy(float="f64"), Torch()))
    calls: list[Callable[[], Any]] = [
        lambda: x + y, lambda: x < z, lambda: x @ y, lambda: px.where(x > 0.0, y, 0.0), lambda: px.concat([x, z]),
        lambda: f.linear(x, y.reshape(2, 1)), lambda: f.cross_entropy(x.reshape(1, 2), px.arange(1, device=Torch())),
        lambda: x.maximum(z), lambda: x + floats(Autodiff(Torch()).device(), 2),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(BackendError, match=r"different backends.*NumPy.*\.to_device\(") as caught:
            call()
        assert isinstance(caught.value, PhloxError)
    with pytest.raises(KindError, match=r"on NumPy\(\), got Int on Torch\(\)"):
        x.take(px.arange(1, device=Torch()))


def test_unknown_operands_are_left_to_python(device: Any) -> None:
    x = floats(device, 2)
    for call in (lambda: x + "a", lambda: None - x, lambda: x < [1.0, 2.0], lambda: x @ 3.0):
        with pytest.raises(TypeError):
            call()
    assert (x == "a") is False and (x != None) is True  # noqa: E711


@pytest.mark.parametrize(
    "name, parts",
    [
        ("nump", ("'nump'", "'numpy'", "known")),
        ("cuda", ("'cuda'", "jax, numpy, torch")),
        ("", ("''", "known")),
        ("numpy:gpu", ("NumPy()", "'gpu'", "'cpu'")),
        ("numpy:cpu:1", ("'cpu:1'",)),
        ("torch:cpu:1", ("Torch()", "'cpu:1'", "cpu")),
        ("torch:tpu", ("Torch()", "'tpu'", "cpu")),
        ("jax:nonsense", ("Jax()", "'nonsense'", "cpu")),
        ("jax:cpu:99", ("Jax()", "'cpu:99'", "cpu")),
        ("jax:cpu:-1", ("Jax()", "'cpu:-1'")),
        (3, ("3", "numpy")),
    ],
)  # fmt: skip
def test_unknown_devices(name: Any, parts: tuple[str, ...]) -> None:
    with pytest.raises(DeviceError) as caught:
        px.zeros((2,), device=name)
    assert [part for part in parts if part not in str(caught.value)] == [], str(caught.value)
    with pytest.raises(DeviceError), px.default_device(name):
        pass


def test_unknown_elements() -> None:
    for make in (
        lambda: NumPy(float=cast(Any, "f128")),
        lambda: Jax(int=cast(Any, "i8")),
        lambda: Torch(float=cast(Any, "f8")),
    ):
        with pytest.raises(BackendError, match="it has"):
            make()


@pytest.mark.parametrize("engine, name, remedy", [("jax", "Jax", "extra 'jax'"), ("torch", "Torch", "extra 'torch'")])
def test_engines_that_are_not_installed(engine: str, name: str, remedy: str) -> None:
    program = f"""
import sys
sys.modules[{engine!r}] = None  # as if it were not installed
import phlox as px
for ask in (lambda: getattr(px.backend, {name!r}), lambda: px.zeros((2,), device={engine!r})):
    try:
        ask()
    except px.errors.EngineNotInstalledError as error:
        assert isinstance(error, ImportError) and isinstance(error, px.errors.PhloxError)
        print(error)
print(px.ones((2,)).sum().item())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second, value = done.stdout.splitlines()
    assert first == second and name in first and remedy in first and "install Phlox" in first
    assert value == "2.0"
    assert issubclass(EngineNotInstalledError, PhloxError)


def test_a_window_of_more_places_than_a_small_integer_counts() -> None:
    """The gradient of pooling over 33,124 places goes to the last one where that is the greatest."""
    side = 182
    values = np.arange(side * side, dtype=np.float32).reshape(1, 1, side, side)
    x = px.tensor(values, device=Autodiff(NumPy())).require_grad()
    gradient = x.grad(px.functional.max_pool2d(x, side).sum().backward())
    assert gradient is not None
    expected = np.zeros_like(values)
    expected[..., -1, -1] = 1.0
    np.testing.assert_array_equal(gradient.numpy(), expected)
