"""Convolutions."""

from __future__ import annotations

from typing import Any

from phlox.errors import ShapeError
from phlox.interop.onnx.node import Node
from phlox.interop.onnx.operators.pooling import node_window
from phlox.interop.onnx.registry import Array, operators
from phlox.tensor import Tensor, concat, functional, tensor

X = Tensor[Any, Any, Any]

_CONV: dict[int, Any] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED: dict[int, Any] = {
    1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d,
}  # fmt: skip


def conv(node: Node, x: X, weight: X, bias: X | None = None) -> X:
    """Convolution of one to three spatial axes."""
    rank = x.ndim - 2
    if rank not in _CONV or weight.ndim != x.ndim:
        raise ShapeError(f"Conv: x of shape {x.shape} and weight of shape {weight.shape}: 1 to 3 spatial axes fit")
    win = node_window(node, x.shape[2:], weight.shape[2:])
    return _CONV[rank](
        x, weight, bias, stride=win.strides, padding=win.pads, dilation=win.dilations, groups=node.get("group", 1)
    )


def _conv_transpose(node: Node, x: X, weight: X, bias: X | None = None) -> X:
    rank = x.ndim - 2
    if rank not in _TRANSPOSED:
        raise ShapeError(f"ConvTranspose: x of shape {x.shape}; 1 to 3 spatial axes fit")
    strides = tuple(node.get("strides") or [1] * rank)
    dilations = tuple(node.get("dilations") or [1] * rank)
    extra = list(node.get("output_padding") or [0] * rank)
    output_shape, auto = node.get("output_shape"), node.get("auto_pad", "NOTSET")
    node_pads = list(node.get("pads") or [0] * 2 * rank)
    pads: list[tuple[int, int]] = []
    for axis, size in enumerate(x.shape[2:]):
        full = (size - 1) * strides[axis] + (weight.shape[2 + axis] - 1) * dilations[axis] + 1 + extra[axis]
        if output_shape is not None or auto in ("SAME_UPPER", "SAME_LOWER"):
            total = full - (output_shape[-rank:][axis] if output_shape is not None else size * strides[axis])
            small, large = total // 2, total - total // 2
            pads.append((small, large) if auto == "SAME_UPPER" else (large, small))
        else:
            pads.append((0, 0) if auto == "VALID" else (node_pads[axis], node_pads[axis + rank]))
    y = _TRANSPOSED[rank](x, weight, None, stride=strides, dilation=dilations, groups=node.get("group", 1))
    cuts = [slice(None), slice(None)]
    widths = [(0, 0), (0, 0)]
    for (before, after), size, added in zip(pads, y.shape[2:], extra, strict=True):
        end = size + added - after
        cuts.append(slice(max(before, 0), min(end, size)))
        widths.append((max(-before, 0), max(end - size, 0)))
    y = y[tuple(cuts)].pad(tuple(widths))
    return y if bias is None else y + bias.reshape((-1, *(1,) * rank))


def _conv_integer(node: Node, x: X, weight: X, x_zero: X | None = None, w_zero: X | None = None) -> X:
    weight = weight if w_zero is None else weight - w_zero.reshape((-1, *(1,) * (weight.ndim - 1)))
    x = x if x_zero is None else x - x_zero
    return conv(node, x.float(), weight.float()).round().int()


def _col2im(node: Node, x: X, image: Array, block: Array) -> X:
    rank = len(image)
    strides = tuple(node.get("strides") or [1] * rank)
    dilations = tuple(node.get("dilations") or [1] * rank)
    pads = node.get("pads") or [0] * 2 * rank
    return functional.fold(
        x,
        tuple(int(size) for size in image),
        tuple(int(size) for size in block),
        stride=strides,
        dilation=dilations,
        padding=tuple((int(a), int(b)) for a, b in zip(pads[:rank], pads[rank:], strict=True)),
    )


def _deform_conv(node: Node, x: X, weight: X, offset: X, bias: X | None = None, mask: X | None = None) -> X:
    """Dai et al. 2017: each element of the window is read at its own position between the pixels."""
    window = node_window(node, x.shape[2:], weight.shape[2:])
    n, channels, height, width = x.shape
    rows, columns = window.counts
    kh, kw = window.sides
    groups, parts = node.get("group", 1), node.get("offset_group", 1)
    shifts = offset.reshape((n, parts, kh * kw, 2, rows, columns))
    base_y = [r * window.strides[0] - window.pads[0][0] for r in range(rows)]
    base_x = [c * window.strides[1] - window.pads[1][0] for c in range(columns)]
    window_y = [i * window.dilations[0] for i in range(kh) for _ in range(kw)]
    window_x = [j * window.dilations[1] for _ in range(kh) for j in range(kw)]
    device = x.device
    at_y = tensor([float(v) for v in window_y], device=device).reshape((-1, 1, 1)) + tensor(
        [float(v) for v in base_y], device=device
    ).reshape((1, -1, 1))
    at_x = tensor([float(v) for v in window_x], device=device).reshape((-1, 1, 1)) + tensor(
        [float(v) for v in base_x], device=device
    ).reshape((1, 1, -1))
    y, z = shifts[:, :, :, 0] + at_y, shifts[:, :, :, 1] + at_x  # [n, parts, kh kw, rows, columns]
    each = channels // parts
    images = x.reshape((n * parts, each, height, width))
    grid_y = y.reshape((n * parts, kh * kw, rows * columns))
    grid_x = z.reshape((n * parts, kh * kw, rows * columns))
    read = bilinear(images, grid_y, grid_x)  # [n parts, each, kh kw, rows columns]
    read = read.reshape((n, parts, each, kh * kw, rows, columns))
    if mask is not None:
        read = read * mask.reshape((n, parts, 1, kh * kw, rows, columns))
    read = read.reshape((n, groups, channels // groups * kh * kw, rows * columns))
    kernel = weight.reshape((groups, weight.shape[0] // groups, -1))
    result = (kernel @ read).reshape((n, weight.shape[0], rows, columns))
    return result if bias is None else result + bias.reshape((-1, 1, 1))


def bilinear(x: X, rows: X, columns: X) -> X:
    """x [n, channels, height, width] at points [n, ...] between the pixels, zero outside: [n, channels, ...]."""
    n, channels, height, width = x.shape
    top, left = rows.floor(), columns.floor()
    flat = x.reshape((n, channels, height * width))
    result = None
    for down in (0.0, 1.0):
        for right in (0.0, 1.0):
            r, c = top + down, left + right
            inside = (r >= 0.0) & (r <= height - 1.0) & (c >= 0.0) & (c <= width - 1.0)
            share = (1.0 - (rows - r).abs()) * (1.0 - (columns - c).abs()) * inside.float()
            flat_index = (r.clip(0.0, height - 1.0) * float(width) + c.clip(0.0, width - 1.0)).int()
            index = flat_index.reshape((n, 1, -1)).broadcast_to((n, channels, flat_index.size // n))
            part = flat.gather(2, index).reshape((n, channels, *rows.shape[1:])) * share.expand_dims(1)
            result = part if result is None else result + part
    assert result is not None
    return result


def _causal_conv(node: Node, x: X, weight: X, bias: X | None = None, past: X | None = None) -> tuple[X, X]:
    """A depthwise convolution over the past and the new input; their end is the second result, for the next call."""
    length = weight.shape[-1] - 1
    whole = x.pad(((0, 0), (0, 0), (length, 0))) if past is None else concat([past, x], 2)
    y = functional.conv1d(whole, weight, bias, groups=x.shape[1])
    y = y.silu() if node.get("activation", "none") in ("silu", "swish") else y
    return y, whole[:, :, whole.shape[2] - length :]


operators(
    {
        "Conv": conv,
        "CausalConvWithState": _causal_conv,
        "ConvTranspose": _conv_transpose,
        "ConvInteger": _conv_integer,
        "Col2Im": _col2im,
        "DeformConv": _deform_conv,
    }
)
