"""Shapes and slices: the batch stays the first axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phlox.backend.contract.types import Array, Axes, Shape, Widths
from phlox.batching.build import GeneralRule, Rule, shifted

if TYPE_CHECKING:
    from phlox.backend.contract.shape import Mode
    from phlox.batching.decorator import Batched, Mapped


def _reshape(M: Batched, x: Mapped, shape: Shape) -> Array:
    sizes = M.inner.shape(x.value)
    if -1 in shape and 0 in sizes:
        other_sizes = [size for size in shape if size != -1]
        total = 0 if 0 in sizes[1:] else 1
        for size in sizes[1:]:
            total *= size
        for size in other_sizes:
            total = total // size if size else 0
        shape = tuple([total if size == -1 else size for size in shape])
    return M.boxed(M.inner.reshape(x.value, (sizes[0], *shape)))


def _permute_dims(M: Batched, x: Mapped, axes: Axes) -> Array:
    return M.boxed(M.inner.permute_dims(x.value, (0, *shifted(axes))))


def _broadcast_to(M: Batched, x: Mapped, shape: Shape) -> Array:
    value = M.raised(x.value, len(shape) + 1)
    return M.boxed(M.inner.broadcast_to(value, (M.inner.shape(value)[0], *shape)))


def _concat(M: Batched, arrays: Sequence[Array], axis: int) -> Array:
    size = M.size(arrays)
    return M.boxed(M.inner.concat([M.spread(x, size) for x in arrays], axis + 1))


def _pad(M: Batched, x: Mapped, widths: Widths, value: float) -> Array:
    return M.boxed(M.inner.pad(x.value, ((0, 0), *widths), value))


def _extend(M: Batched, x: Mapped, widths: Widths, mode: Mode) -> Array:
    return M.boxed(M.inner.extend(x.value, ((0, 0), *widths), mode))


def _tile(M: Batched, x: Mapped, times: tuple[int, ...]) -> Array:
    return M.boxed(M.inner.tile(x.value, (1, *times)))


SHAPE: dict[str, Rule] = {
    "reshape": GeneralRule(1, _reshape),
    "permute_dims": GeneralRule(1, _permute_dims),
    "broadcast_to": GeneralRule(1, _broadcast_to),
    "concat": GeneralRule(1, _concat),
    "pad": GeneralRule(1, _pad),
    "extend": GeneralRule(1, _extend),
    "tile": GeneralRule(1, _tile),
}
