"""Operations on elements, along axes, and on shapes: axis i of an example is axis i + 1 of the inner array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phlox.backend.contract.signatures import ALONG, ELEMENTWISE
from phlox.backend.contract.types import Array, Axes, Shape, Widths
from phlox.batching.build import AxisRule, ElementwiseRule, GeneralRule, Rule, shifted
from phlox.batching.mapped import Mapped, MappedOps

if TYPE_CHECKING:
    from phlox.backend.contract.shape import Mode


def _with_new_first_axis(name: str) -> Rule:
    """The rule of an operation with a new first axis in its result: the batch axis moves before it."""

    def rule(M: MappedOps, x: Mapped, axes: Axes, *options: Any) -> Array:
        result = getattr(M.inner, name)(x.value, shifted(axes), *options)
        return M.boxed(M.moved(result, 1, 0))

    return GeneralRule(1, rule)


def _windows_adjoint(M: MappedOps, g: Mapped, axis: int, size: int, step: int, shape: Shape) -> Array:
    n = M.size([g])
    return M.boxed(M.inner.float_windows_adjoint(g.value, axis + 1, size, step, (n, *shape)))


def _reshape(M: MappedOps, x: Mapped, shape: Shape) -> Array:
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


def _permute_dims(M: MappedOps, x: Mapped, axes: Axes) -> Array:
    return M.boxed(M.inner.permute_dims(x.value, (0, *shifted(axes))))


def _broadcast_to(M: MappedOps, x: Mapped, shape: Shape) -> Array:
    value = M.raised(x.value, len(shape) + 1)
    return M.boxed(M.inner.broadcast_to(value, (M.inner.shape(value)[0], *shape)))


def _concat(M: MappedOps, arrays: Sequence[Array], axis: int) -> Array:
    size = M.size(arrays)
    return M.boxed(M.inner.concat([M.spread(x, size) for x in arrays], axis + 1))


def _pad(M: MappedOps, x: Mapped, widths: Widths, value: float) -> Array:
    return M.boxed(M.inner.pad(x.value, ((0, 0), *widths), value))


def _extend(M: MappedOps, x: Mapped, widths: Widths, mode: Mode) -> Array:
    return M.boxed(M.inner.extend(x.value, ((0, 0), *widths), mode))


def _tile(M: MappedOps, x: Mapped, times: tuple[int, ...]) -> Array:
    return M.boxed(M.inner.tile(x.value, (1, *times)))


SHAPE: dict[str, Rule] = {
    **{name: ElementwiseRule(operands) for name, operands in ELEMENTWISE.items()},
    **{name: AxisRule(position) for name, position in ALONG.items()},
    "float_order_statistics": _with_new_first_axis("float_order_statistics"),
    "float_quantile": _with_new_first_axis("float_quantile"),
    "float_windows_adjoint": GeneralRule(1, _windows_adjoint),
    "reshape": GeneralRule(1, _reshape),
    "permute_dims": GeneralRule(1, _permute_dims),
    "broadcast_to": GeneralRule(1, _broadcast_to),
    "concat": GeneralRule(1, _concat),
    "pad": GeneralRule(1, _pad),
    "extend": GeneralRule(1, _extend),
    "tile": GeneralRule(1, _tile),
}
