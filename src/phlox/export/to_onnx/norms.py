"""Normalisations as operators."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from phlox.backend import Float
from phlox.backend.contract.nn.norm import NormOps
from phlox.backend.contract.types import Array
from phlox.export.to_onnx.graph import current

if TYPE_CHECKING:
    from phlox.export.to_onnx.engine import OnnxEngine


def layer_norm(A: OnnxEngine, x: Array, gamma: Array | None, beta: Array | None, epsilon: float) -> Array:
    """LayerNormalization over the last axis."""
    operands = [x, _ones(A, x) if gamma is None else gamma, *([] if beta is None else [beta])]
    return A.emit("LayerNormalization", operands, A.shape(x), Float, axis=-1, epsilon=float(epsilon))


def rms_norm(A: OnnxEngine, x: Array, gamma: Array | None, epsilon: float) -> Array:
    """RMSNormalization, which operator sets have from 23 on."""
    if current().opset < 23:
        return NormOps.rms_norm(A, x, gamma, epsilon)
    operands = [x, _ones(A, x) if gamma is None else gamma]
    return A.emit("RMSNormalization", operands, A.shape(x), Float, axis=-1, epsilon=float(epsilon))


def _ones(A: OnnxEngine, x: Array) -> Array:
    return A.float_full(A.shape(x)[-1:], 1.0, A.device_of(x))


def group_norm(A: OnnxEngine, x: Array, gamma: Array | None, beta: Array | None, groups: int, epsilon: float) -> Array:
    """InstanceNormalization of the groups as channels; of single channels with their scales."""
    shape: Any = A.shape(x)
    place = A.device_of(x)
    if (groups,) == shape[1:2] and len(shape) > 2:
        scale = A.float_full((groups,), 1.0, place) if gamma is None else gamma
        shift = A.float_full((groups,), 0.0, place) if beta is None else beta
        return A.emit("InstanceNormalization", [x, scale, shift], shape, Float, epsilon=float(epsilon))
    n, channels, *sizes = shape
    rows = A.reshape(x, (n, groups, channels // groups * math.prod(sizes)))
    scales = [A.float_full((groups,), one, place) for one in (1.0, 0.0)]
    y = A.emit("InstanceNormalization", [rows, *scales], A.shape(rows), Float, epsilon=float(epsilon))
    y = A.reshape(y, shape)
    for scale, apply in ((gamma, A.float_mul), (beta, A.float_add)):
        if scale is not None:
            y = apply(y, A.reshape(scale, (channels, *[1 for _ in sizes])))
    return y
