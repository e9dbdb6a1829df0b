"""Linear algebra on JAX."""

# JAX's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from phlox.backend.contract import Backend
from phlox.backend.contract.decompositions import NOT_FINITE, NOT_POSITIVE, SINGULAR, refuse
from phlox.backend.contract.types import Array, Axes
from phlox.backend.jax.ops import op, simple


def _raise_if_undefined(results: tuple[Any, ...], *reasons: str) -> Any:
    """The result of a function that also returns, for each reason, the matrices for which it is undefined.

    Raises `LinalgError` for these; in a trace, their results are just NaN.
    """
    result, *bad = results
    for is_bad, fault in zip(bad, reasons, strict=True):
        if not isinstance(is_bad, Tracer):
            refuse(np.asarray(is_bad.block_until_ready()), fault)
    return result


def _nan_where(bad: Array, *results: Array) -> tuple[Array, ...]:
    """The results, with NaN for bad matrices."""
    return tuple([jnp.where(bad.reshape((*bad.shape, *(1,) * (x.ndim - bad.ndim))), jnp.nan, x) for x in results])


@op()
def _products(x: Array, y: Array) -> Array:
    # y is not transposed: XLA would copy it element by element, and gather a sharded y a second time.
    stack = tuple(range(y.ndim - 2))
    if stack and x.shape[:-2] != y.shape[:-2]:
        return jnp.matmul(x, y.mT)
    return lax.dot_general(x, y, (((x.ndim - 1,), (y.ndim - 1,)), (stack, stack)))


@op(2, 3)
def dot_general(x: Array, y: Array, batch: tuple[Axes, Axes], summed: tuple[Axes, Axes]) -> Array:
    """See `phlox.backend.contract.linalg`."""
    return lax.dot_general(x, y, (summed, batch))


def _broadcast(a: Array, b: Array) -> tuple[Array, Array]:
    """Matrices, broadcast to stacks of one shape."""
    stack = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return jnp.broadcast_to(a, (*stack, *a.shape[-2:])), jnp.broadcast_to(b, (*stack, *b.shape[-2:]))


def _zero_on_diagonal(a: Array) -> Array:
    return (jnp.diagonal(a, axis1=-2, axis2=-1) == 0).any(-1)


def _not_finite(a: Array) -> Array:
    return ~jnp.isfinite(a).all((-2, -1))


@jax.jit
def _solve(a: Array, b: Array) -> tuple[Array, Array, Array]:
    lu, _, order = lax.linalg.lu(a)
    singular, undefined = _zero_on_diagonal(lu), _not_finite(a)
    lu, b = _broadcast(lu, b)
    order = jnp.broadcast_to(order[..., None], (*b.shape[:-1], 1))
    b = jnp.take_along_axis(b, order, axis=-2)
    y = lax.linalg.triangular_solve(lu, b, left_side=True, lower=True, unit_diagonal=True)
    x = lax.linalg.triangular_solve(lu, y, left_side=True, lower=False)
    return *_nan_where(singular | undefined, x), undefined, singular


@op(2, 3)
def _solve_triangular(a: Array, b: Array, lower: bool, unit: bool) -> tuple[Array, Array, Array]:
    singular = jnp.zeros(a.shape[:-2], jnp.bool_) if unit else _zero_on_diagonal(a)
    undefined = _not_finite(jnp.tril(a, -int(unit)) if lower else jnp.triu(a, int(unit)))  # the elements that are read
    x = lax.linalg.triangular_solve(*_broadcast(a, b), left_side=True, lower=lower, unit_diagonal=unit)
    return *_nan_where(singular | undefined, x), undefined, singular


@op(0)
def _cholesky(B: Any, a: Array) -> tuple[Array, Array, Array]:
    y = lax.linalg.cholesky(B._symmetric(a), symmetrize_input=False)
    undefined = _not_finite(a)
    return *_nan_where(undefined, y), undefined, jnp.isnan(jnp.diagonal(y, axis1=-2, axis2=-1)).any(-1)


@op(0, 2)
def _qr(B: Any, a: Array, complete: bool) -> tuple[tuple[Array, ...], Array]:
    undefined = _not_finite(a)
    factors = B._without_negatives(*jnp.linalg.qr(a, mode="complete" if complete else "reduced"))
    return _nan_where(undefined, *factors), undefined


@op(0, 2)
def _svd(B: Any, a: Array, full: bool) -> tuple[tuple[Array, ...], Array]:
    undefined = _not_finite(a)
    return _nan_where(undefined, *B._oriented_svd(*jnp.linalg.svd(a, full_matrices=full))), undefined


@op()
def _svdvals(a: Array) -> tuple[Array, Array]:
    undefined = _not_finite(a)
    return *_nan_where(undefined, jnp.linalg.svdvals(a)), undefined


@op(0)
def _eigh(B: Any, a: Array) -> tuple[tuple[Array, ...], Array]:
    undefined = _not_finite(a)
    factors = B._oriented_eigh(*jnp.linalg.eigh(B._symmetric(a), symmetrize_input=False))
    return _nan_where(undefined, *factors), undefined


@op(0)
def _eigvalsh(B: Any, a: Array) -> tuple[Array, Array]:
    undefined = _not_finite(a)
    return *_nan_where(undefined, jnp.linalg.eigvalsh(B._symmetric(a), symmetrize_input=False)), undefined


@op()
def _slogdet(a: Array) -> tuple[Array, Array]:
    sign, logarithm = jnp.linalg.slogdet(a)
    return sign, logarithm


class Linalg(Backend):
    """See `phlox.backend.contract.linalg`."""

    float_dot_general = staticmethod(dot_general)
    int_dot_general = staticmethod(dot_general)
    _products = staticmethod(_products)
    det = simple(jnp.linalg.det)
    matrix_exp = simple(jax.scipy.linalg.expm)

    def solve(self, a: Array, b: Array) -> Array:
        return _raise_if_undefined(_solve(a, b), NOT_FINITE, SINGULAR)

    def solve_triangular(self, a: Array, b: Array, lower: bool, unit: bool) -> Array:
        return _raise_if_undefined(_solve_triangular(a, b, lower, unit), NOT_FINITE, SINGULAR)

    def slogdet(self, a: Array) -> tuple[Array, Array]:
        return _slogdet(a)

    def cholesky(self, a: Array) -> Array:
        return _raise_if_undefined(_cholesky(self, a), NOT_FINITE, NOT_POSITIVE)

    def qr(self, a: Array, complete: bool) -> tuple[Array, Array]:
        return _raise_if_undefined(_qr(self, a, complete), NOT_FINITE)

    def svd(self, a: Array, full: bool) -> tuple[Array, Array, Array]:
        return _raise_if_undefined(_svd(self, a, full), NOT_FINITE)

    def svdvals(self, a: Array) -> Array:
        return _raise_if_undefined(_svdvals(a), NOT_FINITE)

    def eigh(self, a: Array) -> tuple[Array, Array]:
        return _raise_if_undefined(_eigh(self, a), NOT_FINITE)

    def eigvalsh(self, a: Array) -> Array:
        return _raise_if_undefined(_eigvalsh(self, a), NOT_FINITE)
