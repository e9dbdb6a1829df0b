"""The backend and the kind of a tensor as text, for programs that are exported to a file."""

from __future__ import annotations

import json
from typing import Any, cast

from phlox.backend import Backend, Bool, Float, Int
from phlox.backend.registry import load_backend
from phlox.tensor.dispatch import Ops, ops_of


def ops_to_bytes(ops: Ops) -> bytes:
    """Kind, engine and elements, and the tapes above it from the outermost."""
    backend: Backend = ops.backend
    tapes: list[bool] = []
    while backend.inner is not None:
        tapes.append(bool(getattr(backend, "recompute", False)))
        backend = backend.inner
    return json.dumps([ops.kind.name, backend.name, backend.float_element, backend.int_element, tapes]).encode()


def ops_from_bytes(text: bytes) -> Ops:
    """What `ops_to_bytes` has written."""
    from phlox.autodiff import Autodiff

    name, engine, floats, ints, tapes = json.loads(text)
    backend: Backend = cast("Any", load_backend(engine))(float=floats, int=ints)
    for recompute in reversed(tapes):
        backend = Autodiff(backend, recompute=recompute)
    return ops_of(backend, next(kind for kind in (Float, Int, Bool) if kind.name == name))
