"""The shape and kind of every operation without values, against those of NumPy's with values, forward and backward.

Serves: phlox/transform/abstract/rules.py
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from phlox.backend import Autodiff, Backend, Float, NumPy
from phlox.backend.contract.catalogue import DERIVED, OPERATIONS, REQUIRED
from phlox.errors import AutodiffError, PhloxError, UnsupportedError
from phlox.tensor import Tensor
from phlox.testing.conformance import running
from phlox.testing.conformance.row import Row
from phlox.testing.conformance.rows import ROWS
from phlox.transform.abstract import Abstract
from phlox.transform.abstract.rules import FROM_NOTHING, RULES

SHAPED_BY_VALUES = {"bool_flatnonzero"}
"""The operations whose result's shape depends on values; they are refused."""


def blank_like(x: Any, backend: Backend, abstract: Abstract) -> Any:
    if not isinstance(x, Tensor):
        return x
    return Tensor.from_primitive(abstract.blank(x.shape, x.kind), backend, x.kind)


def test_every_operation_is_covered() -> None:
    known = set(RULES) | set(FROM_NOTHING)
    assert not set(RULES) & set(FROM_NOTHING)
    assert known - {"barrier", "rounded"} <= OPERATIONS, "a rule for what is no operation"
    missing = OPERATIONS - known
    assert not missing & REQUIRED, "what a backend must have needs a rule"
    hosted = {name for name in missing if "on_host(" in inspect.getsource(getattr(DERIVED[name], name))}
    # Of more elements than its integers can count, `bool_count_nonzero` goes to the host; it is refused there.
    assert hosted == SHAPED_BY_VALUES | {"bool_count_nonzero"}, "what runs on the host needs a rule"


@pytest.mark.covering(1)
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_shapes_and_kinds(row: Row) -> None:
    backend = NumPy()
    abstract = Abstract(backend)
    for sample in row.samples:
        given = running.tensors(sample, backend)
        with np.errstate(all="ignore"):
            try:
                wanted = row.call(*given)
            except PhloxError:
                continue  # no sample for f32
        try:
            found = row.call(*[blank_like(x, abstract, abstract) for x in given])
        except UnsupportedError as error:
            assert "shape of the result depends on the values" in str(error), row
            continue
        assert (found.shape, found.kind) == (wanted.shape, wanted.kind), running.described(sample)


@pytest.mark.covering(1)
@pytest.mark.parametrize("element", ["f32", "bf16"])
@pytest.mark.parametrize("row", [row for row in ROWS if row.gradient], ids=str)
def test_gradients(row: Row, element: Any) -> None:
    backend = NumPy(float=element)
    abstract = Abstract(backend)
    taped = Autodiff(abstract)
    for sample in row.samples[:2]:
        given = [blank_like(x, taped, abstract) for x in running.tensors(sample, backend)]
        for place in running.differentiable(row, sample):
            given[place] = given[place].require_grad()
        try:
            y = row.call(*given)
            if y.kind is not Float:
                continue
            grads = y.sum().backward()
        except (UnsupportedError, AutodiffError) as error:
            assert "depends on the values" in str(error) or "requires gradients" in str(error), row
            continue
        for place in running.differentiable(row, sample):
            found = given[place].grad(grads)
            assert found is None or (found.shape, found.kind) == (given[place].shape, given[place].kind)
