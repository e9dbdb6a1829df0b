"""Backend promotion: bring the operands of one operation to one backend.

A tensor on B is a constant on `Autodiff(B)` and on `Batched(B)`: their untracked or unbatched values are B's own
arrays, so promotion computes and copies nothing. A differentiated or vectorised function may therefore use tensors from
outside. Any other mixture of backends is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phlox.backend import Backend
from phlox.batching import innermost, is_below, joined
from phlox.tensor.dispatch import ops_of
from phlox.tensor.explain import mixed

__all__ = ["common_backend", "is_below", "joined", "on_vmap_backend", "promote"]


def common_backend(name: str, tensors: Sequence[Any]) -> Backend:
    """The lowest backend that can hold all of the tensors, of any kinds; `BackendError` if there is none."""
    backend: Backend = tensors[0]._ops.backend
    for other in tensors[1:]:
        if other._ops.backend is not backend:
            common = joined(backend, other._ops.backend)
            if common is None:
                raise mixed(name, ops_of(backend, tensors[0]._ops.kind), other._ops)
            backend = common
    return backend


def promote(name: str, tensors: Sequence[Any]) -> list[Any]:
    """The tensors, promoted to one backend; see `common_backend`."""
    backend = common_backend(name, tensors)
    return [x if x._ops.backend is backend else x._on(backend) for x in tensors]


def on_vmap_backend(x: Any) -> Any:
    """The tensor on the backend of the innermost `phlox.vmap`; a tensor from outside is the same for all examples."""
    frame = innermost()
    backend = None if frame is None else joined(x._ops.backend, frame.backend)
    return x if backend is None or backend is x._ops.backend else x._on(backend)
