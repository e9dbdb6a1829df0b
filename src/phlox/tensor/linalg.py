"""Linear algebra: products, solvers, decompositions and functions of batches of matrices [..., m, n].

Names follow the Array API standard's `linalg` extension. Decompositions are unique, so every backend gives the same
factors: the diagonal of R in a QR is not negative. Each eigenvector and left singular vector is signed so that its
first component within 1 % of the largest magnitude is positive. (Other choices are arbitrary: the vectors of equal
eigenvalues or singular values, the columns beyond the rank, and those that only complete a basis.)

If an operation needs a matrix that is invertible, positive definite or finite, and a matrix is not, it raises
`LinalgError`, which names the index of the matrix in the batch. In a compiled program the result is NaN instead. At
half precision everything is computed in f32.
"""

from __future__ import annotations

import sys
from typing import Any, Literal, NamedTuple

import numpy as np

from phlox.backend import Int
from phlox.errors import ShapeError
from phlox.lazy import lazily
from phlox.tensor.argument_errors import guard_functions
from phlox.tensor.creation import eye
from phlox.tensor.einsum import einsum
from phlox.tensor.explain import failure
from phlox.tensor.functions import at_full_precision, matmul
from phlox.tensor.matrixvalues import (
    check_matrices,
    check_square,
    cond,
    default_rtol,
    matrix_norm,
    matrix_rank,
    norm,
    svdvals,
    vector_norm,
)
from phlox.tensor.multiplication import (
    cross,
    diag,
    diag_embed,
    diagonal,
    dot,
    inner,
    kron,
    matrix_transpose,
    multi_dot,
    outer,
    tensordot,
    trace,
    vdot,
    vecdot,
)
from phlox.tensor.products import promote_to_ops
from phlox.tensor.tensor import Tensor, wrap

__all__ = [
    "QR", "SVD", "Eigh", "Lstsq", "SlogDet", "cholesky", "cond", "cross", "det", "diag", "diag_embed", "diagonal",
    "dot", "eigh", "eigvalsh", "einsum", "inner", "inv", "kron", "lstsq", "matmul", "matrix_exp", "matrix_norm",
    "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot", "norm", "outer", "pinv", "qr", "slogdet", "solve",
    "solve_triangular", "svd", "svdvals", "tensordot", "trace", "vdot", "vecdot", "vector_norm",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__, {})


class QR(NamedTuple):
    """The results of `qr`."""

    Q: Tensor
    R: Tensor


class SVD(NamedTuple):
    """The results of `svd`."""

    U: Tensor
    S: Tensor
    Vh: Tensor


class Eigh(NamedTuple):
    """The results of `eigh`."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class SlogDet(NamedTuple):
    """The results of `slogdet`."""

    sign: Tensor
    logabsdet: Tensor


class Lstsq(NamedTuple):
    """The results of `lstsq`."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor[Any, Any, Int]
    singular_values: Tensor


def _multi_output(name: str, x: Tensor, *options: Any) -> list[Tensor]:
    """Apply an operation with several results."""
    ops = x._ops  # pyright: ignore[reportPrivateUsage]
    try:
        return [wrap(ops, part) for part in ops[name](x.primitive, *options)]
    except Exception as error:
        raise failure(name, ops, (x.primitive,), error) from error


# --- decompositions


def cholesky(x: Tensor, *, upper: bool = False) -> Tensor:
    """The lower triangular L with L L' = x, for symmetric positive definite matrices; its transpose if `upper`.

    Only the symmetric part (x + x') / 2 is used, so the gradient is symmetric. Raises `LinalgError` if that part is not
    positive definite.

    >>> import phlox as px
    >>> px.linalg.cholesky(px.tensor([[4.0, 2.0], [2.0, 10.0]])).tolist()
    [[2.0, 0.0], [1.0, 3.0]]
    """
    check_square("cholesky", x)
    lower = x._apply("cholesky")  # pyright: ignore[reportPrivateUsage]
    return lower.mT if upper else lower


def qr(x: Tensor, *, mode: Literal["reduced", "complete"] = "reduced") -> QR:
    """Q [..., m, k] with orthonormal columns and upper triangular R [..., k, n] with Q R = x, where k = min(m, n).

    The diagonal of R is not negative. With `mode="complete"` Q is [..., m, m] and R is [..., m, n]. If m > n, the extra
    columns of Q are an arbitrary basis, and there is no gradient. A gradient needs full rank.

    >>> import phlox as px
    >>> q, r = px.linalg.qr(px.tensor([[0.0, 2.0], [3.0, 1.0]]))
    >>> r.tolist()
    [[3.0, 1.0], [0.0, 2.0]]
    """
    check_matrices("qr", x)
    if mode not in ("reduced", "complete"):
        raise ShapeError(f"qr: mode must be 'reduced' or 'complete', got {mode!r}")
    return QR(*_multi_output("qr", x, mode == "complete"))


def svd(x: Tensor, *, full_matrices: bool = True) -> SVD:
    """U, the singular values S [..., k] in descending order, and Vh, with U diag(S) Vh = x, where k = min(m, n).

    U is [..., m, m] and Vh is [..., n, n]; with `full_matrices=False` they are [..., m, k] and [..., k, n]. To
    differentiate, use the latter: vectors that only complete a basis have no gradient. Gradients of U and Vh grow
    without bound as two singular values approach each other. Where they are equal (up to rounding) the individual
    vectors are arbitrary and get no gradient; functions that do not depend on the choice, such as U @ Vh, still have
    correct gradients.

    >>> import phlox as px
    >>> px.linalg.svd(px.tensor([[0.0, 2.0], [1.0, 0.0]])).S.tolist()
    [2.0, 1.0]
    """
    check_matrices("svd", x)
    return SVD(*_multi_output("svd", x, bool(full_matrices)))


def eigh(x: Tensor) -> Eigh:
    """The eigenvalues [..., n] of symmetric matrices in ascending order, and the eigenvectors as columns [..., n, n].

    Only the symmetric part (x + x') / 2 is used, so the gradient is symmetric. The gradient at equal eigenvalues is as
    in `svd` at equal singular values: only functions that do not depend on the choice of their vectors have one.

    >>> import phlox as px
    >>> px.linalg.eigh(px.tensor([[2.0, 1.0], [1.0, 2.0]])).eigenvalues.tolist()
    [1.0, 3.0]
    """
    check_square("eigh", x)
    return Eigh(*_multi_output("eigh", x))


def eigvalsh(x: Tensor) -> Tensor:
    """The eigenvalues of symmetric matrices in ascending order; see `eigh`.

    >>> import phlox as px
    >>> px.linalg.eigvalsh(px.tensor([[2.0, 1.0], [1.0, 2.0]])).tolist()
    [1.0, 3.0]
    """
    check_square("eigvalsh", x)
    return x._apply("eigvalsh")  # pyright: ignore[reportPrivateUsage]


# --- solvers


def _solve(name: str, a: Tensor, b: Tensor, *options: Any) -> Tensor:
    check_square(name, a)
    columns = b.expand_dims(1) if isinstance(b, Tensor) and b.ndim == 1 else b  # pyright: ignore[reportUnnecessaryIsInstance]
    check_matrices(name, columns)
    if columns.shape[-2] != a.shape[-1]:
        raise ShapeError(f"{name}: shapes {a.shape} and {b.shape} do not fit; b must be [n] or [..., n, k]")
    ops, (left, right) = promote_to_ops(name, a, columns)
    try:
        np.broadcast_shapes(a.shape[:-2], columns.shape[:-2])
    except ValueError:
        raise ShapeError(f"{name}: the batch axes of shapes {a.shape} and {b.shape} do not broadcast") from None
    try:
        x = wrap(ops, ops[name](left, right, *options))
    except Exception as error:
        raise failure(name, ops, (left, right), error) from error
    return x.squeeze(-1) if b.ndim == 1 else x


def solve(a: Tensor, b: Tensor) -> Tensor:
    """The x with a x = b, for square matrices a [..., n, n] and a vector b [n] or matrices b [..., n, k].

    Batch axes broadcast. Raises `LinalgError` if a is singular.

    >>> import phlox as px
    >>> px.linalg.solve(px.tensor([[2.0, 0.0], [1.0, 1.0]]), px.tensor([2.0, 3.0])).tolist()
    [1.0, 2.0]
    """
    return _solve("solve", a, b)


def solve_triangular(a: Tensor, b: Tensor, *, upper: bool, unit_diagonal: bool = False) -> Tensor:
    """Like `solve`, but reads only one triangle of a. With `unit_diagonal` the diagonal counts as ones.

    >>> import phlox as px
    >>> px.linalg.solve_triangular(px.tensor([[2.0, 0.0], [1.0, 1.0]]), px.tensor([2.0, 3.0]), upper=False).tolist()
    [1.0, 2.0]
    """
    return _solve("solve_triangular", a, b, not upper, bool(unit_diagonal))


def inv(x: Tensor) -> Tensor:
    """The inverse of square matrices. Raises `LinalgError` if one is singular. To solve equations use `solve`.

    >>> import phlox as px
    >>> px.linalg.inv(px.tensor([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    check_square("inv", x)
    return x._apply("inv")  # pyright: ignore[reportPrivateUsage]


def pinv(x: Tensor, *, rtol: float | None = None) -> Tensor:
    """The Moore-Penrose pseudo-inverse [..., n, m] of matrices [..., m, n].

    Singular values up to `rtol` times the largest count as zero. The default is max(m, n) times the machine epsilon of
    the float dtype. The gradient assumes constant rank (Golub and Pereyra 1973).

    >>> import phlox as px
    >>> px.linalg.pinv(px.tensor([[2.0, 0.0], [0.0, 0.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    check_matrices("pinv", x)
    return x._apply("pinv", default_rtol(x, rtol))  # pyright: ignore[reportPrivateUsage]


@at_full_precision
def lstsq(a: Tensor, b: Tensor, *, rtol: float | None = None) -> Lstsq:
    """Least squares: the x of minimal norm that minimises |a x - b|, for a [..., m, n] and b [m] or [..., m, k].

    Also returns the sums of squared residuals ([] or [..., k]), the rank of a, and its singular values. Batch axes
    broadcast. For `rtol` see `pinv`.

    >>> import phlox as px
    >>> a = px.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    >>> px.linalg.lstsq(a, px.tensor([1.0, 3.0, 5.0])).solution.numpy().round(4)
    array([1., 2.], dtype=float32)
    """
    check_matrices("lstsq", a)
    columns = b.expand_dims(1) if b.ndim == 1 else b
    check_matrices("lstsq", columns)
    if columns.shape[-2] != a.shape[-2]:
        raise ShapeError(f"lstsq: shapes {a.shape} and {b.shape} do not fit; b must be [m] or [..., m, k]")
    x = pinv(a, rtol=rtol).matmul(columns)
    residuals = (a.matmul(x) - columns).square().sum(-2)
    if b.ndim == 1:
        x, residuals = x.squeeze(-1), residuals.squeeze(-1)
    return Lstsq(x, residuals, matrix_rank(a, rtol=rtol), svdvals(a))


# --- functions of a matrix


def det(x: Tensor) -> Tensor:
    """The determinant of square matrices. Its gradient, the cofactors, is correct for singular matrices too.

    >>> import phlox as px
    >>> px.linalg.det(px.tensor([[2.0, 1.0], [0.0, 3.0]])).item()
    6.0
    """
    check_square("det", x)
    return x._apply("det")  # pyright: ignore[reportPrivateUsage]


def slogdet(x: Tensor) -> SlogDet:
    """The sign of the determinant and the logarithm of its magnitude, without overflow or underflow.

    For a singular matrix they are 0 and minus infinity. It has no gradient: differentiating raises `LinalgError`.

    >>> import phlox as px
    >>> px.linalg.slogdet(px.tensor([[0.0, 1.0], [1.0, 0.0]])).sign.item()
    -1.0
    """
    check_square("slogdet", x)
    return SlogDet(*_multi_output("slogdet", x))


@at_full_precision
def matrix_power(x: Tensor, n: int) -> Tensor:
    """The n-th power of square matrices, by repeated squaring. For a negative n, a power of the inverse.

    >>> import phlox as px
    >>> px.linalg.matrix_power(px.tensor([[1.0, 1.0], [0.0, 1.0]]), 5).tolist()
    [[1.0, 5.0], [0.0, 1.0]]
    """
    check_square("matrix_power", x)
    if n == 0:
        return eye(x.shape[-1], device=x.device).broadcast_to(x.shape)
    square = inv(x) if n < 0 else x
    n, result = abs(n), None
    while n:
        if n & 1:
            result = square if result is None else result.matmul(square)
        n >>= 1
        square = square.matmul(square) if n else square
    assert result is not None
    return result


def matrix_exp(x: Tensor) -> Tensor:
    """The exponential of square matrices, the sum of x^k / k! (Higham 2005).

    >>> import phlox as px
    >>> px.linalg.matrix_exp(px.tensor([[0.0, 3.0], [0.0, 0.0]])).tolist()
    [[1.0, 3.0], [0.0, 1.0]]
    """
    check_square("matrix_exp", x)
    return x._apply("matrix_exp")  # pyright: ignore[reportPrivateUsage]


guard_functions(sys.modules[__name__], __all__)
