"""The rows of the conformance table as functions of their arrays, for tests on devices that are not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

import phlox as px
from phlox.backend import DeviceLike
from phlox.tensor import Tensor
from phlox.testing.conformance import running
from phlox.testing.conformance.row import Row
from phlox.testing.conformance.rows import ROWS

FAMILIES = sorted({row.call.__module__.rpartition(".")[2] for row in ROWS})


def cases(family: str, backend: Any, taped: DeviceLike) -> Iterator[tuple[str, list[Any], Callable[..., list[Any]]]]:
    """For each row of a family, forward and backward: its name, its arrays, and the function of them.

    A function gives the arrays of the value; or of the gradients, whose inputs are on the device `taped`.
    """
    half = backend.float_element in running.HALVES
    for row in ROWS:
        if row.call.__module__.rpartition(".")[2] != family or (half and not row.half):
            continue
        sample = running.rounded_sample((row.samples + row.specials)[0], backend.float_element)
        if sample is None:
            continue
        arrays = [x.primitive for x in running.tensors(sample, backend) if isinstance(x, Tensor)]
        yield row.name, arrays, partial(_run, row, sample, backend, None)
        if row.samples and running.differentiable(row, sample):
            yield f"{row.name}, backward", arrays, partial(_run, row, sample, backend, taped)


def _run(row: Row, sample: Any, backend: Any, taped: DeviceLike | None, *arrays: Any) -> list[Any]:
    remaining = iter(arrays)
    arguments: list[Any] = []
    for argument in sample:
        kind = running.kind_of(argument) if isinstance(argument, np.ndarray) else None
        arguments.append(argument if kind is None else Tensor.from_primitive(next(remaining), backend, kind))
    if taped is None:
        return [row.call(*arguments).primitive]
    arguments = [px.tensor(x, device=taped) if isinstance(x, Tensor) else x for x in arguments]
    indices = running.differentiable(row, sample)
    for index in indices:
        arguments[index] = arguments[index].require_grad()
    y = row.call(*arguments)
    if not y.is_require_grad():
        return []
    grads = y.sum().backward()
    return [gradient.primitive for index in indices if (gradient := arguments[index].grad(grads)) is not None]
