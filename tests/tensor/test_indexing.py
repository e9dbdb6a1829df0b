# ruff: noqa: E501
"""What cannot be read or written at places says what was tried, on what, and what to do instead.

Serves: phlox/tensor/index_parsing.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import IndexRangeError, KindError, PhloxError, ShapeError, UnsupportedError

BACKENDS = [NumPy(), Jax(), Torch(), Autodiff(NumPy()), Autodiff(Jax()), Autodiff(Torch())]
Case = tuple[type[PhloxError], Callable[[Any, Any, Any, Any], Any], tuple[str, ...]]

# On x of shape (3, 4), i = [0, 3, -5] (Int), m = a mask of shape (3,), device.
CASES: dict[str, Case] = {
    "x[i]": (IndexRangeError, lambda x, i, m, d: x[i], ("index 3", "axis 0", "size 3", "(3, 4)")),
    "x[:, i]": (IndexRangeError, lambda x, i, m, d: x[:, i], ("index -5", "axis 1", "size 4")),
    "x[None, :, i]": (IndexRangeError, lambda x, i, m, d: x[None, :, i], ("index -5", "axis 1", "size 4")),
    "x[i, j]": (IndexRangeError, lambda x, i, m, d: x[[0, 1, 2], i], ("index -5", "axis 1", "size 4")),
    "x[list]": (IndexRangeError, lambda x, i, m, d: x[[0, 5]], ("index 5", "axis 0")),
    "x[0, 0, 0]": (IndexRangeError, lambda x, i, m, d: x[0, 0, 0], ("too many indices: 3", "(3, 4)")),
    "x[..., ...]": (IndexRangeError, lambda x, i, m, d: x[..., ...], ("more than one", "(3, 4)")),
    "x[::0]": (IndexRangeError, lambda x, i, m, d: x[::0], ("step of a slice",)),
    "x.at[i].add": (IndexRangeError, lambda x, i, m, d: x.at[i].add(1.0), ("index 3", "axis 0", "size 3")),
    "x.at[5].set": (IndexRangeError, lambda x, i, m, d: x.at[5].set(1.0), ("index 5", "axis 0")),
    "x.at[:, i].set": (IndexRangeError, lambda x, i, m, d: x.at[:, i].set(1.0), ("index -5", "axis 1")),
    "scatter": (IndexRangeError, lambda x, i, m, d: x.scatter(1, i[None, :], 1.0), ("scatter", "index -5", "size 4")),
    "gather": (IndexRangeError, lambda x, i, m, d: x.gather(1, i[None, :]), ("index -5", "size 4")),
    "shapes of indices": (ShapeError, lambda x, i, m, d: x[i, [0, 1]], ("(3,)", "(2,)", "broadcast")),
    "shape of mask": (ShapeError, lambda x, i, m, d: x[:, m], ("mask", "(3,)", "(4,)", "(3, 4)")),
    "shape of mask written": (ShapeError, lambda x, i, m, d: x.at[:, m].set(0.0), ("mask", "(3,)", "(3, 4)")),
    "shape of value": (ShapeError, lambda x, i, m, d: x.at[0].set(px.ones((3,), device=d)), ("set", "(3,)", "(4,)")),
    "rank of value": (ShapeError, lambda x, i, m, d: x.at[0, 0].add(px.ones((1,), device=d)), ("add", "(1,)", "()")),
    "shape of masked value": (ShapeError, lambda x, i, m, d: x.at[m].mul(px.ones((3,), device=d)), ("mul", "(3,)", "(4,)")),
    "rank of gather": (ShapeError, lambda x, i, m, d: x.gather(0, i), ("gather", "(3,)", "(3, 4)")),
    "scatter too long": (ShapeError, lambda x, i, m, d: x.scatter(0, px.zeros((1, 5), device=d).int(), 1.0), ("scatter", "(1, 5)")),
    "shape of updates": (ShapeError, lambda x, i, m, d: x.scatter(0, i[:1, None], px.ones((2,), device=d)), ("scatter", "(2,)", "(1, 1)")),
    "nonzero of rank 0": (ShapeError, lambda x, i, m, d: x[0, 0].nonzero(), ("nonzero", "rank 0")),
    "masked_fill shape": (ShapeError, lambda x, i, m, d: x.masked_fill(m, 0.0), ("(3,)", "(3, 4)")),
    "float index": (KindError, lambda x, i, m, d: x[px.ones((2,), device=d)], ("Int", "Bool", "Float")),
    "number": (KindError, lambda x, i, m, d: x[1.0], ("float", "integers")),
    "bool": (KindError, lambda x, i, m, d: x[True], ("bool", "masks")),
    "text": (KindError, lambda x, i, m, d: x["a"], ("str", "'a'")),
    "slice of text": (KindError, lambda x, i, m, d: x["a":], ("slice", "integers", "'a'")),
    "list of floats": (KindError, lambda x, i, m, d: x[[0.5]], ("list", "0.5")),
    "int value": (KindError, lambda x, i, m, d: x.at[0].set(px.arange(4, device=d)), ("set", "Float", "Int", ".float()")),
    "value of NumPy": (KindError, lambda x, i, m, d: x.at[0].set(np.arange(4)), ("set", "int64", "phlox.tensor")),
    "value of text": (KindError, lambda x, i, m, d: x.at[0].set("1"), ("set", "Float", "str")),
    "half to ints": (KindError, lambda x, i, m, d: i.at[0].add(0.5), ("add", "Int", "0.5")),
    "add to bools": (KindError, lambda x, i, m, d: m.at[0].add(True), ("add", "Bool", ".int()")),
    "mode": (KindError, lambda x, i, m, d: x.scatter(0, i[:1, None], 1.0, cast("Any", "mean")), ("scatter", "mean")),
    "mask of ints": (KindError, lambda x, i, m, d: x.masked_fill(i, 0.0), ("masked_fill", "Bool", "Int")),
    "masked_select of ints": (KindError, lambda x, i, m, d: x.masked_select(i), ("masked_select", "Bool", "Int")),
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit(case: str, backend: Any) -> None:
    device = backend.device()
    error, call, words = CASES[case]
    x = px.ones((3, 4), device=device)
    i = px.tensor([0, 3, -5], device=device)
    m = px.tensor([True, False, True], device=device)
    with pytest.raises(error) as caught:
        call(x, i, m, device)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("call", [lambda x: x[x > 0.0], lambda x: x.masked_select(x > 0.0), lambda x: x.nonzero()[0]])
def test_shapes_that_depend_on_values_are_refused_in_a_program(call: Callable[[Any], Any]) -> None:
    x = px.tensor([1.0, -1.0], device=Jax().device())
    with pytest.raises(UnsupportedError, match="depends on the values.*where"):
        px.compile(call)(x)


def test_a_mask_may_be_written_in_a_program() -> None:
    x = px.tensor([1.0, -1.0, 3.0], device=Jax().device())
    assert px.compile(lambda x: x.at[x < 2.0].mul(10.0))(x).tolist() == [10.0, -10.0, 3.0]


def test_out_of_range_in_a_program_is_neither_clamped_nor_written() -> None:
    device = Jax().device()
    x, i = px.tensor([[1.0, 2.0], [3.0, 4.0]], device=device), px.tensor([1, 2], device=device)

    def step(x: Any, i: Any) -> list[Any]:
        return [
            x[i],
            x[i, i],
            x.at[i].set(9.0),
            x.at[i, i].add(1.0),
            x.at[:, i].mul(2.0),
            x.scatter(0, i[:, None], 7.0),
        ]

    taken, corners, rows, added, columns, scattered = [y.numpy() for y in px.compile(step)(x, i)]
    np.testing.assert_array_equal(taken, [[3.0, 4.0], [np.nan, np.nan]])
    np.testing.assert_array_equal(corners, [4.0, np.nan])
    np.testing.assert_array_equal(rows, [[1.0, 2.0], [9.0, 9.0]])
    np.testing.assert_array_equal(added, [[1.0, 2.0], [3.0, 5.0]])
    np.testing.assert_array_equal(columns, [[1.0, 4.0], [3.0, 8.0]])
    np.testing.assert_array_equal(scattered, [[1.0, 2.0], [7.0, 4.0]])


@pytest.mark.parametrize("backend", BACKENDS[:3], ids=repr)
def test_of_several_the_last_one_is_set(backend: Any) -> None:
    places = np.random.default_rng(0).integers(0, 50, 4000)
    values = np.arange(4000, dtype=np.float32)
    wanted = np.zeros(50, np.float32)
    for place, value in zip(places, values, strict=True):
        wanted[place] = value
    x = px.zeros((50,), device=backend.device())
    np.testing.assert_array_equal(x.at[places].set(px.tensor(values, device=backend.device())).numpy(), wanted)


@pytest.mark.parametrize("backend", BACKENDS[:3], ids=repr)
def test_writing_leaves_the_tensor_alone(backend: Any) -> None:
    x = px.zeros((3, 2), device=backend.device())
    for key in (0, slice(0, 2), [0, 0], np.array([True, False, True])):
        x.at[key].set(1.0)
        x.at[key].add(1.0)
    assert x.sum().item() == 0.0


@pytest.mark.parametrize("backend", BACKENDS[:3], ids=repr)
def test_a_constant_is_lifted_to_the_tape_of_what_is_written(backend: Any) -> None:
    v = px.tensor([1.0, 2.0], device=Autodiff(backend).device()).require_grad()
    x = px.ones((3,), device=backend.device())
    for key in (slice(1, None), [0, 2], px.tensor([True, False, True], device=backend.device())):
        grads = (x.at[key].mul(v) * 3.0).sum().backward()
        g = v.grad(grads)
        assert g is not None and g.tolist() == [3.0, 3.0]
