"""The layout changes of an adapter: views and joins of lazy tensors, each with its inverse. No tensor is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from phlox.errors import RecordError
from phlox.record import LazyTensor

Shape: TypeAlias = tuple[int, ...]
ShapeFunction: TypeAlias = Callable[[Shape], Shape]


class Layout(Protocol):
    """Converts tensors of theirs to ours (`forward`), and back (`backward`). Equal layouts do the same."""

    def forward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """Ours from theirs; RecordError if the shapes do not fit."""
        ...

    def backward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """Theirs from ours."""
        ...


@dataclass(frozen=True, slots=True)
class Same:
    """No change, for plain values too."""

    def forward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `Layout`."""
        return tensors

    def backward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `Layout`."""
        return tensors


@dataclass(frozen=True, slots=True)
class Transposed:
    """Axis i of ours is axis `axes[i]` of theirs; by default the two axes of a matrix are exchanged."""

    axes: tuple[int, ...] | None = None

    def forward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `Layout`."""
        return [self._transposed(tensor, back=False) for tensor in tensors]

    def backward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `Layout`."""
        return [self._transposed(tensor, back=True) for tensor in tensors]

    def _transposed(self, tensor: LazyTensor, *, back: bool) -> LazyTensor:
        axes = (1, 0) if self.axes is None else self.axes
        if len(tensor.shape) != len(axes):
            hint = "; give axes=(...)" if self.axes is None else ""
            raise RecordError(f"shape {tensor.shape} does not have {len(axes)} axes to transpose{hint}")
        order = tuple(axes.index(i) for i in range(len(axes))) if back else axes
        return tensor.map(lambda array: array.transpose(order), tuple(tensor.shape[i] for i in order))


@dataclass(frozen=True, slots=True)
class HeadParts:
    """The first axis of theirs has, for each head, `count` parts one after another; ours is each part of all heads."""

    heads: int
    count: int

    def forward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `Layout`."""
        (whole,) = tensors
        size, *others = whole.shape or (0,)
        if size % (self.heads * self.count):
            raise RecordError(f"shape {whole.shape} is not {self.count} parts for each of {self.heads} heads")

        def part(number: int) -> Callable[[Any], Any]:
            return lambda array: array.reshape(self.heads, self.count, -1, *others)[:, number].reshape(-1, *others)

        return [whole.map(part(number), (size // self.count, *others)) for number in range(self.count)]

    def backward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `Layout`."""
        first = tensors[0]
        size, *others = first.shape or (0,)
        if any(tensor.shape != first.shape for tensor in tensors) or size % self.heads:
            raise RecordError(
                f"shapes {', '.join(str(tensor.shape) for tensor in tensors)} are not of {self.heads} heads"
            )

        def joined() -> Any:
            parts = [tensor.read().reshape(self.heads, -1, *others) for tensor in tensors]
            return np.stack(parts, 1).reshape(-1, *others)

        return [LazyTensor.from_function((size * self.count, *others), first.dtype, joined, first.path)]


@dataclass(frozen=True, slots=True)
class Parts:
    """One tensor of theirs is several of ours along `axis`, with lengths in this ratio."""

    axis: int
    ratio: tuple[int, ...]

    def forward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `Layout`."""
        (whole,) = tensors
        axis = self._axis(whole.shape)
        length, total = whole.shape[axis], sum(self.ratio)
        if length % total:
            raise RecordError(
                f"axis {self.axis} of shape {whole.shape} cannot be split {self._text()}: "
                f"{length} does not divide by {total}"
            )
        parts: list[LazyTensor] = []
        start = 0
        for share in self.ratio:
            stop = start + length // total * share
            shape = (*whole.shape[:axis], stop - start, *whole.shape[axis + 1 :])
            parts.append(whole.map(_slicer(axis, start, stop), shape))
            start = stop
        return parts

    def backward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `Layout`."""
        first = tensors[0]
        axis = self._axis(first.shape)
        shapes = [tensor.shape for tensor in tensors]
        lengths = [shape[axis] if len(shape) > axis else -1 for shape in shapes]
        other_axes = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
        unit = sum(lengths) // sum(self.ratio)
        if len(other_axes) > 1 or lengths != [unit * share for share in self.ratio]:
            raise RecordError(
                f"shapes {', '.join(map(str, shapes))} cannot be joined {self._text()} along axis {self.axis}"
            )
        if len(types := {str(tensor.dtype): None for tensor in tensors}) > 1:
            raise RecordError(f"tensors of {' and '.join(types)} cannot be joined; cast them to one dtype first")
        shape = (*first.shape[:axis], sum(lengths), *first.shape[axis + 1 :])
        parts = tuple(tensors)

        def joined() -> Any:
            return np.concatenate([part.read() for part in parts], axis)

        return [LazyTensor.from_function(shape, first.dtype, joined, first.path)]

    def _axis(self, shape: Shape) -> int:
        if not -len(shape) <= self.axis < len(shape):
            raise RecordError(f"shape {shape} has no axis {self.axis}")
        return self.axis % len(shape)

    def _text(self) -> str:
        return ":".join(map(str, self.ratio))


@dataclass(frozen=True, slots=True)
class Stacked:
    """Every `count` tensors of theirs are one of ours, along a new first axis; as transposed matrices by default."""

    count: int
    transposed: bool = True

    def forward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `Layout`."""
        return [self._stacked(tensors[i : i + self.count]) for i in range(0, len(tensors), self.count)]

    def backward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `Layout`."""
        return [part for whole in tensors for part in self._parts(whole)]

    def _stacked(self, tensors: list[LazyTensor]) -> LazyTensor:
        first = tensors[0]
        if len({(tensor.shape, str(tensor.dtype)) for tensor in tensors}) > 1:
            raise RecordError(f"{self.count} tensors of different shapes or types cannot be stacked")

        def stacked() -> Any:
            arrays = [tensor.read() for tensor in tensors]
            return np.stack([array.T for array in arrays] if self.transposed else arrays)

        shape = first.shape[::-1] if self.transposed else first.shape
        return LazyTensor.from_function((self.count, *shape), first.dtype, stacked, first.path)

    def _parts(self, whole: LazyTensor) -> list[LazyTensor]:
        if len(whole.shape) < 2 or whole.shape[0] != self.count:
            raise RecordError(f"shape {whole.shape} is not a stack of {self.count} tensors")
        shape = whole.shape[:0:-1] if self.transposed else whole.shape[1:]

        def part(number: int) -> Callable[[Any], Any]:
            return lambda array: array[number].T if self.transposed else array[number]

        return [whole.map(part(number), shape) for number in range(self.count)]


@dataclass(frozen=True, slots=True)
class Alternating:
    """Theirs has the elements of two of ours in turn, along its last axis."""

    def forward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `Layout`."""
        (whole,) = tensors
        *shape, size = whole.shape or (1,)
        if size % 2:
            raise RecordError(f"the last axis of shape {whole.shape} has an odd size")
        return [whole.map(lambda array, i=i: array[..., i::2], (*shape, size // 2)) for i in range(2)]

    def backward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `Layout`."""
        first, second = tensors
        *shape, size = first.shape
        if second.shape != first.shape:
            raise RecordError(f"shapes {first.shape} and {second.shape} differ")

        def joined() -> Any:
            return np.stack([first.read(), second.read()], -1).reshape(*shape, 2 * size)

        return [LazyTensor.from_function((*shape, 2 * size), first.dtype, joined, first.path)]


@dataclass(frozen=True, slots=True)
class Reversed:
    """The inverse of a layout."""

    layout: Layout

    def forward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `Layout`."""
        return self.layout.backward(tensors)

    def backward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `Layout`."""
        return self.layout.forward(tensors)


@dataclass(frozen=True, slots=True)
class Then:
    """One layout after another."""

    first: Layout
    second: Layout

    def forward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `Layout`."""
        return self.second.forward(self.first.forward(tensors))

    def backward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `Layout`."""
        return self.first.backward(self.second.backward(tensors))


@dataclass(frozen=True, slots=True)
class Converted:
    """Custom functions on the arrays of single tensors."""

    forward_function: Callable[[Any], Any]
    backward_function: Callable[[Any], Any] | None
    shape: ShapeFunction | None = None
    shape_back: ShapeFunction | None = None

    def forward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `Layout`."""
        return [tensor.map(self.forward_function, _shaped(self.shape, tensor)) for tensor in tensors]

    def backward(self, tensors: list[LazyTensor]) -> list[LazyTensor]:
        """See `Layout`."""
        if self.backward_function is None:
            raise RecordError("its rule has no inverse; give `convert` the function `backward`")
        return [tensor.map(self.backward_function, _shaped(self.shape_back, tensor)) for tensor in tensors]


def _shaped(function: ShapeFunction | None, tensor: LazyTensor) -> Shape:
    return tensor.shape if function is None else function(tensor.shape)


def _slicer(axis: int, start: int, stop: int) -> Callable[[Any], Any]:
    index = (*[slice(None)] * axis, slice(start, stop))
    return lambda array: array[index]


def ratio_of(sizes: Sequence[int] | None, count: int, location: str) -> tuple[int, ...]:
    """`sizes` as a ratio of `count` parts; equal parts for None."""
    ratio = (1,) * count if sizes is None else tuple(sizes)
    if len(ratio) != count or any(type(share) is not int or share < 1 for share in ratio):
        raise RecordError(f"{location}: sizes={sizes!r} are not {count} integers from 1, one for each part")
    return ratio
