"""Reductions and scans."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from phlox.autodiff.build import General, Rule
from phlox.backend.contract import Backend
from phlox.backend.contract.shape import part, replaced
from phlox.backend.contract.types import Array, Axes, Shape
from phlox.backend.tracing.dimension import larger, ratio


def spread(B: Backend, g: Array, shape: Shape, axes: Axes) -> Array:
    """The gradient of a reduction, broadcast to the shape that was reduced."""
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return B.broadcast_to(B.reshape(g, kept), shape)


def shared(B: Backend, x: Array, y: Array, g: Array, axes: Axes) -> Array:
    """Share the gradient of y, one element of each slice of x, evenly among the elements equal to it, or NaN."""
    shape = B.shape(x)
    hit = B.bool_or(B.float_equal(x, spread(B, y, shape, axes)), B.float_isnan(x))
    share = B.bool_into_float(hit)
    return B.float_mul(spread(B, g, shape, axes), B.float_div(share, B.float_sum(share, axes, True)))


def _extreme(name: str) -> Rule:
    def forward(B: Backend, x: Array, axes: Axes, keepdims: bool) -> tuple[Array, Any]:
        y = getattr(B, name)(x, axes, keepdims)
        return y, (x, y)

    def backward(B: Backend, saved: Any, g: Array, needed: object, axes: Axes, keepdims: bool) -> tuple[Array]:
        x, y = saved
        return (shared(B, x, y, g, axes),)

    return General(1, forward, backward)


def _ranks_forward(B: Backend, x: Array, axes: Axes, ranks: tuple[int, ...], keepdims: bool) -> tuple[Array, Any]:
    y = B.float_order_statistics(x, axes, ranks, keepdims)
    return y, (x, y)


def _ranks(
    B: Backend, saved: Any, g: Array, needed: object, axes: Axes, ranks: tuple[int, ...], keepdims: bool
) -> tuple[Array]:
    """Each rank is treated as an extreme, so the order in which equal elements were sorted does not matter."""
    x, y = saved
    gradients = [shared(B, x, part(B, y, 0, i, i + 1), part(B, g, 0, i, i + 1), axes) for i in range(len(ranks))]
    total = gradients[0]
    for gradient in gradients[1:]:
        total = B.float_add(total, gradient)
    return (total,)


def _count(shape: Shape, axes: Axes) -> int:
    return math.prod(shape[axis] for axis in axes)


def _mean(B: Backend, shape: Shape, g: Array, needed: object, axes: Axes, keepdims: bool) -> tuple[Array]:
    # Without elements there is nothing to divide by.
    return (spread(B, B.float_mul(g, ratio(1, larger(_count(shape, axes), 1))), shape, axes),)


def _deviation(B: Backend, x: Array, g: Array, axes: Axes, correction: float) -> Array:
    """g (x - mean) / (n - correction)."""
    shape = B.shape(x)
    divisor = _count(shape, axes) - correction
    scaled = spread(B, B.float_mul(g, ratio(1, divisor)), shape, axes)
    return B.float_mul(scaled, B.float_sub(x, B.float_mean(x, axes, True)))


def _var(B: Backend, x: Array, g: Array, needed: object, axes: Axes, correction: float, keepdims: bool) -> tuple[Array]:
    return (_deviation(B, x, B.float_mul(g, 2.0), axes, correction),)


def _std_forward(B: Backend, x: Array, axes: Axes, correction: float, keepdims: bool) -> tuple[Array, Any]:
    y = B.float_std(x, axes, correction, keepdims)
    return y, (x, y)


def _std(
    B: Backend, saved: Any, g: Array, needed: object, axes: Axes, correction: float, keepdims: bool
) -> tuple[Array]:
    """Zero where all elements are equal, since the derivative has no limit there."""
    x, y = saved
    flat = B.float_equal(y, 0.0)
    return (_deviation(B, x, B.where(flat, 0.0, B.float_div(g, B.where(flat, 1.0, y))), axes, correction),)


def _prod(B: Backend, x: Array, g: Array, needed: object, axes: Axes, keepdims: bool) -> tuple[Array]:
    """The product of all other elements: those before, times those after. It is right where elements are zero, too."""
    shape = B.shape(x)
    kept = tuple(axis for axis in range(len(shape)) if axis not in axes)
    order = (*kept, *axes)
    flat = B.reshape(B.permute_dims(x, order), (math.prod(shape[axis] for axis in kept), _count(shape, axes)))
    above = B.flip(_product_before(B, B.flip(flat, (1,)), 1), (1,))
    others = B.reshape(B.float_mul(_product_before(B, flat, 1), above), tuple(shape[axis] for axis in order))
    inverse_order = tuple(order.index(axis) for axis in range(len(shape)))
    return (B.float_mul(spread(B, g, shape, axes), B.permute_dims(others, inverse_order)),)


def _product_before(B: Backend, x: Array, axis: int) -> Array:
    """The product of all elements before each one along an axis."""
    return _shift_by_one(B, B.float_cumprod(x, axis), axis)


def _shift_by_one(B: Backend, x: Array, axis: int) -> Array:
    """Shifted along an axis by one, padded with ones."""
    shape = B.shape(x)
    if shape[axis] == 0:
        return x
    one = B.float_full(replaced(shape, axis, 1), 1.0, B.device_of(x))
    return B.concat((one, part(B, x, axis, 0, shape[axis] - 1)), axis)


def _logsumexp_forward(B: Backend, x: Array, axes: Axes, keepdims: bool) -> tuple[Array, Any]:
    y = B.float_logsumexp(x, axes, keepdims)
    return y, (x, y)


def _logsumexp(B: Backend, saved: Any, g: Array, needed: object, axes: Axes, keepdims: bool) -> tuple[Array]:
    """g times the softmax; where all elements are minus infinity, it is zero, the limit."""
    x, y = saved
    shape = B.shape(x)
    y = B.where(B.float_equal(y, -math.inf), 0.0, y)
    return (B.float_mul(spread(B, g, shape, axes), B.float_exp(B.float_sub(x, spread(B, y, shape, axes)))),)


def _norm_forward(B: Backend, x: Array, axes: Axes, p: float, keepdims: bool) -> tuple[Array, Any]:
    y = B.float_norm(x, axes, p, keepdims)
    return y, (x, y)


def _norm(B: Backend, saved: Any, g: Array, needed: object, axes: Axes, p: float, keepdims: bool) -> tuple[Array]:
    """g sign(x) (|x| / y)^(p - 1), defined as zero where x is zero."""
    x, y = saved
    shape = B.shape(x)
    if p == 0:
        return (B.float_full(shape, 0.0, B.device_of(x)),)
    if math.isinf(p):
        return (B.float_mul(shared(B, B.float_abs(x), y, g, axes), B.float_sign(x)),)
    if p == 1:
        return (B.float_mul(spread(B, g, shape, axes), B.float_sign(x)),)
    # Where the norm is zero, it is treated as constant: higher derivatives are zero, too.
    none = B.float_equal(y, 0.0)
    y = spread(B, B.where(none, 1.0, y), shape, axes)
    g = spread(B, B.where(none, 0.0, g), shape, axes)
    if p == 2:
        return (B.float_mul(g, B.float_div(x, y)),)
    zero = B.float_equal(x, 0.0)
    ratio = B.where(zero, 1.0, B.float_div(B.float_abs(x), y))
    return (B.float_mul(g, B.where(zero, 0.0, B.float_mul(B.float_sign(x), B.float_pow(ratio, p - 1.0)))),)


def _cumsum(B: Backend, saved: Any, g: Array, needed: object, axis: int) -> tuple[Array]:
    return (B.flip(B.float_cumsum(B.flip(g, (axis,)), axis), (axis,)),)


def _recurrence(B: Backend, g: Array, a: Array, axis: int) -> Array:
    """s with s[k] = g[k] + a[k] s[k + 1], by doubling: after n rounds each s[k] has 2**n terms."""
    size = B.shape(g)[axis]
    step = 1
    while step < size:
        sums = B.float_mul(a, part(B, g, axis, step, size))
        sums = B.float_add(part(B, g, axis, 0, size - step), sums)
        g = B.concat((sums, part(B, g, axis, size - step, size)), axis)
        remaining = max(size - 2 * step, 0)
        a = B.float_mul(part(B, a, axis, 0, remaining), part(B, a, axis, step, step + remaining)) if remaining else a
        step *= 2
    return g


def _scan(name: str, backward: Callable[[Backend, Array, Array, Array, int], Array]) -> Rule:
    """`backward(B, x, y, g, axis)`."""

    def forward(B: Backend, x: Array, axis: int) -> tuple[Array, Any]:
        y = getattr(B, name)(x, axis)
        return y, (x, y)

    def back(B: Backend, saved: Any, g: Array, needed: object, axis: int) -> tuple[Array]:
        x, y = saved
        return (backward(B, x, y, g, axis),)

    return General(1, forward, back)


def _cumprod(B: Backend, x: Array, y: Array, g: Array, axis: int) -> Array:
    """The product of the elements before, times a term of those after. A division would fail at zeros."""
    size = B.shape(x)[axis]
    return B.float_mul(_shift_by_one(B, y, axis), _recurrence(B, g, part(B, x, axis, min(1, size), size), axis))


def _cumextreme(B: Backend, x: Array, y: Array, g: Array, axis: int) -> Array:
    """The gradient goes to the latest element that is the extreme so far, as in PyTorch."""
    shape = B.shape(x)
    positions = B.int_arange(0, shape[axis], 1, B.device_of(x))
    positions = B.broadcast_to(B.reshape(positions, (shape[axis], *(1 for _ in shape[axis + 1 :]))), shape)
    hit = B.bool_or(B.float_equal(x, y), B.float_isnan(x))
    return B.float_take_along_axis_adjoint(g, B.int_cummax(B.where(hit, positions, 0), axis), axis, shape)


def _logcumsumexp(B: Backend, x: Array, y: Array, g: Array, axis: int) -> Array:
    """exp(x[k] - y[k]) s[k] with s[k] = g[k] + exp(y[k] - y[k + 1]) s[k + 1]; no exponent is positive."""
    size = B.shape(x)[axis]
    below, above = part(B, y, axis, 0, max(size - 1, 0)), part(B, y, axis, min(1, size), size)
    return B.float_mul(_exp_of_difference(B, x, y), _recurrence(B, g, _exp_of_difference(B, below, above), axis))


def _exp_of_difference(B: Backend, x: Array, y: Array) -> Array:
    """exp(x - y); zero where y, and therefore x, is minus infinity, because such elements contribute nothing."""
    none = B.float_equal(y, -math.inf)
    return B.where(none, 0.0, B.float_exp(B.float_sub(x, B.where(none, 0.0, y))))


def _windows_adjoint_forward(B: Backend, g: Array, axis: int, size: int, step: int, shape: Shape) -> tuple[Array, None]:
    return B.float_windows_adjoint(g, axis, size, step, shape), None


def _windows_adjoint(
    B: Backend, saved: None, g: Array, needed: object, axis: int, size: int, step: int, shape: Shape
) -> tuple[Array]:
    return (B.windows(g, axis, size, step),)


REDUCTION: dict[str, Rule] = {
    "float_sum": General(
        1,
        lambda B, x, axes, keepdims: (B.float_sum(x, axes, keepdims), B.shape(x)),
        lambda B, shape, g, needed, axes, keepdims: (spread(B, g, shape, axes),),
    ),
    "float_mean": General(1, lambda B, x, axes, keepdims: (B.float_mean(x, axes, keepdims), B.shape(x)), _mean),
    "float_var": General(
        1, lambda B, x, axes, correction, keepdims: (B.float_var(x, axes, correction, keepdims), x), _var
    ),
    "float_std": General(1, _std_forward, _std),
    "float_prod": General(1, lambda B, x, axes, keepdims: (B.float_prod(x, axes, keepdims), x), _prod),
    "float_logsumexp": General(1, _logsumexp_forward, _logsumexp),
    "float_norm": General(1, _norm_forward, _norm),
    "float_max": _extreme("float_max"),
    "float_min": _extreme("float_min"),
    "float_order_statistics": General(1, _ranks_forward, _ranks),
    "float_cumsum": General(1, lambda B, x, axis: (B.float_cumsum(x, axis), None), _cumsum),
    "float_cumprod": _scan("float_cumprod", _cumprod),
    "float_cummax": _scan("float_cummax", _cumextreme),
    "float_cummin": _scan("float_cummin", _cumextreme),
    "float_logcumsumexp": _scan("float_logcumsumexp", _logcumsumexp),
    "float_windows_adjoint": General(1, _windows_adjoint_forward, _windows_adjoint),
}
