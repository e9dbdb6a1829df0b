"""`Slice`: the part of an array that this process holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phlox.backend.contract.types import Array, Shape
from phlox.backend.contract.update import ReusedBuffer
from phlox.backend.grid import Grid
from phlox.backend.sharding import AxisNames, Index, Sharding


@dataclass(frozen=True, slots=True)
class Cut:
    """How an array is cut: along one of its axes, over the processes along some axes of a grid."""

    grid: Grid
    names: tuple[str, ...]
    axis: int

    @property
    def parts(self) -> int:
        """The number of slices."""
        return self.grid.count(self.names)

    @property
    def number(self) -> int:
        """The number of the slice that this process holds."""
        return self.grid.place(self.names)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of the processes that hold the slices of an array, in the order of the slices."""
        return self.grid.ranks(self.names)

    @property
    def stays_whole(self) -> bool:
        """Is an array kept as a whole after it was gathered, so that only gradients and states are slices?"""
        return self.grid.stage < 3

    def along(self, axis: int) -> Cut:
        """The same slices along another axis."""
        return Cut(self.grid, self.names, axis)

    def whole(self, shape: Shape) -> Shape:
        """The shape of an array whose slices have this shape."""
        return (*shape[: self.axis], shape[self.axis] * self.parts, *shape[self.axis + 1 :])

    def own(self, shape: Shape) -> Shape:
        """The shape of the slices of an array of this shape."""
        return (*shape[: self.axis], shape[self.axis] // self.parts, *shape[self.axis + 1 :])

    def index(self, shape: Shape) -> Index:
        """The part of an array of this shape that this process holds."""
        step = shape[self.axis] // self.parts
        local = slice(self.number * step, (self.number + 1) * step, 1)
        return tuple([local if axis == self.axis else slice(0, size, 1) for axis, size in enumerate(shape)])

    @property
    def sharding(self) -> Sharding:
        """This cut as the sharding of a device."""
        names: AxisNames = self.names if len(self.names) > 1 else "".join(self.names)
        return Sharding(self.grid, (*[None] * self.axis, names))


def cut_by(sharding: Sharding | None, shape: Shape) -> Cut | None:
    """The cut of an array of this shape and sharding; None if it stays whole, such as if its axis is not divisible."""
    if sharding is None:
        return None
    for axis, names in enumerate(sharding.spec[: len(shape)]):
        if names:
            cut = Cut(sharding.mesh, (names,) if isinstance(names, str) else names, axis)
            return cut if shape[axis] and shape[axis] % cut.parts == 0 and cut.parts > 1 else None
    return None


class Slice:
    """An array that is cut into slices, one in each process of a group; operations see one array of the whole shape."""

    __slots__ = ("__weakref__", "cut", "pending", "shape", "value", "whole")

    value: Array
    """This process's slice, an array of the inner backend."""
    cut: Cut
    shape: Shape
    whole: Array | None
    """The whole array, if it was gathered and is kept."""
    pending: Callable[[], Array] | None
    """Waits for a gather that has started; returns the slices stacked along a new first axis."""

    def __init__(self, value: Array, cut: Cut, shape: Shape) -> None:
        self.value, self.cut, self.shape = value, cut, shape
        self.whole = self.pending = None

    @property
    def is_whole(self) -> bool:
        """Is the whole array here, or being gathered?"""
        return self.whole is not None or self.pending is not None

    def __repr__(self) -> str:
        return f"Slice({self.cut.number} of {self.cut.parts} of {self.shape} along axis {self.cut.axis})"


class SliceBuffer(ReusedBuffer):
    """A buffer that is reused for one slice after another."""

    def __init__(self, memory: ReusedBuffer, cut: Cut, shape: Shape) -> None:
        self._memory, self._cut, self._shape = memory, cut, shape
        self.flat = memory.flat

    def lend(self) -> Slice:
        """A slice over this memory."""
        return Slice(self._memory.lend(), self._cut, self._shape)

    def has_lent(self, x: Array) -> bool:
        """Is this the slice that was last lent?"""
        return type(x) is Slice and self._memory.has_lent(x.value)

    def is_free(self) -> bool:
        """Is the slice that was last lent gone, with all its views?"""
        return self._memory.is_free()
