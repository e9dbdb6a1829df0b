"""A tensor as text."""

from __future__ import annotations

from typing import Any

import numpy as np

from phlox.backend import Backend, Kind
from phlox.backend.contract.backend import engine_of


def text_of(backend: Backend, kind: type[Kind], primitive: Any) -> str:
    """Kind, shape, device and abbreviated values, or the state of a tensor without values (traced, donated, ...)."""
    narrow = kind.name != "bool" and backend.host_dtype(kind).name not in ("float32", "int32")
    name = f"{kind.__name__}[{_element(backend, kind)}]" if narrow else kind.__name__
    try:
        if backend.is_donated(backend.strip(primitive)):
            return f"Tensor({name} on {backend.name}, donated)"
        head = f"Tensor({name} {backend.shape(primitive)} on {backend.device_of(primitive)}"
        batch = backend.batch_of(primitive)
        if batch:
            return f"{head}, one of {' x '.join(map(str, batch))} examples)"
        if backend.is_traced(primitive):
            ended = engine_of(backend).is_leaked(backend.strip(primitive))
            return f"{head}, leaked from a transformation that has ended)" if ended else f"{head}, traced)"
        host = backend.to_host(primitive)
    except Exception:  # an object that a PyTree function put in the array's place
        return f"Tensor({name} on {backend.name}, holding {primitive!r})"
    if kind.name == "float" and host.dtype.itemsize == 2:
        host = host.astype(np.float32)
    values = np.array2string(host, separator=", ", threshold=50, edgeitems=3, precision=5)
    joint = "\n" if "\n" in values else " "
    return f"{head}:{joint}{values})"


def _element(backend: Backend, kind: type[Kind]) -> str:
    return backend.float_element if kind.name == "float" else backend.int_element
