"""Arrays with a hidden batch axis, and the operations on them that the batching rules use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from phlox.backend.contract import Decorator
from phlox.backend.contract.types import Array


class Mapped:
    """An array with a hidden batch axis, the first axis of `value`.

    Each nested batch has its own subclass, which identifies its arrays.
    """

    __slots__ = ("value",)

    value: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example."""
        return tuple(self.value.shape[1:])


_boxes: dict[int, type[Mapped]] = {}


def box_of(level: int) -> type[Mapped]:
    box = _boxes.get(level)
    if box is None:
        cls = cast("type[Mapped]", type(f"Mapped{level}", (Mapped,), {"__slots__": ()}))
        box = _boxes.setdefault(level, cls)
    return box


class MappedOps(Decorator):
    """The base class of `Batched`; the batching rules use it."""

    box: type[Mapped]
    """The class of its arrays that have the batch axis."""

    def boxed(self, value: Array) -> Mapped:
        """The mapped array of an inner array whose first axis is the batch."""
        result = object.__new__(self.box)
        result.value = value
        return result

    def boxed_all(self, results: Any) -> Any:
        """`boxed` for one result or several."""
        if isinstance(results, tuple):
            return tuple([self.boxed(result) for result in cast("tuple[Any, ...]", results)])
        return self.boxed(results)

    def raised(self, value: Array, rank: int) -> Array:
        """The inner array with axes of size one after the batch axis, up to this rank."""
        sizes = self.inner.shape(value)
        missing = rank - len(sizes)
        return value if missing <= 0 else self.inner.reshape(value, (sizes[0], *(1,) * missing, *sizes[1:]))

    def size(self, operands: Sequence[Any]) -> int:
        """The number of examples of the first operand that is mapped."""
        return self.inner.shape(next(x for x in operands if type(x) is self.box).value)[0]

    def spread(self, x: Array, size: int) -> Array:
        """The inner array with the batch axis, broadcast if x has none."""
        if type(x) is self.box:
            return x.value
        return self.inner.broadcast_to(x, (size, *self.inner.shape(x)))

    def moved(self, value: Array, source: int, target: int) -> Array:
        """The inner array with one axis moved."""
        order = [axis for axis in range(len(self.inner.shape(value))) if axis != source]
        order.insert(target, source)
        return value if source == target else self.inner.permute_dims(value, tuple(order))
