"""Arrays out of nothing: constants, unless a size is open."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from phlox.backend import Int
from phlox.backend.contract.types import Array, Shape
from phlox.backend.device import Device
from phlox.backend.kind import KINDS
from phlox.backend.tracing.dimension import is_open
from phlox.export.to_onnx.graph import current

if TYPE_CHECKING:
    from phlox.export.to_onnx.engine import OnnxEngine


def full(kind: str) -> Callable[..., Array]:
    """Expand of a scalar."""

    def rule(A: OnnxEngine, shape: Shape, value: float, device: Device) -> Array:
        if not any(map(is_open, shape)) and not is_open(value):
            return getattr(A.inner, f"{kind}_full")(tuple(shape), value, device.on(A.inner))
        return filled(A, shape, value, kind)

    return rule


def filled(A: OnnxEngine, shape: Shape, value: float, kind: str) -> Array:
    """A value of the graph, every element of which is one number."""
    scalar = A.scalar(value, KINDS[kind])
    made = A.emit("Expand", [scalar, current().vector(shape)], shape, KINDS[kind])
    made.fill = None if is_open(value) else value
    return made


def arange(A: OnnxEngine, start: int, stop: int, step: int, device: Device) -> Array:
    """Range."""
    if not any(map(is_open, (start, stop, step))):
        return A.inner.int_arange(start, stop, step, device.on(A.inner))
    graph, dtype, number = current(), A.host_dtype(Int), A.type_of(Int)
    bounds = [graph.scalar_size(one, np.dtype(dtype), number) for one in (start, stop, step)]
    return A.emit("Range", bounds, (-(-(stop - start) // step),), Int)


def refuse_random(A: OnnxEngine, *arguments: Any) -> Array:
    """Raise `ExportError`: random draws, which differ in each call, cannot be exported."""
    raise current().refuse(
        "draws random numbers, which an exported model does not; export model.valid(), or pass what is drawn as an "
        "input"
    )
