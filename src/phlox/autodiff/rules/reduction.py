"""Reductions and scans."""

from __future__ import annotations

from typing import Any

from phlox.autodiff.build import General, Rule
from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Axes, Shape


def spread(B: Backend, g: Array, shape: Shape, axes: Axes) -> Array:
    """A reduced gradient, over the shape that was reduced."""
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return B.broadcast_to(B.reshape(g, kept), shape)


def _extreme(name: str) -> Rule:
    """Equal extremes share the gradient evenly; a NaN result gives it to the NaNs."""

    def forward(B: Backend, x: Array, axes: Axes, keepdims: bool) -> tuple[Array, Any]:
        y = getattr(B, name)(x, axes, keepdims)
        return y, (x, y)

    def backward(B: Backend, saved: Any, g: Array, needed: object, axes: Axes, keepdims: bool) -> tuple[Array]:
        x, y = saved
        shape = B.shape(x)
        highest = spread(B, y, shape, axes)
        hit = B.bool_or(B.float_equal(x, highest), B.float_isnan(x))
        share = B.bool_into_float(hit)
        share = B.float_div(share, B.float_sum(share, axes, True))
        return (B.float_mul(spread(B, g, shape, axes), share),)

    return General(1, forward, backward)


def _prod(B: Backend, saved: Any, g: Array, needed: object, axes: Axes, keepdims: bool) -> tuple[Array]:
    """The product of all others, which is right where elements are zero: from below times from above."""
    x = saved
    shape = B.shape(x)
    kept = tuple(axis for axis in range(len(shape)) if axis not in axes)
    order = (*kept, *axes)
    flat = B.reshape(B.permute_dims(x, order), (*(shape[axis] for axis in kept), -1))
    rank, size = len(kept), B.shape(flat)[-1]
    parts = [B.index(flat, (*(slice(0, shape[axis], 1) for axis in kept), slice(i, i + 1, 1))) for i in range(size)]
    one = B.detach(B.float_add(B.float_mul(parts[0], 0.0), 1.0)) if parts else None
    below, above = [one], [one]
    for part in parts[:-1]:
        below.append(B.float_mul(below[-1], part))
    for part in parts[:0:-1]:
        above.append(B.float_mul(above[-1], part))
    if not parts:
        return (x,)
    others = B.concat([B.float_mul(a, b) for a, b in zip(below, reversed(above), strict=True)], rank)
    others = B.reshape(others, tuple(shape[axis] for axis in order))
    back = tuple(order.index(axis) for axis in range(len(shape)))
    return (B.float_mul(spread(B, g, shape, axes), B.permute_dims(others, back)),)


def _cumsum(B: Backend, saved: Any, g: Array, needed: object, axis: int) -> tuple[Array]:
    return (B.flip(B.float_cumsum(B.flip(g, (axis,)), axis), (axis,)),)


REDUCTION: dict[str, Rule] = {
    "float_sum": General(
        1,
        lambda B, x, axes, keepdims: (B.float_sum(x, axes, keepdims), B.shape(x)),
        lambda B, shape, g, needed, axes, keepdims: (spread(B, g, shape, axes),),
    ),
    "float_prod": General(1, lambda B, x, axes, keepdims: (B.float_prod(x, axes, keepdims), x), _prod),
    "float_max": _extreme("float_max"),
    "float_min": _extreme("float_min"),
    "float_cumsum": General(1, lambda B, x, axis: (B.float_cumsum(x, axis), None), _cumsum),
}
