"""The backend and the kind of a tensor as text, for programs that are exported to a file."""

from __future__ import annotations

import json
from typing import Any, cast

from phlox.backend import Backend, Bool, Decorator, Float, Int
from phlox.backend.registry import load_backend, load_decorator
from phlox.tensor.dispatch import Ops, ops_of


def ops_to_bytes(ops: Ops) -> bytes:
    """Kind, engine and elements, and the decorators above it from the outermost."""
    backend: Backend = ops.backend
    decorators: list[tuple[str, dict[str, Any]]] = []
    while isinstance(backend, Decorator):
        decorators.append(backend.spec())
        backend = backend.inner
    return json.dumps([ops.kind.name, backend.name, backend.float_element, backend.int_element, decorators]).encode()


def ops_from_bytes(text: bytes) -> Ops:
    """What `ops_to_bytes` has written."""
    name, engine, floats, ints, decorators = json.loads(text)
    backend: Backend = cast("Any", load_backend(engine))(float=floats, int=ints)
    for decorator, options in reversed(decorators):
        backend = load_decorator(decorator)(backend, **options)
    return ops_of(backend, next(kind for kind in (Float, Int, Bool) if kind.name == name))
