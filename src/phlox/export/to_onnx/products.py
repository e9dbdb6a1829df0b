"""Matrix products and convolutions as operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phlox.backend import Float
from phlox.backend.contract.nn.conv import ConvOps
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
    """Gemm of two matrices; of more axes MatMul and Add, which runtimes join."""
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
    """x padded, where a width is open, and what is left to be padded."""
    if not any(is_open(width) for pair in padding for width in pair):
        return x, padding
    return A.pad(x, ((0, 0), (0, 0), *padding), value), ((0, 0),) * len(padding)


def window(sides: Shape, stride: Shape, padding: Widths, dilation: Shape) -> dict[str, Any]:
    """The attributes of operators with windows."""
    pads = [before for before, _ in padding] + [after for _, after in padding]
    given = {"kernel_shape": list(sides), "strides": list(stride)}
    given |= {"pads": pads} if any(pads) else {}
    return given | ({"dilations": list(dilation)} if any(one != 1 for one in dilation) else {})


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
