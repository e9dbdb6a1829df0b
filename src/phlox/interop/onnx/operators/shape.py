"""Shapes: reshaping, joining, cutting, padding, and tensors made of a shape."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from phlox.errors import RangeError, ShapeError
from phlox.interop.onnx.elements import host, kind_of
from phlox.interop.onnx.graph import Run
from phlox.interop.onnx.node import Node
from phlox.interop.onnx.registry import Array, operators
from phlox.tensor import Tensor, concat, eye

X = Tensor[Any, Any, Any]

MOST = 1 << 33
"""The most elements of a tensor that is made from a shape; a file that needs more is damaged."""


def checked_size(operator: str, shape: Any) -> tuple[int, ...]:
    """A shape from a file, checked to be possible."""
    sizes = tuple(int(size) for size in shape)
    if min(sizes, default=0) < 0 or math.prod(sizes) > MOST:
        raise RangeError(f"{operator}: makes a tensor of shape {sizes}, which is impossible")
    return sizes


def _reshape(node: Node, x: X, shape: Array) -> X:
    sizes = [int(size) for size in shape]
    if not node.get("allowzero", 0):
        sizes = [x.shape[axis] if size == 0 else size for axis, size in enumerate(sizes)]
    if -1 in sizes and x.size == 0:
        sizes[sizes.index(-1)] = 0 if 0 not in sizes else 1
    return x.reshape(tuple(sizes))


def _flatten(node: Node, x: X) -> X:
    axis = node.get("axis", 1)
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def _axes(node: Node, axes: Array | None) -> tuple[int, ...] | None:
    chosen = node.get("axes") if axes is None else axes.reshape(-1).tolist()
    return None if chosen is None else tuple(int(axis) for axis in chosen)


def _squeeze(node: Node, x: X, axes: Array | None = None) -> X:
    return x.squeeze(_axes(node, axes))


def _unsqueeze(node: Node, x: X, axes: Array | None = None) -> X:
    return x.expand_dims(_axes(node, axes) or ())


def _split(node: Node, x: X, split: Array | None = None) -> tuple[X, ...]:
    axis: int = node.get("axis", 0)
    parts = node.get("split") if split is None else split.tolist()
    if parts is None:
        count = node.get("num_outputs", len(node.outputs))
        size = -(-x.shape[axis] // count)
        parts = [size] * (count - 1) + [x.shape[axis] - size * (count - 1)]
    return tuple(x.split([int(part) for part in parts], axis))


def _slice_1(node: Node, x: X) -> X:
    return _slice(node, x, *(None if (v := node.get(n)) is None else np.asarray(v) for n in ("starts", "ends", "axes")))


def _slice(
    node: Node, x: X, starts: Array | None, ends: Array | None, axes: Array | None = None, steps: Array | None = None
) -> X:
    assert starts is not None and ends is not None
    cut_axes = range(len(starts)) if axes is None else [int(axis) for axis in axes]
    cut = [slice(None)] * x.ndim
    for index, axis in enumerate(cut_axes):
        step = 1 if steps is None else int(steps[index])
        start, end, size = int(starts[index]), int(ends[index]), x.shape[axis]
        start, end = (bound + size if bound < 0 else bound for bound in (start, end))
        if step > 0:
            cut[axis] = slice(min(max(start, 0), size), min(max(end, 0), size), step)
        else:
            end = min(max(end, -1), size - 1)
            cut[axis] = slice(min(max(start, 0), size - 1), None if end < 0 else end, step)
    return x[tuple(cut)]


def _concat(node: Node, *xs: X) -> X:
    return xs[0] if len(xs) == 1 else concat(list(xs), axis=node.get("axis", 1))


def _expand(node: Node, x: X, shape: Array) -> X:
    target = tuple(int(size) for size in shape)
    try:
        sizes = np.broadcast_shapes(x.shape, target)
    except ValueError:
        raise ShapeError(f"Expand: a tensor of shape {x.shape} does not broadcast with the shape {target}") from None
    return x.broadcast_to(checked_size("Expand", sizes))


def _tile(node: Node, x: X, repeats: Array) -> X:
    checked_size("Tile", [size * int(times) for size, times in zip(x.shape, repeats, strict=True)])
    return x.tile(tuple(int(times) for times in repeats))


def _shape(node: Node, run: Run, values: dict[str, Any], x: Any) -> X:
    sizes: tuple[int, ...] = x.shape
    return host(np.asarray(sizes[node.get("start", 0) : node.get("end", len(sizes))], dtype=np.int64))


def _size(node: Node, run: Run, values: dict[str, Any], x: Any) -> X:
    return host(np.asarray(x.size, dtype=np.int64))


def _pad_2(node: Node, x: X) -> X:
    pads = node.get("pads") or node.get("paddings")
    value = node.get("value", 0.0)
    return _padded(x, list(pads), value, node.get("mode", "constant"), tuple(range(x.ndim)))


def _pad(node: Node, x: X, pads: Array, value: Array | None = None, axes: Array | None = None) -> X:
    filling = 0 if value is None or not value.size else value.reshape(-1)[0].item()
    padded_axes = tuple(range(x.ndim)) if axes is None else tuple(int(axis) for axis in axes)
    return _padded(x, pads.tolist(), filling, node.get("mode", "constant"), padded_axes)


def _padded(x: X, pads: list[int], value: Any, mode: str, padded_axes: tuple[int, ...]) -> X:
    count = len(padded_axes)
    widths, cuts = [(0, 0)] * x.ndim, [slice(None)] * x.ndim
    for index, axis in enumerate(padded_axes):
        before, after = int(pads[index]), int(pads[index + count])
        widths[axis] = (max(before, 0), max(after, 0))
        cuts[axis] = slice(max(-before, 0), x.shape[axis] - max(-after, 0))
    if any(cut != slice(0, size) for cut, size in zip(cuts, x.shape, strict=True)):
        x = x[tuple(cuts)]
    checked_size("Pad", [size + sum(width) for size, width in zip(x.shape, widths, strict=True)])
    if mode == "constant":
        return x.pad(tuple(widths), value)
    mirrored: dict[str, Any] = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}
    return x.pad(tuple(widths), mode=mirrored[mode])


def _constant_of_shape(node: Node, shape: Array) -> X:
    sizes = checked_size("ConstantOfShape", shape)
    value = np.asarray(node.get("value", np.zeros(1, np.float32))).reshape(-1)[:1]
    return host(value).broadcast_to(sizes) if sizes else host(value).reshape(())


def _range(node: Node, start: Array, limit: Array, delta: Array) -> X:
    first, last, step = (operand.reshape(-1)[0].item() for operand in (start, limit, delta))
    count = max(math.ceil((last - first) / step), 0)
    checked_size("Range", (count,))
    return host(first + np.arange(count) * step)


def _eye_like(node: Node, x: X) -> X:
    matrix = eye(*x.shape, k=node.get("k", 0), device=x.device)
    kind = kind_of(node.element) if node.element else x.kind
    return getattr(matrix, kind.name)()


def _trilu(node: Node, x: X, k: Array | None = None) -> X:
    offset = 0 if k is None else int(k.reshape(-1)[0])
    return x.triu(offset) if node.get("upper", 1) else x.tril(offset)


def _depth_to_space(node: Node, x: X) -> X:
    n, channels, height, width = x.shape
    b = node.get("blocksize")
    out_channels = channels // (b * b)
    if node.get("mode", "DCR") == "DCR":
        y = x.reshape((n, b, b, out_channels, height, width)).permute_dims((0, 3, 4, 1, 5, 2))
    else:
        y = x.reshape((n, out_channels, b, b, height, width)).permute_dims((0, 1, 4, 2, 5, 3))
    return y.reshape((n, out_channels, height * b, width * b))


def _space_to_depth(node: Node, x: X) -> X:
    n, channels, height, width = x.shape
    b = node.get("blocksize")
    y = x.reshape((n, channels, height // b, b, width // b, b))
    if node.get("mode", "DCR") == "DCR":
        y = y.permute_dims((0, 3, 5, 1, 2, 4))
    else:
        y = y.permute_dims((0, 1, 3, 5, 2, 4))
    return y.reshape((n, channels * b * b, height // b, width // b))


def _reverse_sequence(node: Node, x: X, lengths: Array) -> X:
    time: int = node.get("time_axis", 0)
    batch: int = node.get("batch_axis", 1)
    step = np.arange(x.shape[time])
    sources = np.where(step < lengths[:, None], lengths[:, None] - 1 - step, step)  # [batch, time]
    rows = np.arange(x.shape[batch])[:, None]
    moved = x.moveaxis((batch, time), (0, 1))
    return moved[np.broadcast_to(rows, sources.shape), sources].moveaxis((0, 1), (batch, time))


operators(
    {
        "Identity": lambda node, x: x,
        "Reshape": _reshape,
        "Flatten": _flatten,
        "Transpose": lambda node, x: x.permute_dims(tuple(node.get("perm") or range(x.ndim)[::-1])),
        "Squeeze": _squeeze,
        "Unsqueeze": _unsqueeze,
        "Concat": _concat,
        "Split": _split,
        "Slice": _slice_1,
        "Expand": _expand,
        "Tile": _tile,
        "Pad": _pad_2,
        "ConstantOfShape": _constant_of_shape,
        "Range": _range,
        "EyeLike": _eye_like,
        "Trilu": _trilu,
        "DepthToSpace": _depth_to_space,
        "SpaceToDepth": _space_to_depth,
        "ReverseSequence": _reverse_sequence,
    }
)
operators({"Slice": _slice}, since=10)
operators({"Pad": _pad}, since=11)
operators({"Shape": _shape, "Size": _size}, own=True)
