"""Operations that move elements, as operators.

A reshape has 0 for a size that it keeps, and -1 for a size that follows from the others; only other sizes are computed
in the graph. Two reshapes or two transposes in a row become one; an operation that changes nothing adds no node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from phlox.backend.contract.shape import ShapingOps, part, replaced
from phlox.backend.contract.signal import SignalOps
from phlox.backend.contract.types import Array, Axes, Index, Shape, Widths
from phlox.backend.kind import KINDS
from phlox.backend.tracing.dimension import broadcast_sizes, is_open, larger, same_size, smaller
from phlox.export.to_onnx.elementwise import filled
from phlox.export.to_onnx.graph import current
from phlox.transform.abstract.rules import RULES as SHAPES
from phlox.transform.abstract.rules import indexed, without

if TYPE_CHECKING:
    from phlox.export.to_onnx.engine import OnnxEngine, Value

_FAR = 2**63 - 1
"""The end of a slice that goes to the end."""
_WIDE = 7
"""64-bit integers (`TensorProto.DataType`)."""


def _same(have: Shape, want: Shape) -> bool:
    return len(have) == len(want) and all(map(same_size, have, want))


def _filled(A: OnnxEngine, x: Value, shape: Sequence[int]) -> Array:
    assert x.fill is not None
    return filled(A, tuple(shape), x.fill, x.kind.name)


# --- shapes


def reshape(A: OnnxEngine, x: Value, shape: Shape) -> Array:
    """Reshape."""
    target = SHAPES["reshape"](A, x, shape).shape
    if _same(x.shape, target):
        return x
    if x.fill is not None:
        return _filled(A, x, target)
    source = x.made_by[1] if x.made_by is not None and x.made_by[0] == "reshape" else x
    if _same(source.shape, target):
        return source
    sizes, zeros = _reshape_sizes(source.shape, target)
    options = {"allowzero": 1} if zeros else {}
    reshaped = A.emit("Reshape", [source, current().vector(sizes)], target, x.kind, **options)
    reshaped.made_by = ("reshape", source, ())
    return reshaped


def _reshape_sizes(have: Shape, want: Shape) -> tuple[list[int], bool]:
    """The sizes for `Reshape`, and whether 0 means a size of zero."""
    if 0 in [size for size in want if not is_open(size)]:
        return list(want), True
    kept = [axis < len(have) and is_open(size) and same_size(have[axis], size) for axis, size in enumerate(want)]
    left = [axis for axis, size in enumerate(want) if is_open(size) and not kept[axis]]
    if len(left) > 1 or (left and any(kept)):  # if one of them is zero, -1 is ambiguous
        return list(want), True
    sizes = [0 if kept[axis] else size for axis, size in enumerate(want)]
    if left:
        sizes[left[0]] = -1
    return sizes, False


def _computes(have: Shape, want: Shape) -> bool:
    """Does a reshape to this shape need a size that is computed in the graph?"""
    return any(map(is_open, _reshape_sizes(have, want)[0]))


def expand_dims(A: OnnxEngine, x: Value, axes: Axes) -> Array:
    """Reshape or, if that would have to compute sizes, Unsqueeze."""
    sizes = iter(x.shape)
    target = tuple([1 if axis in axes else next(sizes) for axis in range(len(x.shape) + len(axes))])
    if x.fill is not None or not _computes(x.shape, target):
        return reshape(A, x, target)
    return A.emit("Unsqueeze", [x, current().integers(axes)], target, x.kind)


def squeeze(A: OnnxEngine, x: Value, axes: Axes) -> Array:
    """Reshape or, if that would have to compute sizes, Squeeze."""
    target = without(x.shape, axes, False)
    if x.fill is not None or not _computes(x.shape, target):
        return reshape(A, x, target)
    return A.emit("Squeeze", [x, current().integers(axes)], target, x.kind)


def permute_dims(A: OnnxEngine, x: Value, axes: Axes) -> Array:
    """Transpose."""
    shape = [x.shape[axis] for axis in axes]
    source = x
    if x.made_by is not None and x.made_by[0] == "transpose":
        _, source, before = x.made_by
        axes = tuple([before[axis] for axis in axes])
    if tuple(axes) == tuple(range(len(axes))):
        return source
    if x.fill is not None:
        return _filled(A, x, shape)
    y = A.emit("Transpose", [source], shape, x.kind, perm=list(axes))
    y.made_by = ("transpose", source, tuple(axes))
    return y


def broadcast_to(A: OnnxEngine, x: Value, shape: Shape) -> Array:
    """Expand."""
    if _same(x.shape, shape):
        return x
    target = SHAPES["broadcast_to"](A, x, shape).shape
    if x.fill is not None:
        return _filled(A, x, target)
    have = (1,) * (len(target) - len(x.shape)) + x.shape
    sizes = [1 if same_size(old, size) else size for old, size in zip(have, target, strict=True)]
    return A.emit("Expand", [x, current().vector(sizes)], target, x.kind)


def tile(A: OnnxEngine, x: Value, times: Shape) -> Array:
    """Tile."""
    shape = [size * count for size, count in zip(x.shape, times, strict=True)]
    return A.emit("Tile", [x, current().vector(times)], shape, x.kind)


# --- pieces


def flip(A: OnnxEngine, x: Value, axes: Axes) -> Array:
    """Slice, backwards."""
    graph, count = current(), len(axes)
    if not axes or x.fill is not None:
        return x
    bounds = [graph.integers([bound] * count) for bound in (-1, -_FAR)]
    operands = [x, *bounds, graph.integers(axes), graph.integers([-1] * count)]
    return A.emit("Slice", operands, x.shape, x.kind)


def concat(A: OnnxEngine, arrays: Sequence[Array], axis: int) -> Array:
    """Concat."""
    if len(arrays) == 1:
        return arrays[0]
    like = SHAPES["concat"](A, arrays, axis)
    return A.emit("Concat", list(arrays), like.shape, like.kind, axis=axis)


def index(A: OnnxEngine, x: Value, entries: Index) -> Array:
    """Slice, and Gather for integers, which remove their axis."""
    graph, shape = current(), x.shape
    if x.fill is not None:
        return _filled(A, x, indexed(shape, entries))
    starts, stops, axes, steps = list[int](), list[int](), list[int](), list[int]()
    for axis, (entry, size) in enumerate(zip(entries, shape, strict=True)):
        if isinstance(entry, slice):
            start, stop, step = entry.start, entry.stop, entry.step
            if same_size(start, 0) and same_size(stop, size) and step == 1:
                continue
            starts.append(_from_end(start, size))
            stops.append(_FAR if is_open(size) and same_size(stop, size) else _from_end(stop, size, start))
            axes.append(axis)
            steps.append(step)
    y = x
    if axes:
        every = tuple(
            [entry if isinstance(entry, slice) else slice(0, n, 1) for entry, n in zip(entries, shape, strict=True)]
        )
        bounds = [graph.vector(starts), graph.vector(stops), graph.integers(axes)]
        bounds += [] if steps == [1] * len(steps) else [graph.integers(steps)]
        y = A.emit("Slice", [x, *bounds], indexed(shape, every), x.kind)
    for axis in reversed(range(len(entries))):
        entry = entries[axis]
        if not isinstance(entry, slice):
            index = _from_end(entry, shape[axis])
            operand = graph.scalar_size(index, np.dtype(np.int64), _WIDE)
            y = A.emit("Gather", [y, operand], without(y.shape, (axis,), False), x.kind, axis=axis)
    return y


def _from_end(bound: int, size: int, least: int = 0) -> int:
    """A bound at a fixed distance from the end of an open axis, as a negative number.

    `Slice` clips bounds to the axis, and is empty if its end is before its start, so a clipped bound needs no clipping.
    """
    if not is_open(bound):
        return bound
    before, first = int(size) - int(bound), int(bound)
    if before > 0 and any(same_size(bound, end) for end in (size - before, larger(least, larger(size - before, 0)))):
        return -before
    return first if first > 0 and same_size(bound, larger(least, smaller(first, size))) else bound


# --- padding


def pad(A: OnnxEngine, x: Value, widths: Widths, value: float) -> Array:
    """Pad with a constant."""
    shape = SHAPES["pad"](A, x, widths, value).shape
    if _same(shape, x.shape) or x.fill == value:
        return x if _same(shape, x.shape) else _filled(A, x, shape)
    return A.emit("Pad", [x, _both_ends(widths), A.scalar(value, x.kind)], shape, x.kind)


def _both_ends(widths: Widths) -> str:
    return current().vector([before for before, _ in widths] + [after for _, after in widths])


def extend(A: OnnxEngine, x: Value, widths: Widths, mode: str) -> Array:
    """Pad with the array's own elements."""
    shape = SHAPES["pad"](A, x, widths, 0.0).shape
    has_mode = mode in ("reflect", "edge") or (mode == "wrap" and current().opset >= 19)
    once = all(max(pair) < size for pair, size in zip(widths, x.shape, strict=True) if any(pair))
    if has_mode and (once or mode == "edge"):
        return A.emit("Pad", [x, _both_ends(widths)], shape, x.kind, mode=mode)
    if not any(is_open(size) for size, pair in zip(x.shape, widths, strict=True) if any(pair)):
        return ShapingOps.extend(A, x, widths, mode)  # pyright: ignore[reportArgumentType]
    for axis, (before, after) in enumerate(widths):
        size = A.shape(x)[axis]
        first, last = part(A, x, axis, 0, before), part(A, x, axis, size - after, size)
        if mode == "wrap":
            first, last = part(A, x, axis, size - before, size), part(A, x, axis, 0, after)
        else:
            first, last = A.flip(first, (axis,)), A.flip(last, (axis,))
        x = A.concat([*([first] if before else []), x, *([last] if after else [])], axis)
    return x


# --- indices in an array


def take(A: OnnxEngine, x: Array, indices: Array, axis: int) -> Array:
    """Gather."""
    like = SHAPES["take"](A, x, indices, axis)
    return A.emit("Gather", [x, indices], like.shape, like.kind, axis=axis)


def take_along_axis(A: OnnxEngine, x: Array, indices: Array, axis: int) -> Array:
    """GatherElements, of operands whose other axes are broadcast to equal sizes."""
    have, index_shape = A.shape(x), A.shape(indices)
    others = broadcast_sizes([replaced(have, axis, 1), replaced(index_shape, axis, 1)])
    x = A.broadcast_to(x, replaced(others, axis, have[axis]))
    shape = replaced(others, axis, index_shape[axis])
    return A.emit("GatherElements", [x, A.broadcast_to(indices, shape)], shape, A.kind_of(x), axis=axis)


def scatter(kind: str) -> Callable[..., Array]:
    """ScatterND."""

    def rule(A: OnnxEngine, x: Array, positions: Array, updates: Array, mode: str) -> Array:
        columns = A.expand_dims(positions, (1,))
        wide = current().add("Cast", [A.name_of(columns)], to=_WIDE)[0]
        options = {} if mode == "set" else {"reduction": mode}
        return A.emit("ScatterND", [x, wide, updates], A.shape(x), KINDS[kind], **options)

    return rule


def frame(A: OnnxEngine, x: Value, length: int, hop: int) -> Array:
    """Windows of a signal; for an open length they are gathered."""
    if is_open(x.shape[-1]):
        return A.windows(x, len(x.shape) - 1, length, hop)
    return SignalOps.frame(A, x, length, hop)
