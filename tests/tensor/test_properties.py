"""Indexing, broadcasting and reductions of any shape, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import phlox as px
from phlox.backend import Autodiff, NumPy, Torch
from phlox.errors import PhloxError, ShapeError

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
BACKENDS = [NumPy(), Torch()]


def numbered(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.arange(1.0, np.prod(shape, dtype=int) + 1.0, dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@settings(max_examples=150)
@given(data=st.data())
def test_indexing(backend: Any, data: st.DataObject) -> None:
    values = numbered(data.draw(SHAPES))
    key = data.draw(hnp.basic_indices(values.shape, allow_newaxis=True))
    got = px.tensor(values, device=backend)[key]
    np.testing.assert_array_equal(got.numpy(), values[key])
    x = px.tensor(values, device=Autodiff(backend)).require_grad()
    picked = x[key]
    found = x.grad((picked * picked).sum().backward())
    wanted = np.zeros_like(values)
    wanted[key] = 2.0 * values[key]
    assert found is not None
    np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@settings(max_examples=100)
@given(shapes=hnp.mutually_broadcastable_shapes(num_shapes=2, min_side=0, max_dims=3, max_side=4))
def test_broadcasting(backend: Any, shapes: Any) -> None:
    a, b = (numbered(shape) for shape in shapes.input_shapes)
    x, y = (px.tensor(v, device=Autodiff(backend)).require_grad() for v in (a, b))
    z = x * y
    assert z.shape == shapes.result_shape
    np.testing.assert_array_equal(z.numpy(), a * b)
    grads = z.sum().backward()
    for leaf, mine, other in ((x, a, b), (y, b, a)):
        found = leaf.grad(grads)
        assert found is not None and found.shape == mine.shape
        full = np.broadcast_to(other, z.shape)
        lead = full.sum(tuple(range(full.ndim - mine.ndim)))
        once = tuple(i for i, size in enumerate(mine.shape) if size == 1)
        np.testing.assert_allclose(found.numpy(), lead.sum(once, keepdims=True).reshape(mine.shape), rtol=1e-5)


@settings(max_examples=100)
@given(first=SHAPES, second=SHAPES)
def test_shapes_that_do_not_broadcast_are_refused(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    try:
        wanted = np.broadcast_shapes(first, second)
    except ValueError:
        for backend in BACKENDS:
            with pytest.raises(ShapeError, match="broadcast"):
                _ = px.ones(first, device=backend) + px.ones(second, device=backend)
    else:
        for backend in BACKENDS:
            assert (px.ones(first, device=backend) + px.ones(second, device=backend)).shape == wanted


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@settings(max_examples=100)
@given(data=st.data())
def test_reductions(backend: Any, data: st.DataObject) -> None:
    values = numbered(data.draw(SHAPES))
    axes = data.draw(st.lists(st.integers(0, max(0, values.ndim - 1)), unique=True)) if values.ndim else []
    keepdims = data.draw(st.booleans())
    x = px.tensor(values, device=Autodiff(backend)).require_grad()
    for name in ("sum", "prod", "max"):
        if name == "max" and any(values.shape[axis] == 0 for axis in axes):
            with pytest.raises(ShapeError, match="size 0"):
                x.max(tuple(axes))
            continue
        y = getattr(x / 512.0 + 0.75, name)(tuple(axes), keepdims=keepdims)
        wanted = getattr(np, name)(values / np.float32(512) + np.float32(0.75), axis=tuple(axes), keepdims=keepdims)
        np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-4)
        found = x.grad(y.sum().backward())
        assert found is not None and found.shape == values.shape


@settings(max_examples=100)
@given(key=st.tuples(st.integers(-9, 9), st.integers(-9, 9)), shape=st.tuples(st.integers(0, 4), st.integers(0, 4)))
def test_an_index_is_right_or_refused(key: tuple[int, int], shape: tuple[int, int]) -> None:
    values = numbered(shape)
    try:
        wanted = values[key]
    except IndexError:
        with pytest.raises(PhloxError, match="out of range"):
            px.tensor(values)[key]
    else:
        assert px.tensor(values)[key].item() == wanted
