"""Rows of the conformance table on a batch, against the same call in a loop over its examples.

Serves: phlox/batching/rules/, phlox/batching/build.py
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.backend import Backend, Jax, NumPy, Torch
from phlox.errors import AutodiffError, PhloxError, UnsupportedError
from phlox.testing.conformance import running
from phlox.testing.conformance.row import Row, Sample
from phlox.testing.conformance.rows import ROWS
from tests.backend.plain import Plain

FIRST = list({str(row).split()[0]: row for row in reversed(ROWS) if row.samples}.values())
"""One row of each name."""

SHAPED_BY_VALUES = ("mask", "nonzero", "argwhere", "unique", "bincount", "masked_select")
"""Names of calls whose result's shape depends on values, which differ from example to example."""


def other(argument: Any, row: Row) -> Any:
    """A second example: floats made smaller, integers and truth values in another order."""
    if not isinstance(argument, np.ndarray):
        return argument
    if argument.dtype.kind == "f":
        return np.asarray(argument * 0.75)
    return argument if row.name.startswith("ctc") else np.roll(argument.ravel(), 1).reshape(argument.shape)


def places_of(sample: Sample) -> list[int]:
    return [i for i, argument in enumerate(sample) if isinstance(argument, np.ndarray)]


def choices(count: int) -> list[list[bool]]:
    """Which arguments are batched: all of them, then each one alone."""
    alone = [[i == j for j in range(count)] for i in range(count)]
    return [[True] * count, *(alone if count > 1 else [])]


def looped(row: Row, examples: list[Sample], batched: list[bool], backend: Backend) -> list[Any]:
    found: list[Any] = []
    for example in examples:
        given = list(example)
        for place, flag in zip(places_of(example), batched, strict=True):
            given[place] = example[place] if flag else examples[0][place]
        found.append(row.call(*running.tensors(tuple(given), backend)))
    return found


def vectorised(row: Row, examples: list[Sample], batched: list[bool], backend: Backend) -> Any:
    places = places_of(examples[0])

    def call(*tensors: Any) -> Any:
        given = list(examples[0])
        for place, x in zip(places, tensors, strict=True):
            given[place] = x
        return row.call(*given)

    stacks = [
        np.stack([example[place] for example in examples]) if flag else examples[0][place]
        for place, flag in zip(places, batched, strict=True)
    ]
    tensors = [px.tensor(stack, device=backend) for stack in stacks]
    return px.vmap(call, in_axes=tuple(0 if flag else None for flag in batched))(*tensors)


def compare(row: Row, sample: Sample, batched: list[bool], backend: Backend) -> None:
    examples = [sample, tuple(other(argument, row) for argument in sample)]
    with np.errstate(all="ignore"):
        try:
            wanted = looped(row, examples, batched, backend)
        except PhloxError:  # the second is no sample for this operation
            examples = [sample, sample]
            wanted = looped(row, examples, batched, backend)
        found = vectorised(row, examples, batched, backend)
    what = f"{row} of {running.described(sample)}, batched {batched}, on {backend!r}"
    assert found.kind is wanted[0].kind and found.backend is wanted[0].backend, what
    values, right = found.numpy(), np.stack([y.numpy() for y in wanted])
    assert values.dtype == right.dtype, what
    tolerance = 1e-10 if backend.float_element == "f64" else 5e-5
    np.testing.assert_allclose(values, right, rtol=tolerance, atol=tolerance, err_msg=what)


def check(row: Row, backend: Backend, samples: int, most: int = 9) -> None:
    compared = False
    for sample in row.samples[:samples]:
        for batched in choices(len(places_of(sample)))[:most]:
            if not batched:
                continue
            try:
                compare(row, sample, batched, backend)
            except UnsupportedError as error:
                assert any(name in row.name for name in SHAPED_BY_VALUES), f"{row}: {error}"
                assert "shape of the result depends on" in str(error)
            compared = True
    if not compared:
        pytest.skip("takes no tensor")


@pytest.mark.covering(1)
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_batch_is_a_loop(row: Row) -> None:
    check(row, NumPy(float="f64"), 2)


@pytest.mark.parametrize("row", FIRST, ids=str)
@pytest.mark.parametrize("backend", [Torch(float="f64"), Plain(float="f64")], ids=repr)
def test_a_batch_is_a_loop_on(backend: Backend, row: Row) -> None:
    check(row, backend, 1)


@pytest.mark.parametrize("row", FIRST[::40], ids=str)
def test_a_batch_is_a_loop_on_jax(row: Row) -> None:
    check(row, Jax(), 1, 1)


def gradients(row: Row, sample: Sample, backend: Backend) -> list[tuple[Any, Any]]:
    """Towards each Float argument of two examples: by `vmap(grad)`, and one by one."""
    places = running.differentiable(row, sample)
    examples = [sample, tuple(other(a, row) if i in places else a for i, a in enumerate(sample))]

    def at(place: int, given: Sample) -> Any:
        def weighed(x: Any) -> Any:
            tensors = running.tensors(given, backend)
            y = row.call(*tensors[:place], x, *tensors[place + 1 :])
            return (y * px.tensor(running.cotangent(y.shape), device=backend)).sum()

        return weighed

    found: list[tuple[Any, Any]] = []
    for place in places:
        xs = [px.tensor(example[place], device=backend) for example in examples]
        one_by_one = [px.grad(at(place, sample))(x) for x in xs]
        if one_by_one[0] is not None:
            found.append((px.vmap(px.grad(at(place, sample)))(px.stack(xs)), px.stack(one_by_one)))
    return found


@pytest.mark.parametrize("row", [row for row in FIRST if row.gradient], ids=str)
def test_gradients_of_each_example(row: Row) -> None:
    """Through the derivative rules on `Autodiff(Batched(B))`."""
    sample = row.samples[0]
    if not running.differentiable(row, sample):
        pytest.skip("nothing to differentiate towards")
    with np.errstate(all="ignore"):
        try:
            pairs = gradients(row, sample, NumPy(float="f64"))
        except UnsupportedError as error:
            assert any(name in row.name for name in SHAPED_BY_VALUES), f"{row}: {error}"
            return
        except AutodiffError as error:
            assert "no tape" in str(error) or "no input of this tensor requires gradients" in str(error)
            pytest.skip("is constant")
    for found, wanted in pairs:
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-9, atol=1e-9)
