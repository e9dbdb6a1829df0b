"""Tensors that meet in one operation: all are brought to one backend.

A tensor on B is a constant on `Autodiff(B)`, whose untracked values are B's own arrays: nothing is computed or copied
to take it there. So functions that are differentiated may use tensors from outside. Any other mixture is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phlox.backend import Backend
from phlox.tensor.dispatch import Ops, ops_of
from phlox.tensor.explain import mixed

if TYPE_CHECKING:
    from phlox.tensor.base import TensorBase


def is_below(lower: Backend, upper: Backend) -> bool:
    """Is `upper` a decorator of `lower`, or of such a one?"""
    inner = upper.inner
    return inner is not None and (inner is lower or is_below(lower, inner))


def raised(ops: Ops, other: Ops) -> Ops | None:
    """The table of `ops`' kind on the higher one of two backends; None if neither decorates the other."""
    mine, theirs = ops.backend, other.backend
    if mine is theirs or is_below(theirs, mine):
        return ops
    return ops_of(theirs, ops.kind) if is_below(mine, theirs) else None


def common(name: str, tensors: Sequence[Any]) -> Backend:
    """The highest of the tensors' backends, whatever their kinds; `BackendError` if they have none in common."""
    highest: TensorBase = tensors[0]
    backend = highest._ops.backend  # pyright: ignore[reportPrivateUsage]
    for other in tensors:
        if other._ops.backend is backend:
            continue
        found = raised(highest._ops, other._ops)  # pyright: ignore[reportPrivateUsage]
        if found is None:
            raise mixed(name, highest._ops, other._ops)  # pyright: ignore[reportPrivateUsage]
        if found.backend is not backend:
            highest, backend = other, found.backend
    return backend


def together(name: str, tensors: Sequence[Any]) -> list[Any]:
    """The tensors on the highest of their backends; see `common`."""
    backend = common(name, tensors)
    return [x if x._ops.backend is backend else x._on(backend) for x in tensors]
