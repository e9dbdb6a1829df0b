"""Decompositions and solutions by NumPy on the host, which other operations cannot express."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

import numpy as np

from phlox.errors import LinalgError

Matrices: TypeAlias = np.ndarray[Any, Any]

NOT_POSITIVE = "is not positive definite"
SINGULAR = "is singular"
NOT_FINITE = "holds NaN or infinities, and so cannot be decomposed"


def refuse(bad: Any, fault: str) -> None:
    """Raise `LinalgError` that names the first matrix of a stack that is `bad`, if any is."""
    bad = np.asarray(bad)
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        raise LinalgError(f"matrix {index} of the stack {fault}" if index else f"the matrix {fault}")


def _on_stack(fn: Callable[..., Any], fault: str, first: Matrices, *others: Any) -> Any:
    """`fn` of stacks of matrices; its error names the matrix of the first stack that is at fault."""
    with np.errstate(all="ignore"):
        try:
            return fn(first, *others)
        except np.linalg.LinAlgError:
            bad = np.zeros(first.shape[:-2], np.bool_)
            for index in np.ndindex(*bad.shape):
                try:
                    fn(first[index], *(np.eye(len(first[index]), dtype=first.dtype) for _ in others))
                except np.linalg.LinAlgError:
                    bad[index] = True
            refuse(bad, fault)
            raise


def refuse_undefined(x: Matrices) -> None:
    """Raise `LinalgError` if a matrix of a stack has NaN or infinities: LAPACK's results would be undefined."""
    refuse(~np.isfinite(x).all((-2, -1)), NOT_FINITE)


def cholesky(x: Matrices) -> Matrices:
    """See the contract."""
    refuse_undefined(x)
    return _on_stack(np.linalg.cholesky, NOT_POSITIVE, 0.5 * (x + x.mT))


def eigh(x: Matrices) -> tuple[Matrices, Matrices]:
    """See the contract; the signs of the eigenvectors are arbitrary."""
    refuse_undefined(x)
    return np.linalg.eigh(0.5 * (x + x.mT))


def solve(a: Matrices, b: Matrices) -> Matrices:
    """See the contract."""
    refuse_undefined(a)
    return _on_stack(np.linalg.solve, SINGULAR, a, b)


def solve_triangular(a: Matrices, b: Matrices, *, lower: bool, unit: bool) -> Matrices:
    """See the contract."""
    a = (np.tril if lower else np.triu)(a)
    if unit:
        a = np.where(np.eye(a.shape[-1], dtype=np.bool_), np.ones((), a.dtype), a)
    refuse((np.diagonal(a, axis1=-2, axis2=-1) == 0.0).any(-1), SINGULAR)
    return solve(a, b)


def qr(x: Matrices, *, complete: bool) -> tuple[Matrices, Matrices]:
    """See the contract; the signs are arbitrary."""
    refuse_undefined(x)
    return np.linalg.qr(x, mode="complete" if complete else "reduced")


def svd(x: Matrices, *, full: bool) -> tuple[Matrices, Matrices, Matrices]:
    """See the contract; the signs of the singular vectors are arbitrary."""
    refuse_undefined(x)
    return np.linalg.svd(x, full_matrices=full)


def slogdet(x: Matrices) -> tuple[Matrices, Matrices]:
    """See the contract."""
    with np.errstate(all="ignore"):
        factors: Any = np.linalg.slogdet(x)
    undefined = np.isnan(factors.logabsdet)
    sign = cast("Matrices", np.where(undefined, factors.logabsdet, factors.sign))
    return sign, cast("Matrices", factors.logabsdet)


def det(x: Matrices) -> Matrices:
    """See the contract."""
    with np.errstate(all="ignore"):
        return np.linalg.det(x)


_PADE = (
    64764752532480000.0, 32382376266240000.0, 7771770303897600.0, 1187353796428800.0, 129060195264000.0,
    10559470521600.0, 670442572800.0, 33522128640.0, 1323241920.0, 40840800.0, 960960.0, 16380.0, 182.0, 1.0,
)  # fmt: skip
_RADIUS = 5.371920351148152
"""Within it the approximant of degree 13 is exact to double precision (Higham 2005)."""


def matrix_exp(x: Matrices) -> Matrices:
    """By a Padé approximant of degree 13 of x / 2^s, squared s times (Higham 2005)."""
    if x.size == 0:
        return x
    wide = x.astype(np.float64)
    norm = np.abs(wide).sum(-2).max(-1)[..., None, None]
    with np.errstate(all="ignore"):
        halvings = np.where(np.isfinite(norm), np.ceil(np.log2(np.maximum(norm / _RADIUS, 1.0))), 0.0)
        a = wide / 2.0**halvings
        powers = [np.broadcast_to(np.eye(a.shape[-1]), a.shape), a @ a]
        for _ in range(5):
            powers.append(powers[-1] @ powers[1])
        odd = a @ sum(c * p for c, p in zip(_PADE[1::2], powers, strict=True))
        even = sum(c * p for c, p in zip(_PADE[::2], powers, strict=True))
        y = np.linalg.solve(even - odd, even + odd)
        for step in range(int(halvings.max())):
            y = np.where(step < halvings, y @ y, y)
        return y.astype(x.dtype)
