"""Tensors as text: kind, shape, device and values, of every kind, precision and state."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import phlox as px
from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch

ON = pytest.mark.parametrize("backend", [NumPy(), Jax(), Torch(), Autodiff(NumPy())], ids=repr)


@ON
def test_values_are_those_of_numpy(backend: Backend) -> None:
    for values in ([1.5, -2.0], [[1, 2], [3, 4]], [True, False], 2.5, np.zeros((0, 3)), np.arange(1000.0)):
        x: Any = px.tensor(values, device=backend)
        shown = repr(x)
        kind = x.kind.__name__
        assert shown.startswith(f"Tensor({kind} {x.shape} on {x.device}:") and shown.endswith(")")
        assert np.array2string(x.numpy(), separator=", ", threshold=50, edgeitems=3, precision=5) in shown


def test_other_element_types_are_named() -> None:
    assert repr(px.tensor([1.0], device=NumPy(float="f64"))).startswith("Tensor(Float[f64] (1,)")
    assert repr(px.tensor([1], device=NumPy(int="i64"))).startswith("Tensor(Int[i64] (1,)")
    assert repr(px.tensor([True], device=NumPy(float="f64", int="i64"))).startswith("Tensor(Bool (1,)")
    half = repr(px.tensor([0.1], device=NumPy(float="bf16")))
    assert half.startswith("Tensor(Float[bf16] (1,)") and "0.10" in half


def test_large_ones_are_short() -> None:
    assert len(repr(px.zeros((1000, 1000)))) < 500


def test_what_has_no_values_yet() -> None:
    seen: list[str] = []

    @px.compile
    def program(x: px.Tensor) -> px.Tensor:
        seen.append(repr(x))
        return x * 2.0

    program(px.ones((2, 3), device="jax"))
    assert seen == ["Tensor(Float (2, 3) on jax:0, traced)"] or "traced" in seen[0]


def test_one_of_a_batch() -> None:
    seen: list[str] = []

    def one(x: px.Tensor) -> px.Tensor:
        seen.append(repr(x))
        return x.sum()

    px.vmap(one)(px.ones((4, 3)))
    assert "(3,)" in seen[0] and "one of 4 examples" in seen[0]


def test_what_a_tree_function_has_put_in_its_place() -> None:
    shown = jax.tree.map(lambda leaf: "a text", px.ones((2,), device="jax"))
    assert "holding 'a text'" in repr(shown)
