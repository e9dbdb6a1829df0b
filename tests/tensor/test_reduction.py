"""Reductions and scans that cannot be done say what was asked of what, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.errors import KindError, PhloxError, RangeError, ShapeError

BACKENDS = [NumPy(), Jax(), Torch(), Autodiff(NumPy())]

CASES: dict[str, tuple[Callable[[Any], Any], type[PhloxError], tuple[str, ...]]] = {
    "median of nothing": (lambda d: px.zeros((0, 3), device=d).median(0), ShapeError, ("median", "(0, 3)", "size 0")),
    "quantile of nothing": (lambda d: px.zeros((0,), device=d).quantile(0.5), ShapeError, ("quantile", "(0,)")),
    "quantile outside": (lambda d: px.ones((2,), device=d).quantile([0.5, 1.5]), RangeError, ("quantile", "1.5")),
    "quantile NaN": (lambda d: px.ones((2,), device=d).quantile(float("nan")), RangeError, ("quantile", "nan")),
    "quantile word": (lambda d: px.ones((2,), device=d).quantile(cast(Any, "half")), KindError, ("quantile", "'half'")),
    "quantile of no q": (lambda d: px.ones((2,), device=d).quantile([]), ShapeError, ("quantile", "empty")),
    "quantile method": (
        lambda d: px.ones((2,), device=d).quantile(0.5, method=cast(Any, "cubic")),
        RangeError,
        ("quantile", "linear", "nearest", "'cubic'"),
    ),
    "quantile of ints": (lambda d: px.arange(3, device=d).quantile(0.5), KindError, ("quantile", "Int", ".float()")),
    "median of ints": (lambda d: px.arange(3, device=d).median(), KindError, ("median", "Int", ".float()")),
    "mean of ints": (lambda d: px.arange(3, device=d).mean(), KindError, ("mean", "Int", ".float()")),
    "norm of ints": (lambda d: px.arange(3, device=d).norm(), KindError, ("norm", "Int", ".float()")),
    "norm of a word": (lambda d: px.ones((2,), device=d).norm(cast(Any, "fro")), RangeError, ("norm", "'fro'")),
    "norm of NaN": (lambda d: px.ones((2,), device=d).norm(float("nan")), RangeError, ("norm", "nan")),
    "greatest of nothing": (
        lambda d: px.zeros((0,), device=d).norm(float("inf")),
        ShapeError,
        ("norm", "(0,)", "size 0"),
    ),
    "norm axis": (lambda d: px.ones((2,), device=d).norm(axis=1), ShapeError, ("norm", "axis 1", "(2,)")),
    "sum of truths": (lambda d: px.tensor([True], device=d).sum(), KindError, ("sum", "Bool", ".int()")),
    "any of floats": (lambda d: px.ones((2,), device=d).any(), KindError, ("any", "Float", ".bool()")),
    "all of ints": (lambda d: px.arange(2, device=d).all(), KindError, ("all", "Int", ".bool()")),
    "cumprod axis": (lambda d: px.ones((2,), device=d).cumprod(1), ShapeError, ("cumprod", "axis 1", "(2,)")),
    "cummax of one": (lambda d: px.ones((), device=d).cummax(0), ShapeError, ("cummax", "axis 0", "()")),
    "cumprod of truths": (lambda d: px.tensor([True], device=d).cumprod(0), KindError, ("cumprod", "Bool", ".int()")),
    "logcumsumexp of ints": (lambda d: px.arange(3, device=d).logcumsumexp(0), KindError, ("Int", ".float()")),
    "diff backwards": (lambda d: px.ones((2,), device=d).diff(-1), RangeError, ("diff", "-1")),
    "diff of truths": (lambda d: px.tensor([True, False], device=d).diff(), KindError, ("sub", "Bool", ".int()")),
    "axis by half": (lambda d: px.ones((2,), device=d).std(cast(Any, 0.5)), KindError, ("std", "0.5", "integer")),
}


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_reduced(case: str, backend: Any) -> None:
    call, error, parts = CASES[case]
    with pytest.raises(error) as caught:
        call(backend.device())
    assert [part for part in parts if part not in str(caught.value)] == [], str(caught.value)
