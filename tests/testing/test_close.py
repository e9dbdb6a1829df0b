"""`assert_close` passes what is close, as NumPy's `isclose` has it, and says what differs.

Serves: phlox/testing/tolerances.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import phlox as px
from phlox.backend import Autodiff, Jax, NumPy, Torch
from phlox.testing import TOLERANCES, Tolerance, assert_close, tolerance_of
from phlox.testing.close import compare

NAN, INF = float("nan"), float("inf")
FLOATS = st.sampled_from([0.0, -0.0, 1.0, 1.1, 1.01, -1.0, 1e30, np.inf, -np.inf, np.nan])


@given(st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=5))
def test_it_is_that_of_numpy(pairs: list[tuple[float, float]]) -> None:
    got, wanted = (np.array(column) for column in zip(*pairs, strict=True))
    off = int((~np.isclose(got, wanted, rtol=0.05, atol=0.01, equal_nan=True)).sum())
    if off == 0:
        compare(got, wanted, Tolerance(0.05, 0.01), "x")
    else:
        with pytest.raises(AssertionError, match=f"x: {off} of {len(pairs)} elements are off"):
            compare(got, wanted, Tolerance(0.05, 0.01), "x")


def test_close() -> None:
    for backend in (NumPy(), Jax(), Torch(float="f64")):
        x = px.tensor([1.0, NAN, INF, -INF, 0.0], device=backend)
        assert_close(x, [1.0, NAN, INF, -INF, -0.0])
        assert_close(x, x)
        assert_close(px.zeros((0, 2), device=backend), np.zeros((0, 2)))
        assert_close(px.tensor([1, 2], device=backend), [1, 2])
    assert_close(px.tensor([1.0, 2.0]), px.tensor([1.0, 2.0 + 1e-6], device=Torch()))
    assert_close(px.tensor([1.0, 2.0]), [1.1, 2.2], tolerance=Tolerance(0.1, 0.0))


@pytest.mark.parametrize(
    "actual, expected, parts",
    [
        (px.ones((2, 3)), np.ones(3), ("y", "(2, 3)", "(3,)")),
        (px.tensor([1.0, 2.0, 3.0]), [1.0, 2.5, 4.0], ("y", "2 of 3", "(2,)", "3.0", "4.0", "rtol=1e-05")),
        (px.tensor([1.0]), [NAN], ("1 of 1", "nan")),
        (px.tensor([NAN]), [1.0], ("1 of 1", "got nan")),
        (px.tensor([1.0]), [INF], ("got 1.0, expected inf",)),
        (px.tensor([INF]), [-INF], ("got inf, expected -inf",)),
        (px.tensor([1, 2]), [1, 3], ("got 2.0, expected 3.0", "rtol=0")),
        (px.tensor([True]), [False], ("1 of 1",)),
        (px.tensor([1.0], device=NumPy(float="f64")), [1.0 + 1e-9], ("rtol=1e-11",)),
    ],
)
def test_not_close(actual: Any, expected: Any, parts: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_close(actual, expected, name="y")
    assert [part for part in parts if part not in str(caught.value)] == [], str(caught.value)


def test_tolerances() -> None:
    for backend in (NumPy(), NumPy(float="f64"), Jax(float="bf16"), Torch(float="f16"), Autodiff(NumPy())):
        assert tolerance_of(backend) is TOLERANCES[backend.float_element]
    assert Tolerance(1e-3, 1e-4).times(2.0) == Tolerance(2e-3, 2e-4)
    order = [TOLERANCES[name] for name in ("f64", "f32", "f16", "bf16")]
    assert order == sorted(order)
