"""Shapes that cannot be had say what was asked of what, and what would be right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import BackendError, KindError, PhloxError, RangeError, ShapeError

BACKENDS = [NumPy(), Jax(), Torch(), Autodiff(NumPy())]


def x(device: Any) -> Any:
    return px.ones((2, 3), device=device)


CASES: dict[str, tuple[Callable[[Any], Any], type[PhloxError], tuple[str, ...]]] = {
    "flatten": (lambda d: x(d).flatten(1, 0), ShapeError, ("flatten", "axis 1", "(2, 3)", "axis 0")),
    "unflatten": (lambda d: x(d).unflatten(1, (2, 2)), ShapeError, ("unflatten", "axis 1", "(2, 3)", "(2, 2)")),
    "unflatten rest": (lambda d: x(d).unflatten(1, (2, -1)), ShapeError, ("unflatten", "(2, -1)")),
    "unflatten rests": (lambda d: x(d).unflatten(1, (-1, -1)), ShapeError, ("unflatten", "(-1, -1)")),
    "unflatten word": (lambda d: x(d).unflatten(1, cast(Any, "a")), ShapeError, ("unflatten", "'a'")),
    "moveaxis": (lambda d: x(d).moveaxis(0, 2), ShapeError, ("moveaxis", "axis 2", "(2, 3)")),
    "moveaxis twice": (lambda d: x(d).moveaxis((0, 0), (0, 1)), ShapeError, ("moveaxis", "(0, 0)", "(2, 3)")),
    "moveaxis fewer": (lambda d: x(d).moveaxis((0, 1), 0), ShapeError, ("moveaxis", "(0, 1)")),
    "rot90 one axis": (lambda d: x(d).rot90(1, (0, -2)), ShapeError, ("rot90", "(0, -2)", "(2, 3)")),
    "rot90 vector": (lambda d: x(d)[0].rot90(), ShapeError, ("rot90", "axis 1", "(3,)")),
    "roll axis": (lambda d: x(d).roll(1, 2), ShapeError, ("roll", "axis 2", "(2, 3)")),
    "roll shifts": (lambda d: x(d).roll((1, 2), 0), ShapeError, ("roll", "2 shifts", "1 axes")),
    "roll by half": (lambda d: x(d).roll(cast(Any, 0.5), 0), ShapeError, ("roll", "0.5", "integer")),
    "repeat negative": (lambda d: x(d).repeat(-1, 0), ShapeError, ("repeat", "-1")),
    "repeat each": (lambda d: x(d).repeat([1, 2, 3], 0), ShapeError, ("repeat", "3 repeats", "axis 0", "(2, 3)")),
    "tile negative": (lambda d: x(d).tile((1, -1)), ShapeError, ("tile", "-1")),
    "pad mode": (
        lambda d: x(d).pad(((1, 1), (1, 1)), mode=cast(Any, "mirror")),
        RangeError,
        ("pad", "reflect", "'mirror'"),
    ),
    "pad value": (lambda d: x(d).pad(((1, 1), (1, 1)), 2.0, mode="edge"), RangeError, ("pad", "2.0", "'edge'")),
    "pad nothing": (
        lambda d: px.ones((0, 3), device=d).pad(((1, 0), (0, 0)), mode="edge"),
        ShapeError,
        ("pad", "'edge'", "(0, 3)"),
    ),
    "pad pairs": (lambda d: x(d).pad(((1, 1),), mode="edge"), ShapeError, ("pad", "(2, 3)")),
    "split sizes": (lambda d: x(d).split([1, 1], 1), ShapeError, ("split", "[1, 1]", "axis 1", "(2, 3)")),
    "split none": (lambda d: x(d).split(0), ShapeError, ("split", "0")),
    "chunk none": (lambda d: x(d).chunk(0), ShapeError, ("chunk", "0")),
    "unstack": (lambda d: x(d).unstack(2), ShapeError, ("unstack", "axis 2", "(2, 3)")),
    "unfold size": (lambda d: x(d).unfold(1, 4), ShapeError, ("unfold", "4", "axis 1", "(2, 3)")),
    "unfold step": (lambda d: x(d).unfold(1, 2, 0), ShapeError, ("unfold", "step 0")),
    "tril of a vector": (lambda d: x(d)[0].tril(), ShapeError, ("tril", "(3,)", "matrix")),
    "triu of a number": (lambda d: px.ones((), device=d).triu(), ShapeError, ("triu", "()")),
    "broadcast_arrays": (
        lambda d: px.broadcast_arrays(x(d), px.ones((2,), device=d)),
        ShapeError,
        ("broadcast_arrays", "(2, 3)", "(2,)"),
    ),
    "meshgrid rank": (lambda d: px.meshgrid(x(d)), ShapeError, ("meshgrid", "rank 1", "(2, 3)")),
    "meshgrid order": (
        lambda d: px.meshgrid(x(d)[0], indexing=cast(Any, "yx")),
        RangeError,
        ("meshgrid", "'xy'", "'ij'", "'yx'"),
    ),
    "concat kinds": (
        lambda d: px.concat([x(d), px.zeros((2, 3), kind=px.Int, device=d)]),
        KindError,
        ("concat", "Float", "Int", ".float()"),
    ),
    "concat of arrays": (lambda d: px.concat(cast(Any, [x(d), x(d).numpy()])), KindError, ("concat", "ndarray")),
    "concat of a tensor": (lambda d: px.stack(cast(Any, [1.0, 2.0])), KindError, ("stack", "float")),
    "backends": (
        lambda d: px.broadcast_arrays(x(d), x(NumPy(float="f64"))),
        BackendError,
        ("different backends", ".to_device("),
    ),
}


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("case", CASES)
def test_what_has_no_shape(case: str, backend: Any) -> None:
    call, error, parts = CASES[case]
    with pytest.raises(error) as caught:
        call(backend.device())
    assert [part for part in parts if part not in str(caught.value)] == [], str(caught.value)
