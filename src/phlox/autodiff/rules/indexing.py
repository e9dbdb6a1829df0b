"""Gathering and scattering. Gathering is linear and comes with its transpose, which is linear too."""

from __future__ import annotations

from typing import Any

from phlox.autodiff.build import General, Rule
from phlox.backend.contract import Backend
from phlox.backend.contract.indexing import Mode
from phlox.backend.contract.types import Array, Gradients, Index, Needed, Shape


def _zeros(B: Backend, shape: Shape, like: Array) -> Array:
    return B.float_full(shape, 0.0, B.device_of(like))


def _index_set(B: Backend, shape: Shape, g: Array, needed: Needed, index: Index) -> Gradients:
    dx = B.index_set(g, _zeros(B, shape, g), index) if needed[0] else None
    return dx, B.index(g, index) if needed[1] else None


# --- scatter: x [n, ...], positions [k], updates [k, ...]


def _scatter_forward(B: Backend, x: Array, positions: Array, updates: Array, mode: Mode) -> tuple[Array, Any]:
    y = B.float_scatter(x, positions, updates, mode)
    if mode == "set":
        return y, (positions, B.shape(updates))
    return y, (positions, x, updates, y) if mode != "add" else (positions,)


def _scatter(B: Backend, saved: Any, g: Array, needed: Needed, mode: Mode) -> Gradients:
    derivative = {"set": _set, "add": _add, "mul": _mul, "min": _extreme, "max": _extreme}[mode]
    dx, dv = derivative(B, g, needed, *saved)
    return dx, None, dv


def _add(B: Backend, g: Array, needed: Needed, positions: Array) -> Gradients:
    return g, B.take(g, positions, 0) if needed[2] else None


def _set(B: Backend, g: Array, needed: Needed, positions: Array, shape: Shape) -> Gradients:
    """Zero for elements that were overwritten, and for updates that later ones overwrote."""
    dx = B.float_scatter(g, positions, _zeros(B, shape, g), "set") if needed[0] else None
    if not needed[2]:
        return dx, None
    numbers = B.int_arange(0, shape[0], 1, B.device_of(g))
    last = B.int_equal(B.int_last_update(positions, B.shape(g)[0]), numbers)
    return dx, B.where(_rows(B, last, len(shape)), B.take(g, positions, 0), 0.0)


def _extreme(B: Backend, g: Array, needed: Needed, positions: Array, x: Array, updates: Array, y: Array) -> Gradients:
    """Equal extremes share the gradient evenly; the gradient of a NaN goes to the elements that are NaN."""
    x_hits = B.bool_into_float(B.bool_or(B.float_equal(x, y), B.float_isnan(x)))
    is_result = B.float_equal(updates, B.take(y, positions, 0))
    update_hits = B.bool_into_float(B.bool_or(is_result, B.float_isnan(updates)))
    share = B.float_div(g, B.float_scatter(x_hits, positions, update_hits, "add"))
    dx = B.float_mul(share, x_hits) if needed[0] else None
    return dx, B.float_mul(B.take(share, positions, 0), update_hits) if needed[2] else None


def _mul(B: Backend, g: Array, needed: Needed, positions: Array, x: Array, updates: Array, y: Array) -> Gradients:
    """Each factor's derivative is the product of the others, which is right where factors are zero."""
    dx = dv = None
    if needed[0]:
        ones = B.float_full(B.shape(x), 1.0, B.device_of(x))
        dx = B.float_mul(g, B.float_scatter(ones, positions, updates, "mul"))
    if needed[2]:
        dv = B.float_mul(B.take(B.float_mul(g, x), positions, 0), _other_factors(B, positions, updates, B.shape(x)[0]))
    return dx, dv


def _other_factors(B: Backend, positions: Array, updates: Array, size: int) -> Array:
    """For each update, the product of all others at its position."""
    targets = B.where(B.int_less(positions, 0), B.int_add(positions, size), positions)
    order = B.int_argsort(targets, 0, False)
    targets, factors = B.take(targets, order, 0), B.take(updates, order, 0)
    below = _product_before(B, factors, targets)
    above = B.flip(_product_before(B, B.flip(factors, (0,)), B.flip(targets, (0,))), (0,))
    return B.take(B.float_mul(below, above), B.int_argsort(order, 0, False), 0)


def _product_before(B: Backend, x: Array, targets: Array) -> Array:
    """For each row, the product of the earlier rows with its target; after n rounds, of the 2**n rows before it."""
    y = _shift_rows(B, x, targets, 1)
    step = 1
    while step < B.shape(x)[0] - 1:
        y = B.float_mul(y, _shift_rows(B, y, targets, step))
        step *= 2
    return y


def _shift_rows(B: Backend, x: Array, targets: Array, by: int) -> Array:
    """The rows, moved down by `by`; ones where no row arrives, and where the row that arrives has another target."""
    shape = B.shape(x)
    by = min(by, shape[0])
    early, late = slice(0, shape[0] - by, 1), slice(by, shape[0], 1)
    shifted = B.pad(
        B.index(x, (early, *(slice(0, size, 1) for size in shape[1:]))), ((by, 0), *((0, 0) for _ in shape[1:])), 1.0
    )
    same_target = B.pad(B.int_equal(B.index(targets, (early,)), B.index(targets, (late,))), ((by, 0),), False)
    return B.where(_rows(B, same_target, len(shape)), shifted, 1.0)


def _rows(B: Backend, x: Array, rank: int) -> Array:
    """One value per row, reshaped to broadcast against the rows."""
    return B.reshape(x, (B.shape(x)[0], *(1,) * (rank - 1)))


INDEXING: dict[str, Rule] = {
    "index": General(
        1,
        lambda B, x, index: (B.index(x, index), B.shape(x)),
        lambda B, shape, g, needed, index: (B.float_index_adjoint(g, shape, index),),
    ),
    "float_index_adjoint": General(
        1,
        lambda B, g, shape, index: (B.float_index_adjoint(g, shape, index), None),
        lambda B, saved, g, needed, shape, index: (B.index(g, index),),
    ),
    "index_set": General(2, lambda B, x, values, index: (B.index_set(x, values, index), B.shape(values)), _index_set),
    "take": General(
        1,
        lambda B, x, indices, axis: (B.take(x, indices, axis), B.shape(x)),
        lambda B, shape, g, needed, indices, axis: (B.float_take_adjoint(g, indices, axis, shape),),
    ),
    "float_take_adjoint": General(
        1,
        lambda B, g, indices, axis, shape: (B.float_take_adjoint(g, indices, axis, shape), None),
        lambda B, saved, g, needed, indices, axis, shape: (B.take(g, indices, axis),),
    ),
    "take_along_axis": General(
        1,
        lambda B, x, indices, axis: (B.take_along_axis(x, indices, axis), B.shape(x)),
        lambda B, shape, g, needed, indices, axis: (B.float_take_along_axis_adjoint(g, indices, axis, shape),),
    ),
    "float_take_along_axis_adjoint": General(
        1,
        lambda B, g, indices, axis, shape: (B.float_take_along_axis_adjoint(g, indices, axis, shape), None),
        lambda B, saved, g, needed, indices, axis, shape: (B.take_along_axis(g, indices, axis),),
    ),
    "float_scatter": General(3, _scatter_forward, _scatter),
}
