"""Tensors where Python and NumPy use numbers and arrays: formats, indices, `round`, NumPy's functions."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import nn
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import CompileError, KindError, ShapeError

BACKENDS = [NumPy(), Jax(), Torch(), NumPy(float="bf16"), Autodiff(NumPy())]
everywhere = pytest.mark.parametrize("backend", BACKENDS, ids=repr)


@everywhere
def test_one_element_is_a_number(backend: Any) -> None:
    loss, count = px.tensor(1.75, device=backend), px.tensor([3], device=backend)
    assert f"{loss:.3f} {count:d} {loss}" == f"1.750 3 {loss!s}"
    assert round(loss, 1) == 1.8 and round(loss) == 2 and math.trunc(loss) == 1 and math.floor(loss) == 1
    assert ["a", "b", "c", "d"][count] == "d" and list(range(count)) == [0, 1, 2] and operator.index(count) == 3
    assert ["cat", "dog"][px.tensor([0.1, 0.9], device=backend).argmax()] == "dog"
    assert complex(loss) == 1.75 and px.ones(count).shape == px.ones((count,)).shape == (3,)
    assert f"{px.ones((2,), device=backend)}".startswith("Tensor")


def test_what_is_no_number_says_so() -> None:
    x = px.ones((2,))
    for use in (lambda: f"{x:.3f}", lambda: round(x, 2), lambda: math.trunc(x)):
        with pytest.raises(ShapeError, match=r"a tensor of shape \(2,\) is not a scalar; select one element first"):
            use()
    with pytest.raises(
        KindError, match=r"an index must be an integer, got a Float tensor; convert with \.int\(\) first"
    ):
        ["a"][px.tensor(0.0)]
    with pytest.raises(ShapeError, match="not a single value"):
        range(px.arange(2))
    with pytest.raises(CompileError, match="is needed while the function is being compiled"):
        px.compile(lambda i: ["a", "b"][i] and i)(px.tensor(0, device=Jax()))


FUNCTIONS = ["sum", "mean", "max", "min", "prod", "std", "var", "any", "all", "argmax", "median", "sort", "squeeze"]


@everywhere
@pytest.mark.parametrize("name", FUNCTIONS)
def test_numpy_computes_on_the_values(backend: Any, name: str) -> None:
    values = np.array([[1.0, 2.0, 0.5], [4.0, 0.25, 8.0]], np.float32)
    x = px.tensor(values, device=backend)
    fn = getattr(np, name)
    for options in ({}, {"axis": 1}) if name != "squeeze" else ({},):
        found: Any = fn(x, **options)
        assert type(found).__module__ == "numpy"
        np.testing.assert_allclose(found, fn(values, **options), rtol=1e-6)


def test_numpy_adds_half_precision_up_in_float32() -> None:
    x = px.ones((10_000,), device=NumPy(float="bf16"))
    assert np.sum(x) == 10_000.0 and np.concatenate([x, x]).sum() == 20_000.0


SIZES = {"i64": np.int64(4), "i32": np.int32(4), "tensor": px.tensor(4), "0-d": np.array(4)}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_sizes_are_whatever_is_an_integer(size: Any) -> None:
    made: list[Any] = [
        nn.Linear(size, size),
        nn.Conv2d(size, size, size),
        nn.Embedding(size, size),
        nn.LayerNorm(size),
        nn.RmsNorm(size),
        nn.GroupNorm(2, size),
        nn.BatchNorm(size),
        nn.Lstm(size, size),
        nn.MultiHeadAttention(size, 2),
        nn.LinearConfig(size, size).init(),
    ]
    for layer in made:
        assert all(type(n) is int for param in layer.params() for n in param.shape)
    assert px.zeros(size).shape == (4,) and px.random.normal(size).shape == (4,)
    assert px.full((size, 1), 2.0).shape == (4, 1) and px.ones((4, 4)).reshape((size, size)).shape == (4, 4)
    assert px.scan(lambda c, _: (c + 1.0, c), px.tensor(0.0), length=size)[0].item() == 4.0
