"""Matrix products, convolutions, attention and normalisations as operators."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from phlox.backend import Float
from phlox.backend.contract.nn.attention import AttentionOps, Mask, Weighting
from phlox.backend.contract.nn.conv import ConvOps
from phlox.backend.contract.nn.norm import NormOps
from phlox.backend.contract.types import Array, Shape, Widths
from phlox.backend.tracing.dimension import broadcast_sizes, is_open
from phlox.export.to_onnx.graph import current
from phlox.transform.abstract.rules import RULES as SHAPES

if TYPE_CHECKING:
    from phlox.export.to_onnx.engine import OnnxEngine


def matmul(A: OnnxEngine, x: Array, y: Array) -> Array:
    """MatMul."""
    (*left, m, _), (*right, _, n) = A.shape(x), A.shape(y)
    return A.emit("MatMul", [x, y], (*broadcast_sizes([tuple(left), tuple(right)]), m, n), A.kind_of(x))


def linear(A: OnnxEngine, x: Array, weight: Array, bias: Array | None) -> Array:
    """Gemm for two matrices; for more axes MatMul and Add, which runtimes fuse."""
    *batch, _ = A.shape(x)
    shape = (*batch, A.shape(weight)[1])
    if len(batch) == 1 and bias is not None:
        made_by = getattr(weight, "made_by", None)
        if made_by is not None and made_by[0] == "transpose":
            return A.emit("Gemm", [x, made_by[1], bias], shape, Float, transB=1)
        return A.emit("Gemm", [x, weight, bias], shape, Float)
    y = A.emit("MatMul", [x, weight], shape, Float)
    return y if bias is None else A.float_add(y, bias)


def conv(
    A: OnnxEngine,
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Shape,
    padding: Widths,
    dilation: Shape,
    groups: int,
) -> Array:
    """Conv; padding whose width depends on an open size is an operator of its own."""
    if not 1 <= len(stride) <= 3:
        return ConvOps.conv(A, x, weight, bias, stride, padding, dilation, groups)
    x, padding = pad_first(A, x, padding, 0.0)
    shape = SHAPES["conv"](A, x, weight, bias, stride, padding, dilation, groups).shape
    operands = [x, weight] if bias is None else [x, weight, bias]
    return A.emit(
        "Conv", operands, shape, Float, **window(A.shape(weight)[2:], stride, padding, dilation), group=groups
    )


def pad_first(A: OnnxEngine, x: Array, padding: Widths, value: float) -> tuple[Array, Widths]:
    """x, padded if a width is open, and the padding that is left."""
    if not any(is_open(width) for pair in padding for width in pair):
        return x, padding
    return A.pad(x, ((0, 0), (0, 0), *padding), value), ((0, 0),) * len(padding)


def window(sides: Shape, stride: Shape, padding: Widths, dilation: Shape) -> dict[str, Any]:
    """The attributes of operators with windows."""
    pads = [before for before, _ in padding] + [after for _, after in padding]
    options = {"kernel_shape": list(sides), "strides": list(stride)}
    options |= {"pads": pads} if any(pads) else {}
    return options | ({"dilations": list(dilation)} if any(step != 1 for step in dilation) else {})


def conv_dx(
    A: OnnxEngine, g: Array, weight: Array, shape: Shape, stride: Shape, padding: Widths, dilation: Shape, groups: int
) -> Array:
    """ConvTranspose."""
    sides, counts = A.shape(weight)[2:], A.shape(g)[2:]
    if not 1 <= len(stride) <= 3 or any(is_open(width) for pair in padding for width in pair):
        return ConvOps.conv_dx(A, g, weight, shape, stride, padding, dilation, groups)
    extra: list[int] = []
    for want, count, side, step, pair, wide in zip(
        shape[2:], counts, sides, stride, padding, dilation, strict=True
    ):  # fmt: skip
        extra.append(want - ((count - 1) * step + wide * (side - 1) + 1 - sum(pair)))
    if any(map(is_open, extra)):
        raise current().refuse(
            f"a transposed convolution from {counts} to {shape[2:]}: how much is added at the end depends on an open "
            "size; close that axis"
        )
    options = window(sides, stride, padding, dilation) | ({"output_padding": extra} if any(extra) else {})
    return A.emit("ConvTranspose", [g, weight], shape, Float, **options, group=groups)


def det(A: OnnxEngine, a: Array) -> Array:
    """Det."""
    return A.emit("Det", [a], A.shape(a)[:-2], Float)


def attention(
    A: OnnxEngine, query: Array, key: Array, value: Array, bias: Mask, allowed: Mask, kept: Mask, weighting: Weighting
) -> Array:
    """Attention, an operator from opset 23 on; otherwise its products around a Softmax."""
    if kept is not None:
        return AttentionOps.attention(A, query, key, value, bias, allowed, kept, weighting)
    causal, scale, _ = weighting
    batch, heads, n, _ = A.shape(query)
    m, width = A.shape(value)[2:]
    shape = (batch, heads, n, width)
    if current().opset >= 23 and allowed is None and bias is None:
        options = {"is_causal": 1} if causal else {}
        return A.emit("Attention", [query, key, value], shape, Float, scale=float(scale), **options)
    scores = _products(A, A.float_mul(query, scale), key, heads, n)
    scores = scores if bias is None else A.float_add(scores, bias)
    seen = allowed
    if causal:
        earlier = A._causal(query, n, m)  # pyright: ignore[reportPrivateUsage]
        seen = earlier if seen is None else A.bool_and(seen, earlier)
    if seen is not None:
        scores = A.where(seen, scores, -math.inf)
    weights = A.softmax(scores, 3)
    # A query that sees no key gets zeros, where Softmax gives NaN.
    if bias is not None:
        weights = A.where(A.float_equal(A.float_max(scores, (3,), True), -math.inf), 0.0, weights)
    elif allowed is not None:
        weights = A.where(seen, weights, 0.0)
    mixed = A.float_matmul(A._by_group(weights, value), value)  # pyright: ignore[reportPrivateUsage]
    return A._per_head(mixed, heads, n)  # pyright: ignore[reportPrivateUsage]


def _products(A: OnnxEngine, query: Array, key: Array, heads: int, n: int) -> Array:
    """[batch, heads, n, m]: the product of each query with each key of its group."""
    folded = A._by_group(query, key)  # pyright: ignore[reportPrivateUsage]
    return A._per_head(A.float_matmul(folded, A.permute_dims(key, (0, 1, 3, 2))), heads, n)  # pyright: ignore[reportPrivateUsage]


def layer_norm(A: OnnxEngine, x: Array, gamma: Array | None, beta: Array | None, epsilon: float) -> Array:
    """LayerNormalization over the last axis."""
    operands = [x, _ones(A, x) if gamma is None else gamma, *([] if beta is None else [beta])]
    return A.emit("LayerNormalization", operands, A.shape(x), Float, axis=-1, epsilon=float(epsilon))


def rms_norm(A: OnnxEngine, x: Array, gamma: Array | None, epsilon: float) -> Array:
    """RMSNormalization, an operator from opset 23 on."""
    if current().opset < 23:
        return NormOps.rms_norm(A, x, gamma, epsilon)
    operands = [x, _ones(A, x) if gamma is None else gamma]
    return A.emit("RMSNormalization", operands, A.shape(x), Float, axis=-1, epsilon=float(epsilon))


def _ones(A: OnnxEngine, x: Array) -> Array:
    return A.float_full(A.shape(x)[-1:], 1.0, A.device_of(x))


def group_norm(A: OnnxEngine, x: Array, gamma: Array | None, beta: Array | None, groups: int, epsilon: float) -> Array:
    """InstanceNormalization with the groups as channels; if each channel is a group, with its own scales."""
    shape: Any = A.shape(x)
    device = A.device_of(x)
    if (groups,) == shape[1:2] and len(shape) > 2:
        scale = A.float_full((groups,), 1.0, device) if gamma is None else gamma
        shift = A.float_full((groups,), 0.0, device) if beta is None else beta
        return A.emit("InstanceNormalization", [x, scale, shift], shape, Float, epsilon=float(epsilon))
    n, channels, *sizes = shape
    rows = A.reshape(x, (n, groups, channels // groups * math.prod(sizes)))
    scales = [A.float_full((groups,), value, device) for value in (1.0, 0.0)]
    y = A.emit("InstanceNormalization", [rows, *scales], A.shape(rows), Float, epsilon=float(epsilon))
    y = A.reshape(y, shape)
    for scale, apply in ((gamma, A.float_mul), (beta, A.float_add)):
        if scale is not None:
            y = apply(y, A.reshape(scale, (channels, *[1 for _ in sizes])))
    return y
