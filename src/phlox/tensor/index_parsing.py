"""Parsing of the keys of `x[...]` and `x.at[...]`: NumPy's basic and advanced indexing.

A key is parsed once. Integers, slices, None and `...` give a basic index, which the backend reads and writes as a
block. Each Int tensor or Bool mask that remains indexes a run of axes of that block. These axes are moved together and
flattened to one axis, and the index arrays become flat positions on it. So one `take` reads and one `scatter` writes.
"""

# Part of the Tensor class, in a file of its own.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np

from phlox.backend import Bool, Float, Int, Kind
from phlox.backend.tracing.dimension import as_size, broadcast_sizes, is_open, same_size
from phlox.backend.tracing.scalar import TracedScalar
from phlox.backend.tracing.slices import from_start, open_slice, slice_size
from phlox.errors import IndexRangeError, KindError, ShapeError, UnsupportedError
from phlox.tensor.backend_promotion import is_below
from phlox.tensor.base import TensorBase
from phlox.tensor.dispatch import ops_of
from phlox.tensor.engine_arrays import is_array, kind_of, primitive_of

if TYPE_CHECKING:
    from phlox.backend.contract.indexing import Mode
    from phlox.tensor.tensor import Tensor

Indices: TypeAlias = "Tensor[Any, Any, Int] | Tensor[Any, Any, Bool] | np.ndarray[Any, Any] | list[Any]"
Entry: TypeAlias = "int | slice[Any, Any, Any] | EllipsisType | Indices | None"
X = TypeVar("X", bound=TensorBase)


@dataclass(slots=True)
class IndexedAxes:
    """An index array, and the consecutive axes of the block that it indexes: one, or all axes of a mask."""

    axis: int
    count: int
    indices: TensorBase


@dataclass(slots=True)
class IndexKey:
    """A parsed key, for tensors of one shape."""

    shape: tuple[int, ...]
    basic: list[int | slice] = field(default_factory=list[int | slice])
    """The basic index: one entry per axis, with slices of positive step."""
    new_axes: list[int] = field(default_factory=list[int])
    """Next, new axes of size one are inserted at these positions."""
    reversed_axes: list[int] = field(default_factory=list[int])
    """Last, these axes are reversed, which gives the block."""
    groups: list[IndexedAxes] = field(default_factory=list[IndexedAxes])
    """Index arrays, applied to the block together."""
    arrays_first: bool = False
    """Do the axes of the index arrays come first in the result? They do if the arrays are not adjacent in the key."""

    @property
    def is_whole(self) -> bool:
        """Does the basic index read everything?"""
        return all(
            entry == slice(0, size, 1)
            if type(size) is int and (isinstance(entry, int) or type(entry.stop) is int)
            else _covers_axis(entry, size)
            for entry, size in zip(self.basic, self.shape, strict=True)
        )

    # --- the block

    def block_shape(self) -> tuple[int, ...]:
        """The shape of the block."""
        sizes = [slice_size(entry) for entry in self.basic if isinstance(entry, slice)]
        for axis in self.new_axes:
            sizes.insert(axis, 1)
        return tuple(sizes)

    def block(self, x: X) -> X:
        """Read the basic index."""
        if not self.is_whole:
            x = x._apply("index", tuple(self.basic))
        if self.new_axes:
            x = x._apply("expand_dims", tuple(self.new_axes))
        return x._apply("flip", tuple(self.reversed_axes)) if self.reversed_axes else x

    def put_block(self, x: X, block: X) -> X:
        """Write the part of x that `block` would read."""
        if self.reversed_axes:
            block = block._apply("flip", tuple(self.reversed_axes))
        if self.new_axes:
            block = block._apply("squeeze", tuple(self.new_axes))
        return block if self.is_whole else x._apply("index_set", block.primitive, tuple(self.basic))

    # --- the index arrays

    def read(self, x: X) -> X:
        """Read x at the key."""
        block = self.block(x)
        if not self.groups:
            return block
        start, folded, _ = self._flatten_axes(block, front=False)
        positions = self._flat_positions(block.shape)
        try:
            result = folded._apply("take", positions.primitive, start)
        except IndexRangeError:
            self._check(block.shape)
            raise
        if self.arrays_first and start:
            rank = len(positions.shape)
            result = _permute(result, (*range(start, start + rank), *range(start), *range(start + rank, result.ndim)))
        return result

    def write(self, x: X, values: X, mode: Mode) -> X:
        """Write `values`, of shape `result_shape()`, at the key."""
        if not self.groups:
            if mode != "set":
                values = self.block(x)._apply(ELEMENTWISE[mode], values.primitive)
            return self.put_block(x, values)
        block = self.block(x)
        positions = self._flat_positions(block.shape)
        rank = len(positions.shape)
        start = 0 if self.arrays_first else self.groups[0].axis
        updates = _permute(values, (*range(start, start + rank), *range(start), *range(start + rank, values.ndim)))
        _, folded, order = self._flatten_axes(block, front=True)
        count = positions.size
        flat = positions._apply("reshape", (count,)).primitive
        updates = updates._apply("reshape", (count, *folded.shape[1:])).primitive
        try:
            rows = folded._apply("scatter", flat, updates, mode)
        except IndexRangeError:
            self._check(block.shape)
            raise
        shape = block.shape
        rows = rows._apply("reshape", tuple(shape[axis] for axis in order))
        return self.put_block(x, _permute(rows, tuple(order.index(axis) for axis in range(len(order)))))

    def result_shape(self) -> tuple[int, ...]:
        """The shape of the result of reading at the key."""
        block = self.block_shape()
        if not self.groups:
            return block
        indexed_axes = {axis for group in self.groups for axis in range(group.axis, group.axis + group.count)}
        start = 0 if self.arrays_first else self.groups[0].axis
        other_sizes = tuple(size for axis, size in enumerate(block) if axis not in indexed_axes)
        return (*other_sizes[:start], *self._broadcast_shape(), *other_sizes[start:])

    def _flatten_axes(self, block: X, *, front: bool) -> tuple[int, X, tuple[int, ...]]:
        """Flatten the indexed axes to one: the position of that axis, the new block, and the permutation used."""
        axes = [axis for group in self.groups for axis in range(group.axis, group.axis + group.count)]
        start = axes[0] if axes else self.groups[0].axis
        if front or axes != list(range(start, start + len(axes))):
            start = 0
        other_axes = [axis for axis in range(block.ndim) if axis not in axes]
        order = (*other_axes[:start], *axes, *other_axes[start:])
        shape = block.shape
        block = _permute(block, order)
        if len(axes) != 1:
            sizes = math.prod(shape[axis] for axis in axes)
            kept = [shape[axis] for axis in other_axes]
            block = block._apply("reshape", (*kept[:start], sizes, *kept[start:]))
        return start, block, order

    def _flat_positions(self, block: tuple[int, ...]) -> TensorBase:
        """The index arrays as flat positions on the axis that `_flatten_axes` makes."""
        first = self.groups[0].indices
        if len(self.groups) == 1:
            return first
        sizes = self._check(block)
        first.backend.check_scalar(math.prod(sizes), Int)
        arrays = [group.indices.primitive for group in self.groups]
        return first._with(first.backend.int_ravel_index(arrays, sizes))

    def _check(self, block: tuple[int, ...]) -> tuple[int, ...]:
        """The number of positions of each index array; `IndexRangeError` if an index is out of range."""
        sizes = tuple(math.prod(block[group.axis : group.axis + group.count]) for group in self.groups)
        for group, size in zip(self.groups, sizes, strict=True):
            try:
                group.indices.backend.check_indices(group.indices.primitive, size, from_end=True)
            except IndexRangeError as error:
                raise IndexRangeError(
                    f"index: {error}, axis {self._tensor_axis(group.axis)} of shape {self.shape}"
                ) from None
        return sizes

    def _tensor_axis(self, axis: int) -> int:
        """The axis of the tensor for an axis of the block."""
        kept = [number for number, entry in enumerate(self.basic) if isinstance(entry, slice)]
        return kept[axis - sum(new_axis < axis for new_axis in self.new_axes)]

    def _broadcast_shape(self) -> tuple[int, ...]:
        """The broadcast shape of the index arrays."""
        shapes = [group.indices.shape for group in self.groups]
        try:
            return broadcast_sizes(shapes)
        except ValueError:
            raise ShapeError(
                f"index: index arrays of shapes {' and '.join(map(str, shapes))} do not broadcast"
            ) from None


ELEMENTWISE = {"add": "add", "mul": "mul", "min": "minimum", "max": "maximum"}
"""The elementwise operation of each write mode."""


def parse(x: X, raw_key: Any) -> tuple[X, IndexKey]:
    """Parse a key for `x`. x is returned too, promoted to the higher of the two backends.

    Raises `IndexRangeError`, `KindError` or `ShapeError` if the key does not fit x.
    """
    shape = x.shape
    entries: list[Any] = []
    named = 0  # the number of axes that the entries index
    ellipsis = -1  # the position of `...`, which stands for the other axes
    for entry in cast("tuple[Any, ...]", raw_key) if isinstance(raw_key, tuple) else (raw_key,):
        if entry.__class__ is int or entry.__class__ is slice:
            named += 1
        elif entry is Ellipsis:
            if ellipsis >= 0:
                raise IndexRangeError(f"index: more than one `...` in an index of a tensor of shape {shape}")
            ellipsis = len(entries) + 1
        elif entry is not None:
            x = x._promoted_with(entry)
            entry = _entry(x, entry)
            named += entry.ndim if isinstance(entry, TensorBase) and entry.kind is Bool else 1
        entries.append(entry)
    if named > len(shape):
        raise IndexRangeError(f"index: too many indices: {named} for a tensor of shape {shape}")
    ellipsis = ellipsis if ellipsis >= 0 else len(entries)
    entries[ellipsis:ellipsis] = [slice(None)] * (len(shape) - named)

    key = IndexKey(shape)
    block_axis = 0  # the next axis of the block
    indexed: list[int] = []  # the entries that act as index arrays
    for number, entry in enumerate(entries):
        axis = len(key.basic)
        if entry is Ellipsis:
            continue  # `...` separates the entries on its two sides, even if it stands for no axis
        if entry is None:
            key.new_axes.append(block_axis)
            block_axis += 1
        elif isinstance(entry, slice):
            part, backwards = _forward(cast("slice[Any, Any, Any]", entry), shape[axis])
            key.basic.append(part)
            if backwards:
                key.reversed_axes.append(block_axis)
            block_axis += 1
        elif isinstance(entry, int):
            if not -shape[axis] <= entry < shape[axis]:
                raise IndexRangeError(f"index: index {entry} is out of range for axis {axis} of shape {shape}")
            key.basic.append(entry % shape[axis] if entry.__class__ is int else from_start(entry, shape[axis]))
            indexed.append(number)
        else:
            count = entry.ndim if entry.kind is Bool else 1
            key.basic += [slice(0, size, 1) for size in shape[axis : axis + count]]
            key.groups.append(IndexedAxes(block_axis, count, _indices(entry._on(x.backend), shape, axis)))
            indexed.append(number)
            block_axis += count
    if key.groups:
        key.arrays_first = indexed != list(range(indexed[0], indexed[0] + len(indexed)))
        key._broadcast_shape()
    return x, key


def _entry(x: TensorBase, entry: Any) -> Any:
    """One entry as an integer, an Int tensor or a Bool tensor."""
    backend = x.backend
    if isinstance(entry, TensorBase):
        if entry.kind is Float or not (entry.backend is backend or is_below(entry.backend, backend)):
            raise KindError(
                f"index: indices must be an Int tensor, or a Bool tensor as a mask, on {backend!r}, "
                f"got {entry.kind.__name__} on {entry.backend!r}"
            )
        return entry
    if isinstance(entry, (list, np.ndarray)):
        host = np.asarray(cast("Any", entry))
        if host.size == 0 and isinstance(entry, list):
            host = host.astype(np.int64)
        if host.dtype.kind in "iub":
            kind = Bool if host.dtype.kind == "b" else Int
            return _array(x, kind, backend.from_host(host, kind, x.device))
    elif isinstance(entry, TracedScalar) and entry.whole:
        return _array(x, Int, backend.int_add(backend.int_full((), 0, x.device), entry.as_operand(backend, Int)))
    elif backend.is_traced_scalar(entry) and backend.kind_of(entry) is Int:
        return _array(x, Int, entry)
    elif is_array(entry) and (kind := kind_of(entry)) in (Int, Bool):
        return _array(x, kind, primitive_of("index", entry, kind, backend, x.device))
    elif not isinstance(entry, (bool, np.bool_)):
        try:
            return as_size(entry)
        except TypeError:
            pass
    type_name = str(type(cast("Any", entry)).__name__)
    raise KindError(
        f"index: cannot index a tensor with {type_name} {entry!r:.40}; "
        f"use integers, slices, None, ..., Int tensors, or Bool tensors as masks"
    )


def _array(x: TensorBase, kind: type[Kind], primitive: Any) -> TensorBase:
    result = x._with(primitive)
    result._ops = ops_of(x.backend, kind)
    return result


def _indices(entry: TensorBase, shape: tuple[int, ...], axis: int) -> TensorBase:
    """The indices themselves, or the flat positions, in row-major order, where a mask is true."""
    if entry.kind is Int:
        return entry
    sizes = shape[axis : axis + entry.ndim]
    if entry.shape != sizes:
        raise ShapeError(
            f"index: a mask of shape {entry.shape} does not fit the axes of size {sizes} of a tensor of shape {shape}"
        )
    return flatnonzero("index", entry, "use phlox.where(mask, x, other) or x.masked_fill(mask, value)")


def sole_mask(x: TensorBase, raw_key: Any) -> TensorBase | None:
    """The mask, if the key is a single mask that fits; else None."""
    if isinstance(raw_key, TensorBase) and raw_key.kind is Bool and raw_key.shape == x.shape[: raw_key.ndim]:
        return raw_key if raw_key.backend is x.backend or is_below(raw_key.backend, x.backend) else None
    return None


def flatnonzero(name: str, mask: TensorBase, remedy: str) -> Any:
    """The flat positions, in row-major order, where a mask is true; `UnsupportedError` with a remedy when traced."""
    if mask.backend.is_traced(mask.primitive):
        raise UnsupportedError(
            f"{name}: the shape of the result depends on the values of the mask of shape {mask.shape}, which are "
            f"unknown during tracing; {remedy}"
        )
    return mask._apply("reshape", (mask.size,))._apply_to(Int, "flatnonzero")


def _covers_axis(entry: int | slice, size: int) -> bool:
    """Does an entry cover a whole axis, if a size may be open? A plain comparison would fix the open size."""
    return isinstance(entry, slice) and entry.step == 1 and same_size(entry.start, 0) and same_size(entry.stop, size)


_PLAIN = frozenset({int, type(None)}).issuperset


def _forward(entry: slice, size: int) -> tuple[slice, bool]:
    """The slice with explicit bounds and a positive step, and whether its elements must then be reversed."""
    if entry.step == 0:
        raise IndexRangeError("index: the step of a slice cannot be zero")
    bounds = size, entry.start, entry.stop
    if not _PLAIN(map(type, bounds)) and any(map(is_open, bounds)):
        return open_slice(entry, size)
    try:
        steps = range(*entry.indices(size))
    except TypeError:
        raise KindError(f"index: a slice must consist of integers, got {entry!r:.60}") from None
    if len(steps) == 0:
        return slice(0, 0, 1), False
    low, high = min(steps[0], steps[-1]), max(steps[0], steps[-1])
    return slice(low, high + 1, abs(steps.step)), steps.step < 0


def _permute(x: X, order: tuple[int, ...]) -> X:
    return x if order == tuple(range(len(order))) else x._apply("permute_dims", order)
