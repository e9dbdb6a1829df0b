"""What stands between the brackets of `x[...]` and `x.at[...]`: NumPy's basic and advanced indexing.

A key is taken apart once. Integers, slices, None and `...` give a basic index, which the backend reads and writes as a
block. Int tensors and Bool masks then remain, each on a group of axes of that block: the groups are brought together
and folded to one axis, the indices to places on it, so that one `take` reads and one `scatter` writes.
"""

# A part of the tensor in a file of its own.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import index
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import numpy as np

from phlox.backend import Bool, Float, Int, Kind
from phlox.backend.tracing.scalar import TracedScalar
from phlox.errors import IndexRangeError, KindError, ShapeError, UnsupportedError
from phlox.tensor.backend_promotion import is_below
from phlox.tensor.base import TensorBase
from phlox.tensor.dispatch import ops_of

if TYPE_CHECKING:
    from phlox.backend.contract.indexing import Mode
    from phlox.tensor.tensor import Tensor

Indices: TypeAlias = "Tensor[Any, Any, Int] | Tensor[Any, Any, Bool] | np.ndarray[Any, Any] | list[Any]"
Entry: TypeAlias = "int | slice[Any, Any, Any] | EllipsisType | Indices | None"
X = TypeVar("X", bound=TensorBase)


@dataclass(slots=True)
class Group:
    """An array of indices, and the neighbouring axes of the block that it is for: one, or those of a mask."""

    axis: int
    count: int
    indices: TensorBase


@dataclass(slots=True)
class Key:
    """A key taken apart, for tensors of one shape."""

    shape: tuple[int, ...]
    places: list[int | slice] = field(default_factory=list[int | slice])
    """The basic index: one entry an axis; slices run forward."""
    new: list[int] = field(default_factory=list[int])
    """Then come new axes of size one,"""
    reverse: list[int] = field(default_factory=list[int])
    """and axes are reversed. What that makes is the block."""
    groups: list[Group] = field(default_factory=list[Group])
    """Then these are taken together."""
    first: bool = False
    """Do the axes of the indices come first in the result? They do if the indices are not side by side in the key."""

    @property
    def is_whole(self) -> bool:
        """Does the basic index read everything?"""
        return all(entry == slice(0, size, 1) for entry, size in zip(self.places, self.shape, strict=True))

    # --- the block

    def block_shape(self) -> tuple[int, ...]:
        """The shape of the block."""
        sizes = [len(range(entry.start, entry.stop, entry.step)) for entry in self.places if isinstance(entry, slice)]
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

    # --- the groups of the block

    def read(self, x: X) -> X:
        """What the key reads."""
        block = self.block(x)
        if not self.groups:
            return block
        start, folded, _ = self._fold(block, front=False)
        places = self._places(block.shape)
        try:
            result = folded._apply("take", places.primitive, start)
        except IndexRangeError:
            self._check(block.shape)
            raise
        if self.first and start:
            rank = len(places.shape)
            result = _permuted(result, (*range(start, start + rank), *range(start), *range(start + rank, result.ndim)))
        return result

    def write(self, x: X, values: X, mode: Mode) -> X:
        """x with `values`, of the shape that the key reads, written where it reads them."""
        if not self.groups:
            if mode != "set":
                values = self.block(x)._apply(ELEMENTWISE[mode], values.primitive)
            return self.put_block(x, values)
        block = self.block(x)
        places = self._places(block.shape)
        rank = len(places.shape)
        start = 0 if self.first else self.groups[0].axis
        updates = _permuted(values, (*range(start, start + rank), *range(start), *range(start + rank, values.ndim)))
        _, folded, order = self._fold(block, front=True)
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
        return self.put_block(x, _permuted(rows, tuple(order.index(axis) for axis in range(len(order)))))

    def result_shape(self) -> tuple[int, ...]:
        """The shape of what the key reads."""
        block = self.block_shape()
        if not self.groups:
            return block
        taken = {axis for group in self.groups for axis in range(group.axis, group.axis + group.count)}
        start = 0 if self.first else self.groups[0].axis
        rest = tuple(size for axis, size in enumerate(block) if axis not in taken)
        return (*rest[:start], *self._common(), *rest[start:])

    def _fold(self, block: X, *, front: bool) -> tuple[int, X, tuple[int, ...]]:
        """The block with the axes of all groups made one: where that is, and the order its axes had before."""
        axes = [axis for group in self.groups for axis in range(group.axis, group.axis + group.count)]
        start = axes[0] if axes else self.groups[0].axis
        if front or axes != list(range(start, start + len(axes))):
            start = 0
        rest = [axis for axis in range(block.ndim) if axis not in axes]
        order = (*rest[:start], *axes, *rest[start:])
        shape = block.shape
        block = _permuted(block, order)
        if len(axes) != 1:
            sizes = math.prod(shape[axis] for axis in axes)
            kept = [shape[axis] for axis in rest]
            block = block._apply("reshape", (*kept[:start], sizes, *kept[start:]))
        return start, block, order

    def _places(self, block: tuple[int, ...]) -> TensorBase:
        """The indices of all groups as places on the axis that `_fold` makes."""
        first = self.groups[0].indices
        if len(self.groups) == 1:
            return first
        sizes = self._check(block)
        first.backend.check_scalar(math.prod(sizes), Int)
        arrays = [group.indices.primitive for group in self.groups]
        return first._with(first.backend.int_ravel_index(arrays, sizes))

    def _check(self, block: tuple[int, ...]) -> tuple[int, ...]:
        """The size of each group; an index beyond it is `IndexRangeError`."""
        sizes = tuple(math.prod(block[group.axis : group.axis + group.count]) for group in self.groups)
        for group, size in zip(self.groups, sizes, strict=True):
            try:
                group.indices.backend.check_indices(group.indices.primitive, size, from_end=True)
            except IndexRangeError as error:
                raise IndexRangeError(f"index: {error}, axis {self._named(group.axis)} of shape {self.shape}") from None
        return sizes

    def _named(self, place: int) -> int:
        """The axis of the tensor that an axis of the block is."""
        kept = [axis for axis, entry in enumerate(self.places) if isinstance(entry, slice)]
        return kept[place - sum(new < place for new in self.new)]

    def _common(self) -> tuple[int, ...]:
        """The shape that the indices have together."""
        shapes = [group.indices.shape for group in self.groups]
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError:
            raise ShapeError(
                f"index: the indices have shapes {' and '.join(map(str, shapes))}, which do not broadcast"
            ) from None


ELEMENTWISE = {"add": "add", "mul": "mul", "min": "minimum", "max": "maximum"}
"""The operation on whole tensors that a mode of writing stands for."""


def parse(x: X, given: Any) -> tuple[X, Key]:
    """Take a key for `x` apart; x itself is returned on the highest backend of the two.

    Raises `IndexRangeError`, `KindError` or `ShapeError` where the key does not fit.
    """
    shape = x.shape
    entries: list[Any] = []
    named = 0  # how many axes the entries are for
    rest = -1  # where the others come
    for entry in cast("tuple[Any, ...]", given) if isinstance(given, tuple) else (given,):
        if entry.__class__ is int or entry.__class__ is slice:
            named += 1
        elif entry is Ellipsis:
            if rest >= 0:
                raise IndexRangeError(f"index: more than one `...`, in an index of a tensor of shape {shape}")
            rest = len(entries) + 1
        elif entry is not None:
            x = x._beside(entry)
            entry = _entry(x, entry)
            named += entry.ndim if isinstance(entry, TensorBase) and entry.kind is Bool else 1
        entries.append(entry)
    if named > len(shape):
        raise IndexRangeError(f"index: an index of {named} axes does not fit a tensor of shape {shape}")
    rest = rest if rest >= 0 else len(entries)
    entries[rest:rest] = [slice(None)] * (len(shape) - named)

    key = Key(shape)
    place = 0  # the axis of the block that comes next
    indexed: list[int] = []  # the entries that count as arrays
    for number, entry in enumerate(entries):
        axis = len(key.places)
        if entry is Ellipsis:
            continue  # which keeps the entries on its two sides apart, even if it stands for no axis
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
            key.places.append(entry % shape[axis])
            indexed.append(number)
        else:
            count = entry.ndim if entry.kind is Bool else 1
            key.places += [slice(0, size, 1) for size in shape[axis : axis + count]]
            key.groups.append(Group(place, count, _indices(entry._on(x.backend), shape, axis)))
            indexed.append(number)
            place += count
    if key.groups:
        key.first = indexed != list(range(indexed[0], indexed[0] + len(indexed)))
        key._common()
    return x, key


def _entry(x: TensorBase, entry: Any) -> Any:
    """An integer, or a tensor of indices or of truth."""
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
    elif not isinstance(entry, (bool, np.bool_)):
        try:
            return index(entry)
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
    """The indices themselves, or the places, in reading order, where a mask holds."""
    if entry.kind is Int:
        return entry
    wanted = shape[axis : axis + entry.ndim]
    if entry.shape != wanted:
        raise ShapeError(
            f"index: a mask of shape {entry.shape} does not fit the axes of size {wanted} of a tensor of shape {shape}"
        )
    return flatnonzero("index", entry, "use phlox.where(mask, x, other) or x.masked_fill(mask, value)")


def sole_mask(x: TensorBase, given: Any) -> TensorBase | None:
    """The mask, if the key is nothing but one that fits."""
    if isinstance(given, TensorBase) and given.kind is Bool and given.shape == x.shape[: given.ndim]:
        return given if given.backend is x.backend or is_below(given.backend, x.backend) else None
    return None


def flatnonzero(name: str, mask: TensorBase, remedy: str) -> Any:
    """The places, in reading order, where a mask holds; `UnsupportedError` with a remedy under a trace."""
    if mask.backend.is_traced(mask.primitive):
        raise UnsupportedError(
            f"{name}: the shape of the result would depend on the values of the mask of shape {mask.shape}, which a "
            f"program that is being traced does not know; {remedy}"
        )
    return mask._apply("reshape", (mask.size,))._apply_to(Int, "flatnonzero")


def _forward(entry: slice, size: int) -> tuple[slice, bool]:
    """The slice with explicit bounds and a positive step, and whether its elements then stand in reverse order."""
    if entry.step == 0:
        raise IndexRangeError("index: a slice has step zero")
    try:
        steps = range(*entry.indices(size))
    except TypeError:
        raise KindError(f"index: a slice is of integers, got {entry!r:.60}") from None
    if len(steps) == 0:
        return slice(0, 0, 1), False
    low, high = min(steps[0], steps[-1]), max(steps[0], steps[-1])
    return slice(low, high + 1, abs(steps.step)), steps.step < 0


def _permuted(x: X, order: tuple[int, ...]) -> X:
    return x if order == tuple(range(len(order))) else x._apply("permute_dims", order)
