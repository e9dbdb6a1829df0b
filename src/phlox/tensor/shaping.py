"""Reshaping and rearranging elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Literal, Self, TypeAlias, cast, get_args

import numpy as np

from phlox.backend import Bool, Int
from phlox.backend.tracing.dimension import as_size, is_open, larger, pads, smaller
from phlox.backend.tracing.symbolic import all_ints, any_less, differ, is_symbolic
from phlox.errors import RangeError, ShapeError
from phlox.tensor.base import TensorBase

Padding: TypeAlias = Literal["constant", "reflect", "symmetric", "edge", "replicate", "wrap", "circular"]
"""NumPy's names, and two of PyTorch's: `replicate` is `edge`, `circular` is `wrap`."""

_SAME = {"replicate": "edge", "circular": "wrap"}


def _integers(name: str, label: str, values: Any) -> tuple[int, ...]:
    """An integer, or a sequence of integers, as a tuple."""
    try:
        return tuple(as_size(value) for value in (values if _is_sequence(values) else (values,)))
    except TypeError:
        raise ShapeError(f"{name}: {label} must be an integer or a sequence of integers, got {values!r}") from None


def _is_sequence(values: Any) -> bool:
    return hasattr(values, "__len__")


def _open_shape(old: tuple[int, ...], count: int, sizes: list[Any]) -> tuple[int, ...]:
    """A shape with -1 inferred, for shapes with open sizes."""
    product = math.prod([size for size in sizes if type(size) is not int or size != -1])
    inferred = [axis for axis, size in enumerate(sizes) if type(size) is int and size == -1]
    if len(inferred) == 1 and not (type(product) is int and product == 0) and not differ(count % product, 0):
        sizes = [*sizes[: inferred[0]], count // product, *sizes[inferred[0] + 1 :]]
    elif inferred or differ(product, count) or any_less(sizes, 0):
        raise ShapeError(f"reshape: cannot arrange shape {old} as {tuple(sizes)}")
    return tuple(sizes)


class Shaping(TensorBase):
    """These methods move elements and change no values. A result may share memory with x; this is never visible."""

    __slots__ = ()

    @property
    def T(self) -> Self:
        """The transpose of a matrix. For batches of matrices see `mT`."""
        if self.ndim != 2:
            raise ShapeError(f"T: needs a tensor of rank 2, got shape {self.shape}; use .mT or .permute_dims(...)")
        return self._apply("permute_dims", (1, 0))

    @property
    def mT(self) -> Self:
        """The transpose of the last two axes."""
        return self.swapaxes(-1, -2)

    def reshape(self, *shape: int | tuple[int, ...]) -> Self:
        """The same elements, in row-major order, in another shape. One size may be -1: it is inferred."""
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        old = self.shape
        if sizes == old:
            return self
        try:
            resolved: list[Any] = [*sizes] if all_ints(map(type, sizes)) else [*map(as_size, cast("Any", sizes))]
        except TypeError:
            raise ShapeError(f"reshape: a shape must consist of integers, got {sizes!r}") from None
        count = math.prod(old)
        if count.__class__ is not int:
            return self._apply("reshape", _open_shape(old, count, resolved))
        if resolved.count(-1) == 1:
            known_size = -math.prod(resolved)
            if known_size == 0 or count % known_size:
                raise ShapeError(f"reshape: cannot arrange shape {old} as {tuple(resolved)}")
            resolved[resolved.index(-1)] = count // known_size
        if math.prod(resolved) != count or min(resolved, default=0) < 0:
            raise ShapeError(f"reshape: cannot arrange shape {old} as {tuple(resolved)}")
        return self._apply("reshape", tuple(resolved))

    def flatten(self, start: int = 0, end: int = -1) -> Self:
        """Merge the axes from `start` to `end` (inclusive) to one. Raises `ShapeError` if `end` is before `start`."""
        if self.ndim == 0:
            return self._apply("reshape", (1,))
        first, last = self._axis("flatten", start), self._axis("flatten", end)
        shape = self.shape
        if first > last:
            raise ShapeError(
                f"flatten: axis {start} of shape {shape} comes after axis {end}; start must not come after end"
            )
        return self._apply("reshape", (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :]))

    def unflatten(self, axis: int, sizes: Sequence[int]) -> Self:
        """Split an axis into axes of these sizes. One size may be -1: it is inferred."""
        axis, shape = self._axis("unflatten", axis), self.shape
        new = _integers("unflatten", "a size", sizes)
        known_size = -math.prod(new)
        if new.count(-1) == 1 and known_size > 0 and shape[axis] % known_size == 0:
            new = tuple(shape[axis] // known_size if size == -1 else size for size in new)
        if min(new, default=0) < 0 or math.prod(new) != shape[axis]:
            raise ShapeError(f"unflatten: axis {axis} of shape {shape} does not have the product of the sizes {sizes}")
        return self._apply("reshape", (*shape[:axis], *new, *shape[axis + 1 :]))

    def permute_dims(self, *axes: int | tuple[int, ...]) -> Self:
        """Permute the axes: axis i of the result is axis `axes[i]` of x."""
        listed = axes[0] if len(axes) == 1 and isinstance(axes[0], (tuple, list)) else axes
        order = self._positions("permute_dims", listed)
        if sorted(order) != list(range(self.ndim)):
            raise ShapeError(f"permute_dims: {listed} does not name each axis of shape {self.shape} once")
        return self._apply("permute_dims", order)

    def swapaxes(self, first: int, second: int) -> Self:
        """Swap two axes."""
        order = list(range(self.ndim))
        a, b = self._axis("swapaxes", first), self._axis("swapaxes", second)
        order[a], order[b] = b, a
        return self._apply("permute_dims", tuple(order))

    def moveaxis(self, source: int | tuple[int, ...], destination: int | tuple[int, ...]) -> Self:
        """Move axes to other positions; the other axes keep their order."""
        sources = [self._axis("moveaxis", axis) for axis in _integers("moveaxis", "an axis", source)]
        targets = [self._axis("moveaxis", axis) for axis in _integers("moveaxis", "an axis", destination)]
        if len(set(sources)) != len(sources) or len(set(targets)) != len(targets) or len(sources) != len(targets):
            raise ShapeError(
                f"moveaxis: {source} and {destination} must be equally many distinct axes of shape {self.shape}"
            )
        order = [axis for axis in range(self.ndim) if axis not in sources]
        for target, axis in sorted(zip(targets, sources, strict=True)):
            order.insert(target, axis)
        return self._apply("permute_dims", tuple(order))

    def squeeze(self, axis: int | tuple[int, ...] | None = None) -> Self:
        """Remove these axes, which must have size one; None removes all axes of size one."""
        shape = self.shape
        if axis is None:
            axes = tuple(dim for dim, size in enumerate(shape) if size == 1)
        else:
            axes = self._axes("squeeze", axis)
            if any(shape[dim] != 1 for dim in axes):
                raise ShapeError(f"squeeze: axes {axes} of shape {shape} are not all of size one")
        return self._apply("squeeze", axes)

    def expand_dims(self, axis: int | tuple[int, ...]) -> Self:
        """Insert new axes of size one at these positions of the result."""
        axes = axis if isinstance(axis, tuple) else (axis,)
        rank = len(self.shape) + len(axes)
        positions = {dim % rank for dim in axes if -rank <= dim < rank}
        if len(positions) < len(axes):
            raise ShapeError(f"expand_dims: axis {axis} does not fit a tensor of shape {self.shape}")
        return self._apply("expand_dims", tuple(sorted(positions)))

    def broadcast_to(self, shape: tuple[int, ...]) -> Self:
        """Broadcast to a shape: axes of size one, and new leading axes, are repeated."""
        return self._apply("broadcast_to", tuple(shape))

    def flip(self, axis: int | tuple[int, ...] | None = None) -> Self:
        """Reverse the order of elements along these axes; None reverses all axes."""
        return self._apply("flip", self._axes("flip", axis))

    def rot90(self, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Self:
        """Rotate by k * 90 degrees in the plane of two axes, from the first axis towards the second."""
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
        """Shift elements along axes; elements that leave at one end enter at the other.

        `shift` is one integer for all axes, or one per axis. An axis may be repeated: its shifts add up. With axis None
        the flattened tensor is shifted, and keeps its shape.
        """
        shifts = _integers("roll", "a shift", shift)
        if axis is None:
            return self._apply("reshape", (self.size,)).roll(sum(shifts), 0)._apply("reshape", self.shape)
        axes = [self._axis("roll", dim) for dim in _integers("roll", "an axis", axis)]
        if not _is_sequence(shift):
            shifts *= len(axes)
        if len(shifts) != len(axes):
            raise ShapeError(
                f"roll: {len(shifts)} shifts do not fit {len(axes)} axes; give one per axis, or one for all"
            )
        turns = dict.fromkeys(sorted(axes), 0)
        for dim, turn in zip(axes, shifts, strict=True):
            turns[dim] = (turns[dim] + turn) % max(self.shape[dim], 1)
        turns = {dim: turn for dim, turn in turns.items() if is_open(turn) or turn}
        return self._apply("roll", tuple(turns.values()), tuple(turns)) if turns else self

    def repeat(self, repeats: int | Sequence[int], axis: int | None = None) -> Self:
        """Repeat each element `repeats` times along an axis; with axis None, of the flattened tensor.

        `repeats` is one integer, or one per element along the axis. To repeat the whole tensor see `tile`.

        >>> import phlox as px
        >>> px.tensor([1, 2]).repeat(2).tolist(), px.tensor([1, 2]).tile((2,)).tolist()
        ([1, 1, 2, 2], [1, 2, 1, 2])
        """
        if axis is None:
            return self._apply("reshape", (self.size,)).repeat(repeats, 0)
        axis = self._axis("repeat", axis)
        times = _integers("repeat", "repeats", repeats)
        if min(times, default=0) < 0:
            raise ShapeError(f"repeat: repeats must not be negative, got {repeats}")
        if not _is_sequence(repeats):
            return self._apply("repeat", times[0], axis)
        if len(times) != self.shape[axis]:
            raise ShapeError(f"repeat: {len(times)} repeats do not fit axis {axis} of shape {self.shape}")
        backend = self._ops.backend
        indices = backend.from_host(np.repeat(np.arange(len(times)), times), Int, self.device)
        return self._apply("take", indices, axis)

    def tile(self, *times: int | tuple[int, ...]) -> Self:
        """Repeat the whole tensor along each axis. If counts or axes are too few, ones are added in front."""
        counts = _integers("tile", "the number of times", times[0] if len(times) == 1 else times)
        if min(counts, default=0) < 0:
            raise ShapeError(f"tile: the number of times must not be negative, got {counts}")
        missing = len(counts) - self.ndim
        x = self._apply("expand_dims", tuple(range(missing))) if missing > 0 else self
        return x._apply("tile", (1,) * -missing + counts)

    def pad(self, widths: tuple[tuple[int, int], ...], value: float = 0.0, *, mode: Padding = "constant") -> Self:
        """Pad each axis by (before, after) elements.

        The `mode` gives the added elements. `"constant"`: `value`. `"edge"` (or `"replicate"`): the outermost element.
        `"reflect"`: mirrored, without repeating the outermost element. `"symmetric"`: mirrored, repeating it. `"wrap"`
        (or `"circular"`): from the other end. Only `"constant"` can pad an axis of size zero; else `ShapeError`.

        >>> import phlox as px
        >>> px.tensor([1, 2, 3]).pad(((2, 1),), mode="reflect").tolist()
        [3, 2, 1, 2, 3, 2]
        """
        if len(widths) != self.ndim or any(len(pair) != 2 or min(pair) < 0 for pair in widths):
            raise ShapeError(
                f"pad: needs a pair of non-negative widths for each axis of shape {self.shape}, got {widths}"
            )
        pairs = tuple([(as_size(a), as_size(b)) for a, b in widths])
        if mode == "constant":
            filling = False if value == 0 and self.kind is Bool else 0 if value == 0 else self._operand("pad", value)
            return self._apply("pad", pairs, filling)
        if mode not in get_args(Padding):
            raise RangeError(f"pad: mode must be one of {', '.join(get_args(Padding))}, got {mode!r}")
        if value != 0:
            raise RangeError(f"pad: only the mode 'constant' takes a value, got {value!r} with mode {mode!r}")
        if any(size == 0 and any(pair) for size, pair in zip(self.shape, pairs, strict=True)):
            raise ShapeError(f"pad: mode {mode!r} cannot pad an axis of size 0 of shape {self.shape}")
        return self._apply("extend", pairs, _SAME.get(mode, mode)) if pads(pairs) else self

    # --- pieces

    def split(self, size: int | Sequence[int], axis: int = 0) -> list[Self]:
        """Split along an axis: into pieces of one `size` (the last may be smaller), or of the given sizes."""
        axis = self._axis("split", axis)
        total = self.shape[axis]
        sizes = _integers("split", "a size", size)
        if not _is_sequence(size):
            if sizes[0] < 1:
                raise ShapeError(f"split: the size of a piece must be at least 1, got {size}")
            ends = [*range(sizes[0], total, sizes[0]), total]
        else:
            if sum(sizes) != total or min(sizes, default=0) < 0:
                raise ShapeError(f"split: sizes {list(sizes)} do not add up to axis {axis} of shape {self.shape}")
            ends = list(accumulate(sizes))
        return self._pieces(axis, ends)

    def _pieces(self, axis: int, ends: list[int]) -> list[Self]:
        pieces: list[Self] = []
        for start, end in zip([0, *ends], ends, strict=False):
            piece = [slice(0, count, 1) for count in self.shape]
            piece[axis] = slice(start, end, 1)
            pieces.append(self._apply("index", tuple(piece)))
        return pieces

    def chunk(self, count: int, axis: int = 0) -> list[Self]:
        """Split along an axis into at most `count` pieces of one size (the last may be smaller)."""
        if count < 1:
            raise ShapeError(f"chunk: the count must be at least 1, got {count}")
        axis = self._axis("chunk", axis)
        total = self.shape[axis]
        size = larger(-(-total // count), 1)
        if not is_open(total):
            return self.split(size, axis)
        pieces = count if is_symbolic(total) else -(-int(total) // int(size))
        return self._pieces(axis, [*(smaller(size * (index + 1), total) for index in range(pieces - 1)), total])

    def unstack(self, axis: int = 0) -> list[Self]:
        """The slices along an axis, without that axis: the inverse of `stack`."""
        axis = self._axis("unstack", axis)
        whole: list[int | slice] = [slice(0, count, 1) for count in self.shape]
        return [self._apply("index", (*whole[:axis], i, *whole[axis + 1 :])) for i in range(self.shape[axis])]

    def unfold(self, axis: int, size: int, step: int = 1) -> Self:
        """Sliding windows of `size` elements along an axis, `step` apart. A new last axis holds each window.

        >>> import phlox as px
        >>> px.arange(6).unfold(0, 3, step=2).tolist()
        [[0, 1, 2], [2, 3, 4]]
        """
        axis = self._axis("unfold", axis)
        if step < 1 or not 1 <= size <= self.shape[axis]:
            raise ShapeError(
                f"unfold: windows of {size} elements with step {step} do not fit axis {axis} of shape {self.shape}"
            )
        return self._apply("windows", axis, size, step)

    # --- triangles

    def tril(self, k: int = 0) -> Self:
        """Zero the elements above the k-th diagonal of matrices (the last two axes); k > 0 is above the main one."""
        return self._triangle("tril", k, lower=True)

    def triu(self, k: int = 0) -> Self:
        """Zero the elements below the k-th diagonal of matrices (the last two axes); k > 0 is above the main one."""
        return self._triangle("triu", k, lower=False)

    def _triangle(self, name: str, k: int, *, lower: bool) -> Self:
        if self.ndim < 2:
            raise ShapeError(f"{name}: needs a matrix or a batch of matrices, got shape {self.shape}")
        rows, columns = self.shape[-2:]
        backend = self._ops.backend
        k = min(max(k if lower else k - 1, -rows), columns)
        below = backend.bool_tri(rows, columns, k, self.device)
        zero = False if self.kind is Bool else 0
        kept = (self.primitive, zero) if lower else (zero, self.primitive)
        return self._with(backend.where(below, *kept))
