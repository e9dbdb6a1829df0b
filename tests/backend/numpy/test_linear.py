"""Linear maps and rectifiers on NumPy, whose shortest ways depend on the number of rows and on the element type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox import functional
from phlox.backend import NumPy

ELEMENTS: dict[str, Any] = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("leading", [(0,), (1,), (2,), (9,), (), (1, 1), (2, 3), (1, 0)], ids=str)
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_of_any_number_of_rows(element: str, leading: tuple[int, ...], with_bias: bool) -> None:
    backend, rng = NumPy(float=element), np.random.default_rng(0)  # pyright: ignore[reportArgumentType]
    x, weight, bias = (rng.standard_normal(shape) for shape in ((*leading, 5), (7, 5), (7,)))
    mine, by, added = (px.tensor(array, device=backend) for array in (x, weight, bias))
    before = mine.numpy().copy()
    wanted = np.matmul(x, weight.T) + (bias if with_bias else 0.0)
    got = functional.linear(mine, by.T, added if with_bias else None).numpy()
    assert got.dtype == ELEMENTS[element] and got.shape == wanted.shape
    tolerance = 2e-2 if element == "f16" else 1e-5
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(mine.numpy(), before)


@pytest.mark.parametrize("element", ELEMENTS)
def test_relu_of_any_element(element: str) -> None:
    values = [-np.inf, -1.5, -0.0, 0.0, 2.5, np.inf, np.nan]
    got = px.tensor(values, device=NumPy(float=element)).relu().numpy()  # pyright: ignore[reportArgumentType]
    assert got.dtype == ELEMENTS[element]
    np.testing.assert_array_equal(got, [0.0, 0.0, 0.0, 0.0, 2.5, np.inf, np.nan])
