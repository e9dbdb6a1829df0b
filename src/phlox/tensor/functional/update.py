"""Optimizer updates."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import Any

from phlox.backend import Backend, Float
from phlox.backend.contract.update import AdamScalars
from phlox.backend.tracing.scalar import TracedScalar
from phlox.errors import KindError, ShapeError
from phlox.tensor.backend_promotion import promote
from phlox.tensor.explain import failure
from phlox.tensor.tensor import Tensor, wrap

__all__ = ["adam_update"]


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
    return update_by_adam(x, grad, moment_1, moment_2, numbers)


def update_by_adam(
    x: Tensor, grad: Tensor, moment_1: Tensor, moment_2: Tensor, scalars: AdamScalars
) -> tuple[Tensor, Tensor, Tensor]:
    """Like `adam_update`, for optimizers: it does not explain wrong arguments."""
    ops = x._ops
    if not (ops.kind is Float and ops is grad._ops is moment_1._ops is moment_2._ops):
        x, grad, moment_1, moment_2 = _promote(x, grad, moment_1, moment_2)
        ops = x._ops
    arrays = x.primitive, grad.primitive, moment_1.primitive, moment_2.primitive
    shape = ops.shape(arrays[0])
    for array in arrays:
        if ops.shape(array) != shape:
            raise ShapeError(f"adam_update: tensors of shapes {shape} and {ops.shape(array)} differ")
    for scalar in scalars:
        if isinstance(scalar, TracedScalar):
            scalars = as_operands(scalars, ops.backend)
            break
    try:
        new, new_moment_1, new_moment_2 = ops.backend.adam_update(*arrays, scalars)
    except Exception as error:
        raise failure("adam_update", ops, arrays, error) from error
    return wrap(ops, new), wrap(ops, new_moment_1), wrap(ops, new_moment_2)


def as_operands(scalars: AdamScalars, backend: Backend) -> AdamScalars:
    """The scalars, of which traced ones become operands of a backend beside its floats."""
    plain: list[Any] = [x.as_operand(backend, Float) if isinstance(x, TracedScalar) else x for x in scalars]
    return AdamScalars(*plain)


def _promote(*tensors: Tensor) -> list[Any]:
    for x in tensors:
        if x.kind is not Float:
            raise KindError(f"adam_update takes Float tensors, got {x.kind.__name__}; convert with .float() first")
    return promote("adam_update", tensors)
