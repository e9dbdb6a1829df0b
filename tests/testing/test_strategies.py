"""Strategies give what they are asked for, and all of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import find, given
from hypothesis import strategies as st

import phlox as px
from phlox.backend import Bool, Float, Int, Jax, NumPy, Torch
from phlox.testing import strategies as some


@given(st.data())
def test_axes_are_of_the_rank_and_named_once(data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, 4))
    found = data.draw(some.axes(rank, min_size=1))
    assert 1 <= len(found) <= rank and all(-rank <= axis < rank for axis in found)
    assert len({axis % rank for axis in found}) == len(found)
    assert -rank <= data.draw(some.axis(rank)) < rank


@given(some.broadcastable(3))
def test_shapes_that_broadcast(shapes: Any) -> None:
    assert len(shapes) == 3
    np.broadcast_shapes(*shapes)


@pytest.mark.parametrize("backend", [NumPy(), NumPy(float="f16"), NumPy(float="bf16"), Torch(int="i64")], ids=repr)
def test_elements_are_held_exactly(backend: Any) -> None:
    @given(some.tensors(backend, some.shapes(max_dims=2), Float), st.data())
    def floats(x: px.Tensor, data: st.DataObject) -> None:
        assert x.backend == backend and x.kind is Float
        value = data.draw(some.elements(backend))
        assert px.tensor(value, device=backend).item() == value and -8.0 <= value <= 8.0
        whole = data.draw(some.elements(backend, Int))
        assert px.tensor(whole, device=backend).item() == whole

    floats()


@pytest.mark.parametrize("wanted", [np.isnan, np.isposinf, np.isneginf, lambda x: x == 0.0 and np.signbit(x)])
def test_special_values_are_among_them(wanted: Any) -> None:
    find(some.elements(NumPy(), special=True), wanted)


@given(some.tensors(some.devices("numpy", Jax()), (2,), st.sampled_from([Int, Bool])))
def test_devices_and_kinds_may_be_drawn(x: px.Tensor[Any, Any, Any]) -> None:
    assert x.backend in (NumPy(), Jax()) and x.kind in (Int, Bool) and x.shape == (2,)
