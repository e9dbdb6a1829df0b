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
    places: list[int | slice] = field(default_factory=list[int | slice])
    """The basic index: one entry per axis, with slices of positive step."""
    new: list[int] = field(default_factory=list[int])
    """Then new axes of size one are inserted here."""
    reverse: list[int] = field(default_factory=list[int])
    """Then these axes are reversed, which gives the block."""
    groups: list[IndexedAxes] = field(default_factory=list[IndexedAxes])
    """Index arrays, applied to the block together."""
    first: bool = False
    """Do the axes of the index arrays come first in the result? They do if the arrays are not adjacent in the key."""

    @property
    def is_whole(self) -> bool:
        """Does the basic index read everything?"""
        return all(
            entry == slice(0, size, 1)
            if type(size) is int and (isinstance(entry, int) or type(entry.stop) is int)
            else _takes_all(entry, size)
            for entry, size in zip(self.places, self.shape, strict=True)
        )

    # --- the block

    def block_shape(self) -> tuple[int, ...]:
        """The shape of the block."""
        sizes = [slice_size(entry) for entry in self.places if isinstance(entry, slice)]
        for place in self.new:
            sizes.insert(place, 1)
        return tuple(sizes)

    def block(self, x: X) -> X:
        """Read the basic index."""
        if not self.is_whole:
            x = x._apply("index", tuple(self.places))
        if self.new:
            x = x._apply("expand_dims", tuple(self.new))
        return x._apply("flip", tuple(self.reverse)) if self.reverse else x

    def put_block(self, x: X, block: X) -> X:
        """Write what `block` would read."""
        if self.reverse:
            block = block._apply("flip", tuple(self.reverse))
        if self.new:
            block = block._apply("squeeze", tuple(self.new))
        return block if self.is_whole else x._apply("index_set", block.primitive, tuple(self.places))

    # --- the index arrays

    def read(self, x: X) -> X:
        """Read x at the key."""
        block = self.block(x)
        if not self.groups:
            return block
        start, folded, _ = self._flatten_axes(block, front=False)
        places = self._flat_positions(block.shape)
        try:
            result = folded._apply("take", places.primitive, start)
        except IndexRangeError:
            self._check(block.shape)
            raise
        if self.first and start:
            rank = len(places.shape)
            result = _permute(result, (*range(start, start + rank), *range(start), *range(start + rank, result.ndim)))
        return result

    def write(self, x: X, values: X, mode: Mode) -> X:
        """Write `values`, of shape `result_shape()`, at the key."""
        if not self.groups:
            if mode != "set":
                values = self.block(x)._apply(ELEMENTWISE[mode], values.primitive)
            return self.put_block(x, values)
        block = self.block(x)
        places = self._flat_positions(block.shape)
        rank = len(places.shape)
        start = 0 if self.first else self.groups[0].axis
        updates = _permute(values, (*range(start, start + rank), *range(start), *range(start + rank, values.ndim)))
        _, folded, order = self._flatten_axes(block, front=True)
        count = places.size
        positions = places._apply("reshape", (count,)).primitive
        updates = updates._apply("reshape", (count, *folded.shape[1:])).primitive
        try:
            rows = folded._apply("scatter", positions, updates, mode)
        except IndexRangeError:
            self._check(block.shape)
            raise
        shape = block.shape
        rows = rows._apply("reshape", tuple(shape[axis] for axis in order))
        return self.put_block(x, _permute(rows, tuple(order.index(axis) for axis in range(len(order)))))

    def result_shape(self) -> tuple[int, ...]:
        """The shape that the key reads."""
        block = self.block_shape()
        if not self.groups:
            return block
        taken = {axis for group in self.groups for axis in range(group.axis, group.axis + group.count)}
        start = 0 if self.first else self.groups[0].axis
        rest = tuple(size for axis, size in enumerate(block) if axis not in taken)
        return (*rest[:start], *self._broadcast_shape(), *rest[start:])

    def _flatten_axes(self, block: X, *, front: bool) -> tuple[int, X, tuple[int, ...]]:
        """Flatten the indexed axes to one: the position of that axis, the new block, and the permutation used."""
        axes = [axis for group in self.groups for axis in range(group.axis, group.axis + group.count)]
        start = axes[0] if axes else self.groups[0].axis
        if front or axes != list(range(start, start + len(axes))):
            start = 0
        rest = [axis for axis in range(block.ndim) if axis not in axes]
        order = (*rest[:start], *axes, *rest[start:])
        shape = block.shape
        block = _permute(block, order)
        if len(axes) != 1:
            sizes = math.prod(shape[axis] for axis in axes)
            kept = [shape[axis] for axis in rest]
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

    def _tensor_axis(self, place: int) -> int:
        """The axis of the tensor for an axis of the block."""
        kept = [axis for axis, entry in enumerate(self.places) if isinstance(entry, slice)]
        return kept[place - sum(new < place for new in self.new)]

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


def parse(x: X, given: Any) -> tuple[X, IndexKey]:
    """Parse a key for `x`. x is returned too, promoted to the higher backend of the two.

    Raises `IndexRangeError`, `KindError` or `ShapeError` if the key does not fit x.
    """
    shape = x.shape
    entries: list[Any] = []
    named = 0  # the number of axes that the entries index
    rest = -1  # the position of `...`, which stands for the other axes
    for entry in cast("tuple[Any, ...]", given) if isinstance(given, tuple) else (given,):
        if entry.__class__ is int or entry.__class__ is slice:
            named += 1
        elif entry is Ellipsis:
            if rest >= 0:
                raise IndexRangeError(f"index: more than one `...` in an index of a tensor of shape {shape}")
            rest = len(entries) + 1
        elif entry is not None:
            x = x._promoted_with(entry)
            entry = _entry(x, entry)
            named += entry.ndim if isinstance(entry, TensorBase) and entry.kind is Bool else 1
        entries.append(entry)
    if named > len(shape):
        raise IndexRangeError(f"index: too many indices: {named} for a tensor of shape {shape}")
    rest = rest if rest >= 0 else len(entries)
    entries[rest:rest] = [slice(None)] * (len(shape) - named)

    key = IndexKey(shape)
    place = 0  # the next axis of the block
    indexed: list[int] = []  # the entries that act as index arrays
    for number, entry in enumerate(entries):
        axis = len(key.places)
        if entry is Ellipsis:
            continue  # it still separates the entries on its two sides, even if it stands for no axis
        if entry is None:
            key.new.append(place)
            place += 1
        elif isinstance(entry, slice):
            part, backwards = _forward(cast("slice[Any, Any, Any]", entry), shape[axis])
            key.places.append(part)
            if backwards:
                key.reverse.append(place)
            place += 1
        elif isinstance(entry, int):
            if not -shape[axis] <= entry < shape[axis]:
                raise IndexRangeError(f"index: index {entry} is out of range for axis {axis} of shape {shape}")
            key.places.append(entry % shape[axis] if entry.__class__ is int else from_start(entry, shape[axis]))
            indexed.append(number)
        else:
            count = entry.ndim if entry.kind is Bool else 1
            key.places += [slice(0, size, 1) for size in shape[axis : axis + count]]
            key.groups.append(IndexedAxes(place, count, _indices(entry._on(x.backend), shape, axis)))
            indexed.append(number)
            place += count
    if key.groups:
        key.first = indexed != list(range(indexed[0], indexed[0] + len(indexed)))
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
    given = str(type(cast("Any", entry)).__name__)
    raise KindError(
        f"index: cannot index a tensor with {given} {entry!r:.40}; "
        f"use integers, slices, None, ..., Int tensors, or Bool tensors as masks"
    )


def _array(x: TensorBase, kind: type[Kind], primitive: Any) -> TensorBase:
    made = x._with(primitive)
    made._ops = ops_of(x.backend, kind)
    return made


def _indices(entry: TensorBase, shape: tuple[int, ...], axis: int) -> TensorBase:
    """The indices themselves, or the flat positions, in row-major order, where a mask is true."""
    if entry.kind is Int:
        return entry
    wanted = shape[axis : axis + entry.ndim]
    if entry.shape != wanted:
        raise ShapeError(
            f"index: a mask of shape {entry.shape} does not fit the axes of size {wanted} of a tensor of shape {shape}"
        )
    return flatnonzero("index", entry, "use phlox.where(mask, x, other) or x.masked_fill(mask, value)")


def sole_mask(x: TensorBase, given: Any) -> TensorBase | None:
    """The mask, if the key is a single mask that fits; else None."""
    if isinstance(given, TensorBase) and given.kind is Bool and given.shape == x.shape[: given.ndim]:
        return given if given.backend is x.backend or is_below(given.backend, x.backend) else None
    return None


def flatnonzero(name: str, mask: TensorBase, remedy: str) -> Any:
    """The flat positions, in row-major order, where a mask is true; `UnsupportedError` with a remedy when traced."""
    if mask.backend.is_traced(mask.primitive):
        raise UnsupportedError(
            f"{name}: the shape of the result depends on the values of the mask of shape {mask.shape}, which are "
            f"unknown during tracing; {remedy}"
        )
    return mask._apply("reshape", (mask.size,))._apply_to(Int, "flatnonzero")


def _takes_all(entry: int | slice, size: int) -> bool:
    """Does an entry take a whole axis, where one of its sizes is open? Comparing these would fix them."""
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
