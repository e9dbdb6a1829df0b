"""Every operation on every backend: value, gradient and second derivative against references of others."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import pytest

from phlox.backend import Autodiff, Backend, Jax, NumPy, Torch
from phlox.testing import tolerance_of
from phlox.testing.close import compare
from tests.backend.plain import Plain
from tests.tensor import running
from tests.tensor.rows import COMPOSITES, ROWS
from tests.tensor.rows.row import Row, Sample

BACKENDS: list[Backend] = [NumPy(), NumPy(float="f64"), Plain(float="f64"), Jax(), Torch(), Torch(float="f64")]
DIFFERENTIABLE = [row for row in ROWS if any(running.differentiable(row, sample) for sample in row.samples)]


@cache
def references(row: Row) -> list[np.ndarray[Any, Any]]:
    return [running.reference(row, sample) for sample in row.samples + row.specials]


@cache
def true_gradients(row: Row) -> list[list[np.ndarray[Any, Any]]]:
    return [running.true_gradients(row, sample) for sample in row.samples if running.differentiable(row, sample)]


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_value(row: Row, backend: Backend) -> None:
    samples = row.samples + row.specials
    for n, (sample, wanted) in enumerate(zip(samples, references(row), strict=True)):
        what = f"{row.name}, sample {n}"
        with np.errstate(invalid="ignore", over="ignore") if row.noisy else nullcontext():
            check_values(row, sample, wanted, backend, what)


def check_values(row: Row, sample: Sample, wanted: np.ndarray[Any, Any], backend: Backend, what: str) -> None:
    running.check_value(row, row.call(*running.tensors(sample, backend)), wanted, what)
    if backend.name != "jax":  # whose arrays are always in order
        running.check_value(row, row.call(*running.tensors(sample, backend, views=True)), wanted, f"{what}, views")
    tracked = running.tensors(sample, Autodiff(backend))
    running.check_value(row, row.call(*tracked), wanted, f"{what}, Autodiff")
    for i in running.differentiable(row, sample):
        tracked[i] = tracked[i].require_grad()
    running.check_value(row, row.call(*tracked), wanted, f"{what}, on the tape")


@pytest.mark.parametrize("backend", BACKENDS, ids=repr)
@pytest.mark.parametrize("row", DIFFERENTIABLE, ids=str)
def test_gradient(row: Row, backend: Backend) -> None:
    samples = [sample for sample in row.samples if running.differentiable(row, sample)]
    for n, (sample, wanted) in enumerate(zip(samples, true_gradients(row), strict=True)):
        tolerance = tolerance_of(backend).times(4 * row.factor)
        if row.torch is None and backend.float_element == "f64":
            tolerance = running.BY_DIFFERENCES.times(row.factor)
        for i, got, right in zip(
            running.differentiable(row, sample), running.gradients(row, sample, backend), wanted, strict=True
        ):
            compare(got, right, tolerance, f"{row.name}, sample {n}, gradient towards argument {i}")


def check_second(row: Row, backend: Backend) -> None:
    samples = [sample for sample in row.samples if running.differentiable(row, sample)]
    for n, sample in enumerate(samples[:2]):
        places = running.differentiable(row, sample)
        wanted = running.true_second_gradients(row, sample, backend)
        found = running.second_gradients(row, sample, backend)
        for i, got, right in zip(places, found, wanted, strict=True):
            got = np.where(np.isnan(right), np.nan, got)
            what = f"{row.name}, sample {n}, second derivative towards argument {i}"
            compare(got, right, running.BY_DIFFERENCES.times(4 * row.factor), what)


@pytest.mark.parametrize("row", [row for row in DIFFERENTIABLE if row.second], ids=str)
def test_second_derivative(row: Row) -> None:
    check_second(row, NumPy(float="f64"))


@pytest.mark.parametrize("row", [row for row in COMPOSITES if row.second and row in DIFFERENTIABLE], ids=str)
def test_second_derivative_of_composites_on_torch(row: Row) -> None:
    check_second(row, Torch(float="f64"))
