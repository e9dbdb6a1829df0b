"""Linear algebra. In every rule g is the gradient of the result; ' is transposition.

The formulas are from Giles (2008), "Collected matrix derivative results"; for the pseudo-inverse, from Golub and
Pereyra (1973).
"""

from __future__ import annotations

from typing import Any

from phlox.autodiff.build import General, MultiOutputRule, Rule, sum_to
from phlox.autodiff.rules.decompositions import DECOMPOSITIONS
from phlox.backend.contract import Backend
from phlox.backend.contract.matrices import diagonal, diagonal_matrix, last, products_without, transposed, triangle
from phlox.backend.contract.types import Array, Axes, Gradients, Needed

# --- products


def _matmul(B: Backend, saved: Any, g: Array, needed: Needed) -> Gradients:
    x, y = saved
    if len(B.shape(x)) > 2 and len(B.shape(y)) == 2:
        dx, dy, _ = B.linear_backward(saved, g, (needed[0], needed[1], False))
        return dx, dy
    dx = _towards_left(B, x, y, g) if needed[0] else None
    dy = _towards_right(B, x, y, g) if needed[1] else None
    return dx, dy


def _towards_left(B: Backend, x: Array, y: Array, g: Array) -> Array:
    """g y', summed over the axes of the stack along which x was repeated."""
    rank, shape = len(B.shape(g)), B.shape(x)
    repeated = _repeated_axes(B, x, y, g)
    if not repeated:
        return sum_to(B, B._products(g, y), shape)  # pyright: ignore[reportPrivateUsage]
    batch_axes = tuple(axis for axis in range(rank - 2) if axis not in repeated)
    summed = (*repeated, rank - 1)
    return B.reshape(B.float_dot_general(g, y, (batch_axes, batch_axes), (summed, summed)), shape)


def _towards_right(B: Backend, x: Array, y: Array, g: Array) -> Array:
    """x' g, summed over the axes of the stack along which y was repeated."""
    rank, shape = len(B.shape(g)), B.shape(y)
    repeated = _repeated_axes(B, y, x, g)
    if not repeated:
        return sum_to(B, B.float_matmul(transposed(B, x), g), shape)
    batch_axes = tuple(axis for axis in range(rank - 2) if axis not in repeated)
    summed = (*repeated, rank - 2)
    return B.reshape(B.float_dot_general(x, g, (batch_axes, batch_axes), (summed, summed)), shape)


def _repeated_axes(B: Backend, factor: Array, other: Array, g: Array) -> Axes:
    """The axes of the stack along which `factor` was repeated; none if the other factor was repeated too.

    If the product itself sums over these axes, the gradient is one product of large matrices instead of a stack.
    """
    stack, factor_stack = B.shape(g)[:-2], B.shape(factor)[:-2]
    if B.shape(other)[:-2] != stack or factor_stack == stack:
        return ()
    factor_stack = (1,) * (len(stack) - len(factor_stack)) + factor_stack
    return tuple(axis for axis, size in enumerate(stack) if factor_stack[axis] != size or size == 1)


def _dot_general(
    B: Backend, saved: Any, g: Array, needed: Needed, batch: tuple[Axes, Axes], summed: tuple[Axes, Axes]
) -> Gradients:
    x, y = saved
    (bx, by), (sx, sy) = batch, summed
    free_x = tuple(axis for axis in range(len(B.shape(x))) if axis not in bx and axis not in sx)
    free_y = tuple(axis for axis in range(len(B.shape(y))) if axis not in by and axis not in sy)
    stack, middle = len(bx), len(bx) + len(free_x)
    leading = tuple(range(stack))
    dx = dy = None
    if needed[0]:
        # Sums over the free axes of y, which are the last axes of g. The summed axes of y remain, in order.
        dx = B.float_dot_general(g, y, (leading, by), (tuple(range(middle, middle + len(free_y))), free_y))
        dx = _move_axes(B, dx, (*bx, *free_x, *(sx[i] for i in _order(sy))))
    if needed[1]:
        dy = B.float_dot_general(x, g, (bx, leading), (free_x, tuple(range(stack, middle))))
        dy = _move_axes(B, dy, (*by, *(sy[i] for i in _order(sx)), *free_y))
    return dx, dy


def _order(axes: Axes) -> Axes:
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def _move_axes(B: Backend, x: Array, axes: Axes) -> Array:
    """Permute the axes of x: axis i moves to position axes[i]."""
    return B.permute_dims(x, _order(axes)) if axes != tuple(range(len(axes))) else x


# --- solutions


def _solve(B: Backend, saved: Any, g: Array, needed: Needed) -> Gradients:
    """With u the solution of a' u = g: db = u, da = -u x'."""
    a, shape, x = saved
    u = B.solve(transposed(B, a), g)
    da = sum_to(B, B.float_neg(B.float_matmul(u, transposed(B, x))), B.shape(a)) if needed[0] else None
    return da, sum_to(B, u, shape) if needed[1] else None


def _solve_forward(B: Backend, a: Array, b: Array) -> tuple[Array, Any]:
    x = B.solve(a, b)
    return x, (a, B.shape(b), x)


def _solve_triangular_forward(B: Backend, a: Array, b: Array, lower: bool, unit: bool) -> tuple[Array, Any]:
    x = B.solve_triangular(a, b, lower, unit)
    return x, (a, B.shape(b), x)


def _solve_triangular(B: Backend, saved: Any, g: Array, needed: Needed, lower: bool, unit: bool) -> Gradients:
    """As `_solve`, within the triangle that was read."""
    a, shape, x = saved
    u = B.solve_triangular(transposed(B, a), g, not lower, unit)
    da = None
    if needed[0]:
        da = triangle(B, B.float_neg(B.float_matmul(u, transposed(B, x))), lower, strict=unit)
        da = sum_to(B, da, B.shape(a))
    return da, sum_to(B, u, shape) if needed[1] else None


def _inv_forward(B: Backend, a: Array) -> tuple[Array, Any]:
    y = B.inv(a)
    return y, y


def _inv(B: Backend, y: Array, g: Array, needed: Needed) -> Gradients:
    """-y' g y'."""
    y_t = transposed(B, y)
    return (B.float_neg(B.float_matmul(y_t, B.float_matmul(g, y_t))),)


def _pinv_forward(B: Backend, a: Array, rtol: float) -> tuple[Array, Any]:
    p = B.pinv(a, rtol)
    return p, (a, p)


def _pinv(B: Backend, saved: Any, g: Array, needed: Needed, rtol: float) -> Gradients:
    """-p' g p' + (1 - a p) g' p p' + p' p g' (1 - p a), for matrices whose rank does not change nearby."""
    a, p = saved
    mm, p_t, g_t = B.float_matmul, transposed(B, p), transposed(B, g)
    first = mm(mm(p_t, g), p_t)
    left = mm(g_t, mm(p, p_t)) if B.shape(a)[-1] <= B.shape(a)[-2] else mm(mm(g_t, p), p_t)
    right = mm(p_t, mm(p, g_t)) if B.shape(a)[-1] <= B.shape(a)[-2] else mm(mm(p_t, p), g_t)
    left = B.float_sub(left, mm(a, mm(p, left)))
    right = B.float_sub(right, mm(right, mm(p, a)) if B.shape(a)[-1] <= B.shape(a)[-2] else mm(mm(right, p), a))
    return (B.float_sub(B.float_add(left, right), first),)


# --- functions of a matrix


def _column(B: Backend, g: Array) -> Array:
    """One scalar per matrix, reshaped to broadcast with the matrices."""
    rank = len(B.shape(g))
    return B.expand_dims(g, (rank, rank + 1))


def _det(B: Backend, a: Array, g: Array, needed: Needed) -> Gradients:
    """g times the cofactors (Jacobi), which singular matrices have too."""
    return (B.float_mul(_column(B, g), transposed(B, B.adjugate(a))),)


def _adjugate(B: Backend, a: Array, g: Array, needed: Needed) -> Gradients:
    """adj(u diag(s) v') is +-v adj(diag(s)) u'; near diag(s), adj changes by products of all of s but two."""
    u, s, vh = B.svd(a, False)
    sign = B.float_sign(B.float_mul(B.det(u), B.det(vh)))
    h = B.float_matmul(vh, B.float_matmul(g, u))
    pairs = products_without(B, s, 2)
    pairs = B.float_sub(pairs, diagonal_matrix(B, diagonal(B, pairs)))
    rank = len(B.shape(s))
    diagonal_terms = B.float_sum(B.float_mul(pairs, B.expand_dims(diagonal(B, h), (rank,))), (rank - 1,), False)
    inner = B.float_sub(diagonal_matrix(B, diagonal_terms), B.float_mul(h, pairs))
    return (B.float_mul(_column(B, sign), B.float_matmul(u, B.float_matmul(inner, vh))),)


def _slogdet_forward(B: Backend, a: Array) -> tuple[tuple[Array, ...], Any]:
    return B.slogdet(a), a


def _slogdet(B: Backend, a: Array, gs: tuple[Array | None, ...], needed: Needed) -> Gradients:
    """g times the inverse transposed; the sign is constant."""
    return (None if gs[1] is None else B.float_mul(_column(B, gs[1]), transposed(B, B.inv(a))),)


def _matrix_exp(B: Backend, a: Array, g: Array, needed: Needed) -> Gradients:
    """The upper right block of exp([[a', g], [0, a']]) (Van Loan 1978)."""
    n = B.shape(a)[-1]
    a_t = transposed(B, a)
    above = B.concat((a_t, g), len(B.shape(a)) - 1)
    below = B.concat((B.float_mul(g, 0.0), a_t), len(B.shape(a)) - 1)
    whole = B.matrix_exp(B.concat((above, below), len(B.shape(a)) - 2))
    return (B.index(whole, last(B.shape(whole), slice(0, n, 1), slice(n, 2 * n, 1))),)


LINALG: dict[str, Rule] = {
    "float_matmul": General(2, lambda B, x, y: (B.float_matmul(x, y), (x, y)), _matmul),
    "float_dot_general": General(
        2, lambda B, x, y, batch, summed: (B.float_dot_general(x, y, batch, summed), (x, y)), _dot_general
    ),
    "solve": General(2, _solve_forward, _solve),
    "solve_triangular": General(2, _solve_triangular_forward, _solve_triangular),
    "inv": General(1, _inv_forward, _inv),
    "pinv": General(1, _pinv_forward, _pinv),
    "det": General(1, lambda B, a: (B.det(a), a), _det),
    "adjugate": General(1, lambda B, a: (B.adjugate(a), a), _adjugate),
    "slogdet": MultiOutputRule(1, _slogdet_forward, _slogdet),
    "matrix_exp": General(1, lambda B, a: (B.matrix_exp(a), a), _matrix_exp),
    **DECOMPOSITIONS,
}
