"""Optimizer updates."""

from __future__ import annotations

from typing import Any

from phlox.backend import Float
from phlox.backend.contract.update import AdamScalars
from phlox.backend.tracing.scalar import TracedScalar
from phlox.errors import KindError, ShapeError
from phlox.tensor.backend_promotion import promote
from phlox.tensor.explain import failure
from phlox.tensor.tensor import Tensor, wrap


def adam_update(
    x: Tensor, grad: Tensor, moment_1: Tensor, moment_2: Tensor, numbers: AdamScalars
) -> tuple[Tensor, Tensor, Tensor]:
    """One step of Adam (Kingma, Ba 2015) or AdamW: the new x and the two new moments; see `phlox.optim.Adam`.

    The four tensors are Float and of one shape; else `KindError` or `ShapeError` is raised.

    >>> import phlox as px
    >>> from phlox.backend.contract.update import AdamScalars
    >>> x, g, zero = px.ones((2,)), px.ones((2,)), px.zeros((2,))
    >>> numbers = AdamScalars(0.5, 0.9, 0.999, 0.0, 0.0, True, 0.1, 0.001)
    >>> px.functional.adam_update(x, g, zero, zero, numbers)[0].tolist()
    [0.5, 0.5]
    """
    given: list[Tensor[Any, Any, Any]] = [x, grad, moment_1, moment_2]
    for one in given:
        if one.kind is not Float:
            raise KindError(f"adam_update takes Float tensors, got {one.kind.__name__}; convert with .float() first")
        if one.shape != x.shape:
            raise ShapeError(f"adam_update: tensors of shapes {x.shape} and {one.shape} differ")
    met = promote("adam_update", given)
    ops = met[0]._ops
    arrays = [one.primitive for one in met]
    met_numbers: list[Any] = [x.as_operand(ops.backend, Float) if isinstance(x, TracedScalar) else x for x in numbers]
    numbers = AdamScalars(*met_numbers)
    try:
        updated = ops.backend.adam_update(*arrays, numbers)
    except Exception as error:
        raise failure("adam_update", ops, tuple(arrays), error) from error
    return tuple(wrap(ops, array) for array in updated)  # pyright: ignore[reportReturnType]
