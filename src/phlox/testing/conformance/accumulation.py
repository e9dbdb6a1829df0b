# pyright: standard
"""Tests of accumulation precision: sums of thousands, means far from zero, squares beyond the largest f16.

At half precision an operation must accumulate in f32 and round its result once; at f32 long sums must be as accurate as
pairwise summation. Value and gradients of each case are compared with NumPy's backend in float64, which the rest of the
suite compares with independent references.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import phlox as px
from phlox.backend import Autodiff, Backend
from phlox.backend.numpy import NumPy
from phlox.testing.close import compare
from phlox.testing.conformance import running
from phlox.testing.conformance.row import Sample
from phlox.testing.tolerances import Tolerance


@dataclass(frozen=True, eq=False)
class Accumulation:
    """A function of tensors that sums many elements."""

    name: str
    call: Callable[..., Any]
    sample: Sample
    """Arguments: a NumPy array of float64 or int32 becomes a tensor; others are passed unchanged."""
    constant: tuple[int, ...] = ()
    """Float arguments that are not differentiated."""
    factor: float = 1.0
    """Factor of the tolerance, for more than one rounding."""
    ones: bool = False
    """Is the cotangent all ones, so that gradients are plain sums?"""

    def __str__(self) -> str:
        return self.name


_UNIT = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
"""The unit roundoff: half the distance of floats near one."""


def tolerance(row: Accumulation, element: str, right: np.ndarray[Any, Any]) -> Tolerance:
    """The tolerance for a result.

    At half precision, two roundings, of the inputs and of the result, plus the error of f32 where terms cancel. At f32,
    a few hundred roundings, as pairwise sums have; sequential sums have thousands.
    """
    largest = float(np.abs(right[np.isfinite(right)]).max(initial=0.0))
    unit = _UNIT[element] * row.factor
    if element in running.HALVES:
        least = 2.0**-24 if element == "f16" else 0.0
        return Tolerance(2.0 * unit, 4096.0 * _UNIT["f32"] * row.factor * largest + least)
    return Tolerance(256.0 * unit, 2048.0 * unit * largest)


def check(row: Accumulation, backend: Backend) -> None:
    """Check value and gradients of one case; raises `AssertionError`."""
    element = backend.float_element
    expected, expected_gradients = _right(row, element)
    got, gradients = value_and_gradients(row, _rounded(row, element), backend)
    with np.errstate(over="ignore"):
        compare(got, expected, tolerance(row, element, expected), row.name)
        for index, gradient, expected_gradient in zip(_differentiable(row), gradients, expected_gradients, strict=True):
            title = f"{row.name}, gradient towards argument {index}"
            compare(gradient, expected_gradient, tolerance(row, element, expected_gradient), title)


def value_and_gradients(
    row: Accumulation, sample: Sample, backend: Backend, run: Callable[..., Any] | None = None
) -> tuple[np.ndarray[Any, Any], list[np.ndarray[Any, Any]]]:
    """The value and the gradients on `Autodiff(backend)`."""
    arguments = running.tensors(sample, backend if backend.differentiates else Autodiff(backend))
    indices = _differentiable(row)
    for i in indices:
        arguments[i] = arguments[i].require_grad()
    y = (run or row.call)(*arguments)
    got = y.numpy()
    if not indices or not y.is_require_grad():
        return got, [np.zeros_like(sample[i]) for i in indices]
    weights = np.ones(y.shape) if row.ones else running.cotangent(y.shape)
    grads = y.backward(px.tensor(weights, device=y.backend.inner))
    gradients = [arguments[i].grad(grads) for i in indices]
    return got, [np.zeros_like(sample[i]) if g is None else g.numpy() for g, i in zip(gradients, indices, strict=True)]


def _differentiable(row: Accumulation) -> list[int]:
    floats = [i for i, a in enumerate(row.sample) if isinstance(a, np.ndarray) and a.dtype == np.float64]
    return [i for i in floats if i not in row.constant]


def _rounded(row: Accumulation, element: str) -> Sample:
    sample = running.rounded_sample(row.sample, element)
    assert sample is not None, f"{row.name}: numbers too large for {element}"
    return sample


@cache
def _right(row: Accumulation, element: str) -> tuple[np.ndarray[Any, Any], list[np.ndarray[Any, Any]]]:
    """The reference for the sample rounded to a dtype."""
    with np.errstate(all="ignore"):
        return value_and_gradients(row, _rounded(row, element), NumPy(float="f64"))
