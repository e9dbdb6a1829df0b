"""Decompositions of matrices. In every rule g is the gradient of the result; ' is transposition.

The formulas are those of Murray (2016), "Differentiation of the Cholesky decomposition", Walter and Lehmann (2018) for
QR, and Giles (2008), "Collected matrix derivative results". Derivatives of eigenvectors and singular vectors divide by
differences of eigenvalues. If a difference is only rounding, there is no derivative, and the quotient is set to zero.
That is right for functions that do not depend on the choice of such vectors. The part that is dropped as rounding is
subtracted as a constant: the derivative of the rule itself, with respect to g and to its values, must stay complete,
because forward derivatives differentiate the rule at g = 0.
"""

from __future__ import annotations

from typing import Any

from phlox.autodiff.build import General, MultiOutputRule, Rule
from phlox.backend.contract import Backend
from phlox.backend.contract.matrices import diagonal_matrix, last, transposed, triangle
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.errors import AutodiffError

_EPSILON = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}


def _symmetric(B: Backend, x: Array) -> Array:
    return B.float_mul(B.float_add(x, transposed(B, x)), 0.5)


def _half_lower(B: Backend, x: Array) -> Array:
    """The lower triangle, with half of the diagonal."""
    return B.float_mul(B.float_add(triangle(B, x, True), triangle(B, x, True, strict=True)), 0.5)


def _cholesky_forward(B: Backend, a: Array) -> tuple[Array, Any]:
    y = B.cholesky(a)
    return y, y


def _cholesky(B: Backend, y: Array, g: Array, needed: Needed) -> Gradients:
    """The symmetric part of y'^-1 P y^-1, where P is the lower triangle of y' g with half of its diagonal."""
    y_t = transposed(B, y)
    inner = _half_lower(B, B.float_matmul(y_t, g))
    left = B.solve_triangular(y_t, inner, False, False)
    return (_symmetric(B, transposed(B, B.solve_triangular(y_t, transposed(B, left), False, False))),)


def _qr_forward(B: Backend, a: Array, complete: bool) -> tuple[tuple[Array, ...], Any]:
    q, r = B.qr(a, complete)
    return (q, r), (a, q, r)


def _qr(B: Backend, saved: Any, gs: tuple[Array | None, ...], needed: Needed, complete: bool) -> Gradients:
    """(gq + q copyltu(r gr' - gq' q)) r'^-1, where copyltu mirrors the lower triangle; a must have full rank."""
    a, q, r = saved
    gq, gr = gs
    *_, m, n = B.shape(a)
    if complete and m > n:
        raise AutodiffError(
            "qr: the columns that complete q are arbitrary and have no derivative; use mode='reduced' for it"
        )
    if gq is None and gr is None:
        return (None,)
    gq = B.float_mul(q, 0.0) if gq is None else gq
    gr = B.float_mul(r, 0.0) if gr is None else gr
    if m >= n:
        return (_tall_qr(B, q, r, gq, gr),)
    # a = q [u, q' y] for the columns y beyond the m-th.
    shape_a, shape_r = B.shape(a), B.shape(r)
    y = B.index(a, last(shape_a, slice(m, n, 1)))
    u, gu, gv = (B.index(x, last(shape_r, part)) for x, part in (
        (r, slice(0, m, 1)), (gr, slice(0, m, 1)), (gr, slice(m, n, 1))
    ))  # fmt: skip
    gq = B.float_add(gq, B.float_matmul(y, transposed(B, gv)))
    return (B.concat((_tall_qr(B, q, u, gq, gu), B.float_matmul(q, gv)), len(shape_a) - 1),)


def _tall_qr(B: Backend, q: Array, r: Array, gq: Array, gr: Array) -> Array:
    gap = B.float_sub(B.float_matmul(r, transposed(B, gr)), B.float_matmul(transposed(B, gq), q))
    mirrored = B.float_add(triangle(B, gap, True), transposed(B, triangle(B, gap, True, strict=True)))
    rhs = B.float_add(gq, B.float_matmul(q, mirrored))
    return transposed(B, B.solve_triangular(r, transposed(B, rhs), False, False))


def _differences(B: Backend, x: Array) -> Array:
    """x_j - x_i at (i, j), or infinity where the two are equal up to rounding."""
    *batch, n = B.shape(x)
    gap = B.float_sub(B.expand_dims(x, (len(batch),)), B.expand_dims(x, (len(batch) + 1,)))
    if 0 in B.shape(x):
        return gap
    largest = B.expand_dims(B.float_max(B.float_abs(x), (len(batch),), True), (len(batch),))
    equal = B.float_less_equal(B.float_abs(gap), B.float_mul(largest, n * _EPSILON[B.float_element]))
    return B.where(equal, float("inf"), gap)


def _over_gaps(B: Backend, skew: Array, x: Array, values: Array) -> Array:
    """skew / (values_j - values_i) for the skew part of a sum of products x; zero where skew is only rounding.

    skew is only rounding for functions that do not depend on the choice of the vectors of close values; the quotient
    would then be arbitrary. For other functions symmetry may make skew zero at single points: its derivative is kept.
    """
    if 0 in B.shape(x):
        return skew
    rank = len(B.shape(x))
    largest = B.float_max(B.float_abs(x), (rank - 2, rank - 1), True)
    noise = B.float_less_equal(B.float_abs(skew), B.float_mul(largest, 4.0 * _EPSILON[B.float_element]))
    return B.float_div(B.float_sub(skew, B.detach(B.where(noise, skew, 0.0))), _differences(B, values))


def _eigh_forward(B: Backend, a: Array) -> tuple[tuple[Array, ...], Any]:
    results = B.eigh(a)
    return results, results


def _eigh(B: Backend, saved: Any, gs: tuple[Array | None, ...], needed: Needed) -> Gradients:
    """The symmetric part of v (diag(gw) + X / (w_j - w_i)) v', where X is the skew part of v' gv; the rest cancels."""
    w, v = saved
    gw, gv = gs
    inner = None if gw is None else diagonal_matrix(B, gw)
    v_t = transposed(B, v)
    if gv is not None:
        product = B.float_matmul(v_t, gv)
        rotation = _over_gaps(B, B.float_mul(_skew(B, product), 0.5), product, w)
        inner = rotation if inner is None else B.float_add(inner, rotation)
    return (None if inner is None else _symmetric(B, B.float_matmul(v, B.float_matmul(inner, v_t))),)


def _svd_forward(B: Backend, a: Array, full: bool) -> tuple[tuple[Array, ...], Any]:
    u, s, vh = B.svd(a, full)
    return (u, s, vh), (a, u, s, vh)


def _svd(B: Backend, saved: Any, gs: tuple[Array | None, ...], needed: Needed, full: bool) -> Gradients:
    """u (X / (s_j - s_i) + Y / (s_j + s_i) + diag(gs)) vh, and the parts outside the spaces of u and v.

    With J = u' gu - gu' u and K = v' gv - gv' v, X = (J + K) / 2 and Y = (J - K) / 2. In this form u vh has a
    derivative at equal singular values too, because X = 0 there.
    """
    a, u, s, vh = saved
    gu, gs_, gvh = gs
    *_, m, n = B.shape(a)
    k = B.shape(s)[-1]
    if full and m != n:
        if gu is not None or gvh is not None:
            raise AutodiffError(
                "svd: the vectors that complete u and vh are arbitrary and have no derivative; "
                "use full_matrices=False for it"
            )
        u, s, vh = B.svd(a, False)
    mm, v, uh = B.float_matmul, transposed(B, vh), transposed(B, u)
    gv = None if gvh is None else transposed(B, gvh)
    of_u, of_v = None if gu is None else mm(uh, gu), None if gv is None else mm(vh, gv)
    skew_u, skew_v = (None if product is None else _skew(B, product) for product in (of_u, of_v))
    inner = None if gs_ is None else diagonal_matrix(B, gs_)
    if skew_u is not None or skew_v is not None:
        total = _total(B, skew_u, skew_v)
        difference = _total(B, skew_u, None if skew_v is None else B.float_neg(skew_v))
        products = _total(B, *(None if product is None else B.float_abs(product) for product in (of_u, of_v)))
        rotation = B.float_add(_over_gaps(B, total, products, s), B.float_div(difference, _sums(B, s)))
        inner = _total(B, inner, B.float_mul(rotation, 0.5))
    da = None if inner is None else mm(u, mm(inner, vh))
    inverse = B.expand_dims(_inverse(B, s), (len(B.shape(s)) - 1,))
    if gu is not None and m > k:
        outside = B.float_mul(B.float_sub(gu, mm(u, mm(uh, gu))), inverse)
        da = _total(B, da, mm(outside, vh))
    if gv is not None and n > k:
        outside = B.float_mul(B.float_sub(gv, mm(v, mm(vh, gv))), inverse)
        da = _total(B, da, mm(u, transposed(B, outside)))
    return (da,)


def _skew(B: Backend, x: Array) -> Array:
    return B.float_sub(x, transposed(B, x))


def _total(B: Backend, x: Array | None, y: Array | None) -> Array:
    return y if x is None else x if y is None else B.float_add(x, y)


def _inverse(B: Backend, s: Array) -> Array:
    """1 / s, and zero where s is zero."""
    flat = B.float_equal(s, 0.0)
    return B.where(flat, 0.0, B.float_reciprocal(B.where(flat, 1.0, s)))


def _sums(B: Backend, s: Array) -> Array:
    """s_j + s_i at (i, j), or infinity where both are zero."""
    rank = len(B.shape(s))
    total = B.float_add(B.expand_dims(s, (rank - 1,)), B.expand_dims(s, (rank,)))
    return B.where(B.float_equal(total, 0.0), float("inf"), total)


DECOMPOSITIONS: dict[str, Rule] = {
    "cholesky": General(1, _cholesky_forward, _cholesky),
    "qr": MultiOutputRule(1, _qr_forward, _qr),
    "svd": MultiOutputRule(1, _svd_forward, _svd),
    "eigh": MultiOutputRule(1, _eigh_forward, _eigh),
}
