"""Properties that hold for tensors of any shape, against NumPy and against each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import phlox as px
from phlox.backend import Autodiff, Bool, Float, Int, NumPy, Torch
from phlox.errors import PhloxError, ShapeError
from phlox.testing import assert_close
from phlox.testing import strategies as some
from tests.backend.contract.stranger import Stranger

SHAPES = some.shapes()
BACKENDS = [NumPy(), Torch()]
DEVICES = some.devices(*BACKENDS)
KINDS = st.sampled_from([Float, Int, Bool])


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


# --- properties that tie operations together


@settings(max_examples=100)
@given(data=st.data(), x=some.tensors(DEVICES, SHAPES, KINDS, special=True))
def test_moving_elements_about_can_be_undone(data: st.DataObject, x: px.Tensor) -> None:
    before = x.numpy()
    order = data.draw(st.permutations(range(x.ndim)))
    back = tuple(int(place) for place in np.argsort(order)) if x.ndim else ()
    ways = [
        x.permute_dims(tuple(order)).permute_dims(back),
        x.flatten().reshape(x.shape),
        x.flip().flip(),
        x.expand_dims(0).squeeze(0),
    ]
    if x.ndim:
        axis = data.draw(some.axis(x.ndim))
        cuts = data.draw(st.integers(1, 3))
        if x.shape[axis]:
            ways.append(px.concat(list(x.split(cuts, axis)), axis))
        ways.append(x.roll(cuts, axis).roll(-cuts, axis))
    for y in ways:
        assert y.kind is x.kind
        np.testing.assert_array_equal(y.numpy(), before)


@settings(max_examples=100)
@given(data=st.data(), shapes=some.broadcastable(2), device=DEVICES)
def test_operators_broadcast_as_numpy_does(data: st.DataObject, shapes: Any, device: Any) -> None:
    x, y = (data.draw(some.tensors(device, shape)) for shape in shapes)
    a, b = x.numpy(), y.numpy()
    for got, wanted in (
        (x + y, a + b),
        (x - y, a - b),
        (x * y, a * b),
        (x < y, a < b),
        (x.maximum(y), np.maximum(a, b)),
    ):
        assert got.shape == np.broadcast_shapes(*shapes)
        assert_close(got, wanted)


@settings(max_examples=100)
@given(data=st.data(), x=some.tensors(DEVICES, SHAPES))
def test_axes_in_any_order(data: st.DataObject, x: px.Tensor) -> None:
    axes = data.draw(some.axes(x.ndim))
    keepdims = data.draw(st.booleans())
    wanted = x.numpy().astype(np.float64).sum(axes, keepdims=keepdims)
    # The numbers are of size 8 at most, so what cancels leaves an error of that size.
    assert_close(x.sum(axes, keepdims=keepdims) / 64.0, wanted / 64.0)
    one_by_one = x
    for place in sorted(axis % x.ndim for axis in axes)[::-1]:
        one_by_one = one_by_one.sum(place, keepdims=keepdims)
    assert_close(one_by_one / 64.0, wanted / 64.0)


@settings(max_examples=100)
@given(data=st.data(), x=some.tensors(DEVICES, some.shapes(min_dims=1), st.sampled_from([Float, Int]), special=True))
def test_sorting_permutes(data: st.DataObject, x: px.Tensor) -> None:
    axis = data.draw(some.axis(x.ndim))
    y = x.sort(axis)
    np.testing.assert_array_equal(y.numpy(), np.sort(x.numpy(), axis))
    order = x.argsort(axis)
    np.testing.assert_array_equal(order.numpy(), np.argsort(x.numpy(), axis, kind="stable"))
    np.testing.assert_array_equal(x.take_along_axis(order, axis).numpy(), y.numpy())


@settings(max_examples=60)
@given(data=st.data(), device=some.devices(NumPy(float="f64"), Torch(float="f64"), Stranger(float="f64")))
def test_a_gradient_of_reading_is_writing(data: st.DataObject, device: Any) -> None:
    """<take(x), g> = <x, its adjoint of g>, for any indices, repeated ones too."""
    x = data.draw(some.tensors(px.Device(Autodiff(device.backend), device.name), some.shapes(min_dims=1, min_side=1)))
    axis = data.draw(st.integers(0, x.ndim - 1))
    places = st.integers(-x.shape[axis], x.shape[axis] - 1)
    inner = some.shapes(max_dims=2)
    for along in (False, True):
        shape = (
            tuple(data.draw(inner))
            if not along
            else (*x.shape[:axis], data.draw(st.integers(0, 3)), *x.shape[axis + 1 :])
        )
        index = data.draw(some.tensors(x.device, shape, Int, elements=places))
        leaf = x.require_grad()
        read = leaf.take_along_axis(index, axis) if along else leaf.take(index, axis)
        g = data.draw(some.tensors(device, read.shape))
        found = leaf.grad(read.backward(g))
        assert found is not None
        assert_close((read.inner() * g).sum(), (x.inner() * found).sum().numpy())


@settings(max_examples=60)
@given(data=st.data(), device=DEVICES, sizes=st.tuples(*[st.integers(0, 4)] * 4))
def test_einsum_is_matmul(data: st.DataObject, device: Any, sizes: Any) -> None:
    b, m, k, n = sizes
    x, y = data.draw(some.tensors(device, (b, m, k))), data.draw(some.tensors(device, (b, k, n)))
    wanted = x.numpy().astype(np.float64) @ y.numpy().astype(np.float64) / 256.0
    for product in (x @ y, px.einsum("bmk,bkn->bmn", x, y), px.einsum("bmk,bkn->bnm", x, y).mT):
        assert_close(product / 256.0, wanted)


@settings(max_examples=100)
@given(data=st.data(), x=some.tensors(DEVICES, some.shapes(min_dims=1, min_side=1)))
def test_softmax_is_a_distribution(data: st.DataObject, x: px.Tensor) -> None:
    axis = data.draw(some.axis(x.ndim))
    p = x.softmax(axis)
    assert bool((p >= 0.0).all())
    assert_close(p.sum(axis), np.ones(p.sum(axis).shape))
    assert_close((x + 3.0).softmax(axis), p)
    assert_close(x.log_softmax(axis).exp(), p)


@settings(max_examples=60)
@given(data=st.data(), device=some.devices(NumPy(), Stranger(), Torch()))
def test_integers_are_a_ring_modulo_two_to_the_32(data: st.DataObject, device: Any) -> None:
    x, y, z = (data.draw(some.tensors(device, (3,), Int)) for _ in range(3))
    assert bool(((x + y) + z == x + (y + z)).all())
    assert bool((x * (y + z) == x * y + x * z).all())
    divisor = px.where(y == 0, 1, y)
    assert bool((x // divisor * divisor + x % divisor == x).all())
