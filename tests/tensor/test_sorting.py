# ruff: noqa: E501
"""What cannot be sorted, searched or counted says what was tried, on what, and what to do instead.

Serves: phlox/backend/jax/sorting.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import IndexRangeError, KindError, PhloxError, ShapeError, UnsupportedError

BACKENDS = [NumPy(), Jax(), Torch(), Autodiff(NumPy()), Autodiff(Jax()), Autodiff(Torch())]
Case = tuple[type[PhloxError], Callable[[Any, Any, Any], Any], tuple[str, ...]]

# On x, Float of shape (2, 3), and i = [1, -2] (Int).
CASES: dict[str, Case] = {
    "sort axis": (ShapeError, lambda x, i, d: x.sort(2), ("sort", "axis 2", "(2, 3)")),
    "argsort axis": (ShapeError, lambda x, i, d: x.argsort(-3), ("argsort", "axis -3", "(2, 3)")),
    "sort of rank 0": (ShapeError, lambda x, i, d: x.sum().sort(), ("sort", "axis -1", "()")),
    "sort of bools": (KindError, lambda x, i, d: (x > 0.0).sort(), ("sort", "Bool", ".int()")),
    "argsort of bools": (KindError, lambda x, i, d: (x > 0.0).argsort(), ("argsort", "Bool", ".int()")),
    "topk of bools": (KindError, lambda x, i, d: (x > 0.0).topk(1), ("topk", "Bool", ".int()")),
    "topk too many": (ShapeError, lambda x, i, d: x.topk(4), ("topk", "4", "axis 1", "(2, 3)")),
    "topk negative": (ShapeError, lambda x, i, d: x.topk(-1), ("topk", "-1")),
    "topk half": (KindError, lambda x, i, d: x.topk(cast("Any", 1.5)), ("topk", "1.5")),
    "searchsorted side": (ShapeError, lambda x, i, d: x.searchsorted(x, side=cast("Any", "middle")), ("searchsorted", "left", "middle")),
    "searchsorted rows": (ShapeError, lambda x, i, d: x.searchsorted(x[0]), ("searchsorted", "(2, 3)", "(3,)")),
    "searchsorted kinds": (KindError, lambda x, i, d: x[0].searchsorted(i), ("searchsorted", "Float", "Int", ".float()")),
    "searchsorted number": (KindError, lambda x, i, d: x[0].searchsorted(1.0), ("searchsorted", "tensor", "float")),
    "isin kinds": (KindError, lambda x, i, d: x.isin(i), ("isin", "Float", "Int", ".float()")),
    "isin list": (KindError, lambda x, i, d: x.isin([1.0]), ("isin", "tensor", "list")),
    "bincount of floats": (KindError, lambda x, i, d: x[0].bincount(), ("bincount", "Int", "Float")),
    "bincount of a matrix": (KindError, lambda x, i, d: i[None].bincount(), ("bincount", "rank 1", "(1, 2)")),
    "bincount negative": (IndexRangeError, lambda x, i, d: i.bincount(), ("bincount", "-2")),
    "bincount weights": (ShapeError, lambda x, i, d: i.abs().bincount(x[0]), ("bincount", "(2,)", "(3,)")),
    "bincount int weights": (ShapeError, lambda x, i, d: i.abs().bincount(i), ("bincount", "Float", "Int")),
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit(case: str, backend: Any) -> None:
    device = backend.device()
    error, call, words = CASES[case]
    with pytest.raises(error) as caught:
        call(px.ones((2, 3), device=device), px.tensor([1, -2], device=device), device)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("call", [lambda i: i.unique(), lambda i: i.bincount()])
def test_shapes_that_depend_on_values_are_refused_in_a_program(call: Callable[[Any], Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"depends on the values.*at\[x\]\.add"):
        px.compile(call)(px.tensor([1, 2], device=Jax().device()))


@pytest.mark.full
def test_compiled_equals_eager() -> None:
    nan, inf = float("nan"), float("inf")
    x = px.tensor(
        [[0.0, -0.0, nan, 1.0, -inf, inf, 1.0, -0.0], [nan, 2.0, 2.0, nan, -1.0, 0.0, inf, 3.0]], device=Jax().device()
    )

    def results(x: Any) -> list[Any]:
        found: list[Any] = []
        for descending in (False, True):
            found += [
                x.sort(descending=descending),
                x.argsort(0, descending=descending),
                *x.topk(5, largest=descending),
            ]
        return [
            *found,
            (x * 4.0).int().sort(),
            x[1].isin(x[0]),
            x.sort().searchsorted(x),
            1.0 / x.sort(descending=True),
        ]

    finite = px.where(x != x, 0.5, px.where(x.abs() > 9.0, 7.0, x))
    for one in (finite, finite * -1.0):
        for compiled, eager in zip(px.compile(results)(one), results(one), strict=True):
            assert compiled.tolist() == eager.tolist()
    places = px.compile(lambda x: [x.argsort(), x.argsort(descending=True), x.topk(5)[1], x.topk(5, largest=False)[1]])(
        x
    )
    eager = [x.argsort(), x.argsort(descending=True), x.topk(5)[1], x.topk(5, largest=False)[1]]
    assert [y.tolist() for y in places] == [y.tolist() for y in eager]
