# pyright: standard
"""Whatever adds up does so wide enough: sums of thousands, means far from zero, squares beyond the largest f16.

At half precision an operation accumulates in f32 and rounds its result once; at f32 long sums are as accurate as
pairwise summation makes them. Each case is compared, value and gradients, with the same computation by NumPy's backend
in float64, which the rest of the suite compares with references of others.
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
    """A function of tensors that adds up much."""

    name: str
    call: Callable[..., Any]
    sample: Sample
    """Arguments: a NumPy array of float64 or int32 becomes a tensor; everything else is passed as it is."""
    constant: tuple[int, ...] = ()
    """Float arguments that are not differentiated."""
    factor: float = 1.0
    """How much wider than usual the tolerance is, for more roundings than one."""
    ones: bool = False
    """Is the cotangent of ones, so that gradients are plain sums?"""

    def __str__(self) -> str:
        return self.name


_UNIT = {"f64": 2.0**-53, "f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
"""Half the distance of neighbours about one: what rounding once may lose."""


def tolerance(row: Accumulation, element: str, right: np.ndarray[Any, Any]) -> Tolerance:
    """How far from `right` is close.

    At half precision two roundings, since a result is rounded once and so is what it was made of; and where terms
    cancel as much as f32 loses. At f32 some hundreds, as of sums in pairs: a sum one by one is off by thousands.
    """
    largest = float(np.abs(right[np.isfinite(right)]).max(initial=0.0))
    unit = _UNIT[element] * row.factor
    if element in running.HALVES:
        least = 2.0**-24 if element == "f16" else 0.0
        return Tolerance(2.0 * unit, 4096.0 * _UNIT["f32"] * row.factor * largest + least)
    return Tolerance(256.0 * unit, 2048.0 * unit * largest)


def check(row: Accumulation, backend: Backend) -> None:
    """The value and the gradients of one case; `AssertionError` where they are wrong."""
    element = backend.float_element
    right, slopes = _right(row, element)
    got, found = carried_out(row, _held(row, element), backend)
    with np.errstate(over="ignore"):
        compare(got, right, tolerance(row, element, right), row.name)
        for place, one, wanted in zip(_places(row), found, slopes, strict=True):
            what = f"{row.name}, gradient towards argument {place}"
            compare(one, wanted, tolerance(row, element, wanted), what)


def carried_out(
    row: Accumulation, sample: Sample, backend: Backend, run: Callable[..., Any] | None = None
) -> tuple[np.ndarray[Any, Any], list[np.ndarray[Any, Any]]]:
    """The value and the gradients on `Autodiff(backend)`."""
    arguments = running.tensors(sample, backend if backend.differentiates else Autodiff(backend))
    places = _places(row)
    for i in places:
        arguments[i] = arguments[i].require_grad()
    y = (run or row.call)(*arguments)
    got = y.numpy()
    if not places or not y.is_require_grad():
        return got, [np.zeros_like(sample[i]) for i in places]
    weights = np.ones(y.shape) if row.ones else running.cotangent(y.shape)
    grads = y.backward(px.tensor(weights, device=y.backend.inner))
    found = [arguments[i].grad(grads) for i in places]
    return got, [np.zeros_like(sample[i]) if g is None else g.numpy() for g, i in zip(found, places, strict=True)]


def _places(row: Accumulation) -> list[int]:
    floats = [i for i, a in enumerate(row.sample) if isinstance(a, np.ndarray) and a.dtype == np.float64]
    return [i for i in floats if i not in row.constant]


def _held(row: Accumulation, element: str) -> Sample:
    sample = running.held(row.sample, element)
    assert sample is not None, f"{row.name}: numbers too large for {element}"
    return sample


@cache
def _right(row: Accumulation, element: str) -> tuple[np.ndarray[Any, Any], list[np.ndarray[Any, Any]]]:
    """What is right for the sample as an element type holds it."""
    with np.errstate(all="ignore"):
        return carried_out(row, _held(row, element), NumPy(float="f64"))
