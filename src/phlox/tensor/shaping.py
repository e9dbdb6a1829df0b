"""Moving elements about: shape, order of axes, indexing."""

from __future__ import annotations

import math
from operator import index
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import numpy as np

from phlox.backend import Bool, Int
from phlox.errors import IndexRangeError, KindError, ShapeError
from phlox.tensor.base import TensorBase

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import EllipsisType

    from phlox.tensor.tensor import Tensor

Entry: TypeAlias = "int | slice | EllipsisType | Tensor[Any, Any, Int] | None"


class Shaping(TensorBase):
    """Nothing here changes a value; what a result shares with its source is never visible."""

    __slots__ = ()

    @property
    def T(self) -> Self:
        """A matrix with its axes exchanged; see `mT` for stacks of matrices."""
        if self.ndim != 2:
            raise ShapeError(f"T: needs a tensor of rank 2, got shape {self.shape}; use .mT or .permute_dims(...)")
        return self._apply("permute_dims", (1, 0))

    @property
    def mT(self) -> Self:
        """The last two axes exchanged."""
        return self.swapaxes(-1, -2)

    def reshape(self, *shape: int | tuple[int, ...]) -> Self:
        """The same elements in reading order in another shape, of which one size may be -1."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        try:
            resolved = [index(size) for size in sizes]  # pyright: ignore[reportArgumentType]
        except TypeError:
            raise ShapeError(f"reshape: a shape is made of integers, got {sizes!r}") from None
        if resolved.count(-1) == 1:
            rest = -math.prod(resolved)
            if rest == 0 or self.size % rest:
                raise ShapeError(f"reshape: cannot arrange shape {self.shape} as {tuple(resolved)}")
            resolved[resolved.index(-1)] = self.size // rest
        if math.prod(resolved) != self.size or min(resolved, default=0) < 0:
            raise ShapeError(f"reshape: cannot arrange shape {self.shape} as {tuple(resolved)}")
        return self._apply("reshape", tuple(resolved))

    def flatten(self, start: int = 0, end: int = -1) -> Self:
        """The axes from `start` to `end` made one."""
        if self.ndim == 0:
            return self._apply("reshape", (1,))
        first, last = self._axis("flatten", start), self._axis("flatten", end)
        shape = self.shape
        return self._apply("reshape", (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))

    def permute_dims(self, *axes: int | tuple[int, ...]) -> Self:
        """The axes in another order."""
        given = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        order = tuple(self._axis("permute_dims", axis) for axis in given)  # pyright: ignore[reportArgumentType]
        if sorted(order) != list(range(self.ndim)):
            raise ShapeError(f"permute_dims: {given} does not name each axis of shape {self.shape} once")
        return self._apply("permute_dims", order)

    def swapaxes(self, first: int, second: int) -> Self:
        """Two axes exchanged."""
        order = list(range(self.ndim))
        a, b = self._axis("swapaxes", first), self._axis("swapaxes", second)
        order[a], order[b] = b, a
        return self._apply("permute_dims", tuple(order))

    def squeeze(self, axis: int | tuple[int, ...] | None = None) -> Self:
        """Without these axes, which must have size one; None is all such axes."""
        shape = self.shape
        if axis is None:
            axes = tuple(place for place, size in enumerate(shape) if size == 1)
        else:
            axes = self._axes("squeeze", axis)
            if any(shape[place] != 1 for place in axes):
                raise ShapeError(f"squeeze: axes {axes} of shape {shape} are not all of size one")
        return self._apply("squeeze", axes)

    def expand_dims(self, axis: int | tuple[int, ...]) -> Self:
        """With new axes of size one at these places of the result."""
        given = axis if isinstance(axis, tuple) else (axis,)
        rank = self.ndim + len(given)
        if not all(-rank <= place < rank for place in given) or len({place % rank for place in given}) < len(given):
            raise ShapeError(f"expand_dims: axis {axis} does not fit a tensor of shape {self.shape}")
        return self._apply("expand_dims", tuple(sorted(place % rank for place in given)))

    def broadcast_to(self, shape: tuple[int, ...]) -> Self:
        """Repeated along axes of size one, and along new leading axes, until the shape is this."""
        return self._apply("broadcast_to", tuple(shape))

    def flip(self, axis: int | tuple[int, ...] | None = None) -> Self:
        """In reverse order along these axes."""
        return self._apply("flip", self._axes("flip", axis))

    def pad(self, widths: tuple[tuple[int, int], ...], value: float = 0.0) -> Self:
        """With so many elements of `value` (before, after) added along each axis."""
        if len(widths) != self.ndim or any(len(pair) != 2 or min(pair) < 0 for pair in widths):
            raise ShapeError(f"pad: needs one pair of non-negative widths for each axis of {self.shape}, got {widths}")
        filling = False if value == 0 and self.kind is Bool else 0 if value == 0 else self._operand("pad", value)
        return self._apply("pad", tuple((int(a), int(b)) for a, b in widths), filling)

    def take(self, indices: Tensor[Any, Any, Int], axis: int = 0) -> Self:
        """The slices at `indices` along an axis, which their axes replace; negative ones count from the end."""
        return self._apply("take", self._indices("take", indices), self._axis("take", axis))

    def take_along_axis(self, indices: Tensor[Any, Any, Int], axis: int = -1) -> Self:
        """For every place of `indices`, the element of the same place but with that index along the axis."""
        place = self._axis("take_along_axis", axis)
        mine, theirs = self.shape, indices.shape
        if len(mine) != len(theirs) or mine != (*theirs[:place], mine[place], *theirs[place + 1 :]):
            raise ShapeError(
                f"take_along_axis: indices of shape {indices.shape} do not fit a tensor of shape {self.shape}; "
                f"they must agree in every axis but {place}"
            )
        return self._apply("take_along_axis", self._indices("take_along_axis", indices), place)

    def _indices(self, name: str, indices: TensorBase) -> Any:
        if indices.kind is not Int or indices.backend is not self.backend:
            raise KindError(
                f"{name}: indices must be an Int tensor on {self.backend!r}, "
                f"got {indices.kind.__name__} on {indices.backend!r}"
            )
        return indices.primitive

    def split(self, size: int, axis: int = 0) -> list[Self]:
        """Pieces of this size along an axis; the last one may be smaller."""
        if size < 1:
            raise ShapeError(f"split: pieces of size {size}")
        place = self._axis("split", axis)
        before = (slice(None),) * place
        return [self[(*before, slice(at, at + size))] for at in range(0, self.shape[place], size)]

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("a tensor of rank 0 has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Entry | tuple[Entry, ...]) -> Self:
        """Integers, slices, None and `...` as in NumPy; one Int tensor takes along its axis.

        An integer out of range is `IndexRangeError`.
        """
        entries: list[Any] = list(key) if isinstance(key, tuple) else [key]
        shape = self.shape
        named = sum(entry is not None and entry is not Ellipsis for entry in entries)
        dots = [at for at, entry in enumerate(entries) if entry is Ellipsis]
        if len(dots) > 1 or named > len(shape):
            raise IndexRangeError(f"an index of {named} axes does not fit a tensor of shape {shape}")
        if not dots:
            entries.append(Ellipsis)
        at = dots[0] if dots else len(entries) - 1
        entries[at : at + 1] = [slice(None)] * (len(shape) - named)

        places: list[int | slice] = []
        reverse: list[int] = []
        new: list[int] = []
        lists: list[tuple[int, TensorBase]] = []
        place = 0  # the axis of the result that comes next
        for entry in entries:
            if entry is None:
                new.append(place)
                place += 1
                continue
            size = shape[len(places)]
            if isinstance(entry, TensorBase):
                lists.append((place, entry))
                entry = slice(None)
            if isinstance(entry, slice):
                part, backwards = _forward(cast("slice[Any, Any, Any]", entry), size)
                if backwards:
                    reverse.append(place)
                places.append(part)
                place += 1
            elif isinstance(entry, (int, np.integer)) and not isinstance(entry, bool):
                if not -size <= entry < size:
                    raise IndexRangeError(f"index {entry} is out of range for axis {len(places)} of shape {shape}")
                places.append(index(cast("int", entry)) % size)
            else:
                raise KindError(f"cannot index a tensor with {type(entry).__name__}; use integers, slices, Int tensors")
        if len(lists) > 1:
            raise KindError("indexing with several Int tensors at once is not supported; use take for each axis")
        whole = all(entry == slice(0, size, 1) for entry, size in zip(places, shape, strict=True))
        result = self if whole else self._apply("index", tuple(places))
        if new:
            result = result._apply("expand_dims", tuple(new))
        if reverse:
            result = result._apply("flip", tuple(reverse))
        for axis, indices in lists:
            result = result._apply("take", self._indices("index", indices), axis)
        return result


def _forward(entry: slice, size: int) -> tuple[slice, bool]:
    """The slice with explicit bounds and a positive step, and whether its elements then stand in reverse order."""
    if entry.step == 0:
        raise IndexRangeError("a slice has step zero")
    steps = range(*entry.indices(size))
    if len(steps) == 0:
        return slice(0, 0, 1), False
    low, high = min(steps[0], steps[-1]), max(steps[0], steps[-1])
    return slice(low, high + 1, abs(steps.step)), steps.step < 0
