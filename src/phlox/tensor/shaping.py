"""Moving elements about: shape, order of axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any, Literal, Self, TypeAlias, get_args

import numpy as np

from phlox.backend import Bool, Int
from phlox.errors import RangeError, ShapeError
from phlox.tensor.base import TensorBase

Padding: TypeAlias = Literal["constant", "reflect", "symmetric", "edge", "replicate", "wrap", "circular"]
"""NumPy's names, and PyTorch's two others: `replicate` is `edge`, `circular` is `wrap`."""

_SAME = {"replicate": "edge", "circular": "wrap"}


def _integers(name: str, what: str, values: Any) -> tuple[int, ...]:
    """An integer, or a sequence of them, as a tuple."""
    try:
        return tuple(index(one) for one in (values if _multi_output(values) else (values,)))
    except TypeError:
        raise ShapeError(f"{name}: {what} is an integer, or there is a sequence of them; got {values!r}") from None


def _multi_output(values: Any) -> bool:
    return hasattr(values, "__len__")


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
        old = self.shape
        if sizes == old:
            return self
        try:
            resolved = [index(size) for size in sizes]  # pyright: ignore[reportArgumentType]
        except TypeError:
            raise ShapeError(f"reshape: a shape is made of integers, got {sizes!r}") from None
        count = math.prod(old)
        if resolved.count(-1) == 1:
            rest = -math.prod(resolved)
            if rest == 0 or count % rest:
                raise ShapeError(f"reshape: cannot arrange shape {old} as {tuple(resolved)}")
            resolved[resolved.index(-1)] = count // rest
        if math.prod(resolved) != count or min(resolved, default=0) < 0:
            raise ShapeError(f"reshape: cannot arrange shape {old} as {tuple(resolved)}")
        return self._apply("reshape", tuple(resolved))

    def flatten(self, start: int = 0, end: int = -1) -> Self:
        """The axes from `start` to `end` made one; `ShapeError` where the second comes before the first."""
        if self.ndim == 0:
            return self._apply("reshape", (1,))
        first, last = self._axis("flatten", start), self._axis("flatten", end)
        shape = self.shape
        if first > last:
            raise ShapeError(f"flatten: axis {start} of shape {shape} comes after axis {end}; give the first one first")
        return self._apply("reshape", (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))

    def unflatten(self, axis: int, sizes: Sequence[int]) -> Self:
        """An axis made several of these sizes, of which one may be -1."""
        place, shape = self._axis("unflatten", axis), self.shape
        new = _integers("unflatten", "a size", sizes)
        rest = -math.prod(new)
        if new.count(-1) == 1 and rest > 0 and shape[place] % rest == 0:
            new = tuple(shape[place] // rest if size == -1 else size for size in new)
        if min(new, default=0) < 0 or math.prod(new) != shape[place]:
            raise ShapeError(f"unflatten: axis {place} of shape {shape} is not as long as the sizes {sizes} together")
        return self._apply("reshape", (*shape[:place], *new, *shape[place + 1 :]))

    def permute_dims(self, *axes: int | tuple[int, ...]) -> Self:
        """The axes in another order."""
        given = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        order = self._places("permute_dims", given)
        if sorted(order) != list(range(self.ndim)):
            raise ShapeError(f"permute_dims: {given} does not name each axis of shape {self.shape} once")
        return self._apply("permute_dims", order)

    def swapaxes(self, first: int, second: int) -> Self:
        """Two axes exchanged."""
        order = list(range(self.ndim))
        a, b = self._axis("swapaxes", first), self._axis("swapaxes", second)
        order[a], order[b] = b, a
        return self._apply("permute_dims", tuple(order))

    def moveaxis(self, source: int | tuple[int, ...], destination: int | tuple[int, ...]) -> Self:
        """Axes moved to other places, the others kept in order."""
        sources = [self._axis("moveaxis", axis) for axis in _integers("moveaxis", "an axis", source)]
        targets = [self._axis("moveaxis", axis) for axis in _integers("moveaxis", "an axis", destination)]
        if len(set(sources)) != len(sources) or len(set(targets)) != len(targets) or len(sources) != len(targets):
            raise ShapeError(
                f"moveaxis: {source} and {destination} are not equally many different axes of shape {self.shape}"
            )
        order = [axis for axis in range(self.ndim) if axis not in sources]
        for target, axis in sorted(zip(targets, sources, strict=True)):
            order.insert(target, axis)
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

    def rot90(self, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Self:
        """Turned by k right angles in the plane of two axes, from the first one towards the second."""
        if len(axes) != 2 or len({self._axis("rot90", axis) for axis in axes}) < 2:
            raise ShapeError(f"rot90: a plane has two different axes, got {axes} of shape {self.shape}")
        first, second = axes
        match k % 4:
            case 0:
                return self
            case 1:
                return self.flip(second).swapaxes(first, second)
            case 2:
                return self.flip(axes)
            case _:
                return self.swapaxes(first, second).flip(second)

    def roll(self, shift: int | tuple[int, ...], axis: int | tuple[int, ...] | None = None) -> Self:
        """Moved along axes, what leaves at one end coming in at the other; without an axis, in reading order.

        One shift serves all axes, or there is one for each; an axis may be named repeatedly.
        """
        shifts = _integers("roll", "a shift", shift)
        if axis is None:
            return self._apply("reshape", (self.size,)).roll(sum(shifts), 0)._apply("reshape", self.shape)
        axes = [self._axis("roll", one) for one in _integers("roll", "an axis", axis)]
        if not _multi_output(shift):
            shifts *= len(axes)
        if len(shifts) != len(axes):
            raise ShapeError(
                f"roll: {len(shifts)} shifts do not fit {len(axes)} axes; give one for each, or one for all"
            )
        turns = dict.fromkeys(sorted(axes), 0)
        for one, turn in zip(axes, shifts, strict=True):
            turns[one] = (turns[one] + turn) % max(self.shape[one], 1)
        turns = {one: turn for one, turn in turns.items() if turn}
        return self._apply("roll", tuple(turns.values()), tuple(turns)) if turns else self

    def repeat(self, repeats: int | Sequence[int], axis: int | None = None) -> Self:
        """Each element so many times, one after the other; without an axis, of the elements in reading order.

        There may be a number for each element along the axis. See `tile` for repeating the whole.

        >>> import phlox as px
        >>> px.tensor([1, 2]).repeat(2).tolist(), px.tensor([1, 2]).tile((2,)).tolist()
        ([1, 1, 2, 2], [1, 2, 1, 2])
        """
        if axis is None:
            return self._apply("reshape", (self.size,)).repeat(repeats, 0)
        place = self._axis("repeat", axis)
        times = _integers("repeat", "a number of times", repeats)
        if min(times, default=0) < 0:
            raise ShapeError(f"repeat: the number of times is negative: {repeats}")
        if not _multi_output(repeats):
            return self._apply("repeat", times[0], place)
        if len(times) != self.shape[place]:
            raise ShapeError(f"repeat: {len(times)} numbers do not fit axis {place} of shape {self.shape}")
        backend = self._ops.backend
        places = backend.from_host(np.repeat(np.arange(len(times)), times), Int, self.device)
        return self._apply("take", places, place)

    def tile(self, *times: int | tuple[int, ...]) -> Self:
        """The whole so many times along each axis; of too few numbers or axes, ones are added in front."""
        given = _integers("tile", "a number of times", times[0] if len(times) == 1 else times)
        if min(given, default=0) < 0:
            raise ShapeError(f"tile: the number of times is negative: {given}")
        missing = len(given) - self.ndim
        x = self._apply("expand_dims", tuple(range(missing))) if missing > 0 else self
        return x._apply("tile", (1,) * -missing + given)

    def pad(self, widths: tuple[tuple[int, int], ...], value: float = 0.0, *, mode: Padding = "constant") -> Self:
        """With so many elements (before, after) added along each axis.

        `mode` says which: `"constant"` adds `value`, `"edge"` (or `"replicate"`) the outermost elements, `"reflect"`
        the elements mirrored at the outermost, `"symmetric"` mirrored behind it, and `"wrap"` (or `"circular"`) those
        of the other end. Only `"constant"` adds to an axis of size zero; otherwise that is `ShapeError`.

        >>> import phlox as px
        >>> px.tensor([1, 2, 3]).pad(((2, 1),), mode="reflect").tolist()
        [3, 2, 1, 2, 3, 2]
        """
        if len(widths) != self.ndim or any(len(pair) != 2 or min(pair) < 0 for pair in widths):
            raise ShapeError(f"pad: needs one pair of non-negative widths for each axis of {self.shape}, got {widths}")
        pairs = tuple((int(a), int(b)) for a, b in widths)
        if mode == "constant":
            filling = False if value == 0 and self.kind is Bool else 0 if value == 0 else self._operand("pad", value)
            return self._apply("pad", pairs, filling)
        if mode not in get_args(Padding):
            raise RangeError(f"pad: the mode is one of {', '.join(get_args(Padding))}, got {mode!r}")
        if value != 0:
            raise RangeError(f"pad: only the mode 'constant' takes a value, got {value!r} with mode {mode!r}")
        if any(size == 0 and any(pair) for size, pair in zip(self.shape, pairs, strict=True)):
            raise ShapeError(f"pad: mode {mode!r} has no elements to add to the axes of size 0 of shape {self.shape}")
        return self._apply("extend", pairs, _SAME.get(mode, mode)) if any(map(any, pairs)) else self

    # --- pieces

    def split(self, size: int | Sequence[int], axis: int = 0) -> list[Self]:
        """Pieces of this size along an axis, of which the last one may be smaller; or pieces of these sizes."""
        place = self._axis("split", axis)
        whole = self.shape[place]
        sizes = _integers("split", "a size", size)
        if not _multi_output(size):
            if sizes[0] < 1:
                raise ShapeError(f"split: pieces of size {size}; a piece has at least one element")
            ends = [*range(sizes[0], whole, sizes[0]), whole]
        else:
            if sum(sizes) != whole or min(sizes, default=0) < 0:
                raise ShapeError(f"split: pieces of sizes {list(sizes)} do not make up axis {place} of {self.shape}")
            ends = np.cumsum(sizes).tolist()
        pieces: list[Self] = []
        for start, end in zip([0, *ends], ends, strict=False):
            piece = [slice(0, count, 1) for count in self.shape]
            piece[place] = slice(start, end, 1)
            pieces.append(self._apply("index", tuple(piece)))
        return pieces

    def chunk(self, count: int, axis: int = 0) -> list[Self]:
        """At most `count` pieces along an axis, all of one size but the last one, which may be smaller."""
        if count < 1:
            raise ShapeError(f"chunk: a tensor cannot be cut into {count} pieces")
        return self.split(max(1, -(-self.shape[self._axis("chunk", axis)] // count)), axis)

    def unstack(self, axis: int = 0) -> list[Self]:
        """The slices along an axis, which they lack: what `stack` would join."""
        place = self._axis("unstack", axis)
        whole: list[int | slice] = [slice(0, count, 1) for count in self.shape]
        return [self._apply("index", (*whole[:place], i, *whole[place + 1 :])) for i in range(self.shape[place])]

    def unfold(self, axis: int, size: int, step: int = 1) -> Self:
        """All windows of `size` elements along an axis, `step` apart: the axis counts them, a new last axis is inside.

        >>> import phlox as px
        >>> px.arange(6).unfold(0, 3, step=2).tolist()
        [[0, 1, 2], [2, 3, 4]]
        """
        place = self._axis("unfold", axis)
        if step < 1 or not 1 <= size <= self.shape[place]:
            raise ShapeError(
                f"unfold: windows of {size} elements, {step} apart, do not fit axis {place} of shape {self.shape}"
            )
        return self._apply("windows", place, size, step)

    # --- triangles

    def tril(self, k: int = 0) -> Self:
        """Matrices (the last two axes) with zeros above the k-th diagonal; those above the main one are positive."""
        return self._triangle("tril", k, lower=True)

    def triu(self, k: int = 0) -> Self:
        """Matrices (the last two axes) with zeros below the k-th diagonal; those above the main one are positive."""
        return self._triangle("triu", k, lower=False)

    def _triangle(self, name: str, k: int, *, lower: bool) -> Self:
        if self.ndim < 2:
            raise ShapeError(f"{name}: needs a matrix or a stack of them, got shape {self.shape}")
        rows, columns = self.shape[-2:]
        backend = self._ops.backend
        k = min(max(k if lower else k - 1, -rows), columns)
        below = backend.bool_tri(rows, columns, k, self.device)
        zero = False if self.kind is Bool else 0
        kept = (self.primitive, zero) if lower else (zero, self.primitive)
        return self._with(backend.where(below, *kept))
