"""Reductions and scans."""

from __future__ import annotations

import math
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
    """The product of all others, which is right where elements are zero: of those below times of those above."""
    x = saved
    shape = B.shape(x)
    kept = tuple(axis for axis in range(len(shape)) if axis not in axes)
    order = (*kept, *axes)
    size = math.prod(shape[axis] for axis in axes)
    flat = B.reshape(B.permute_dims(x, order), (math.prod(shape[axis] for axis in kept), size))
    above = B.flip(_below(B, B.flip(flat, (1,)), size), (1,))
    others = B.reshape(B.float_mul(_below(B, flat, size), above), tuple(shape[axis] for axis in order))
    back = tuple(order.index(axis) for axis in range(len(shape)))
    return (B.float_mul(spread(B, g, shape, axes), B.permute_dims(others, back)),)


def _below(B: Backend, x: Array, size: int) -> Array:
    """The product of all elements before each one of a row, by doubling: after n rounds, of the 2**n before it."""
    y = _shifted(B, x, size, 1)
    step = 1
    while step < size - 1:
        y = B.float_mul(y, _shifted(B, y, size, step))
        step *= 2
    return y


def _shifted(B: Backend, x: Array, size: int, by: int) -> Array:
    """Every row moved to the right, ones coming in."""
    by = min(by, size)
    return B.pad(B.index(x, (slice(0, B.shape(x)[0], 1), slice(0, size - by, 1))), ((0, 0), (by, 0)), 1.0)


def _logsumexp_forward(B: Backend, x: Array, axes: Axes, keepdims: bool) -> tuple[Array, Any]:
    y = B.float_logsumexp(x, axes, keepdims)
    return y, (x, y)


def _logsumexp(B: Backend, saved: Any, g: Array, needed: object, axes: Axes, keepdims: bool) -> tuple[Array]:
    """The softmax; of nothing but minus infinities it is zero, the limit."""
    x, y = saved
    shape = B.shape(x)
    y = B.where(B.float_equal(y, -math.inf), 0.0, y)
    return (B.float_mul(spread(B, g, shape, axes), B.float_exp(B.float_sub(x, spread(B, y, shape, axes)))),)


def _cumsum(B: Backend, saved: Any, g: Array, needed: object, axis: int) -> tuple[Array]:
    return (B.flip(B.float_cumsum(B.flip(g, (axis,)), axis), (axis,)),)


REDUCTION: dict[str, Rule] = {
    "float_sum": General(
        1,
        lambda B, x, axes, keepdims: (B.float_sum(x, axes, keepdims), B.shape(x)),
        lambda B, shape, g, needed, axes, keepdims: (spread(B, g, shape, axes),),
    ),
    "float_prod": General(1, lambda B, x, axes, keepdims: (B.float_prod(x, axes, keepdims), x), _prod),
    "float_logsumexp": General(1, _logsumexp_forward, _logsumexp),
    "float_max": _extreme("float_max"),
    "float_min": _extreme("float_min"),
    "float_cumsum": General(1, lambda B, x, axis: (B.float_cumsum(x, axis), None), _cumsum),
}
