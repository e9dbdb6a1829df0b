"""Linear algebra on PyTorch."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from phlox.backend.contract import Backend
from phlox.backend.contract.decompositions import NOT_FINITE, NOT_POSITIVE, SINGULAR, refuse
from phlox.backend.contract.linalg import NEARLY
from phlox.backend.contract.matrices import arranged, matmul_plan
from phlox.backend.contract.types import Array, Axes, native
from phlox.backend.torch.tracer import is_tracer

_linalg: Any = torch.linalg


def _raise_if_any(result: Array, bad: Array, fault: str) -> Array:
    if is_tracer(bad):
        return torch.where(bad[..., None, None], torch.nan, result)
    refuse(bad.detach().cpu().numpy(), fault)
    return result


def _of_numbers(function: Callable[[Array], Any], a: Array) -> Any:
    """`function(a)`, with one result or several; `LinalgError` for matrices that are not finite.

    LAPACK's results for these are undefined. A program cannot raise: it computes with zeros instead, and returns NaN.
    """
    undefined = ~torch.isfinite(a.detach()).all(-1).all(-1)
    if not is_tracer(a):
        refuse(undefined.cpu().numpy(), NOT_FINITE)
        return function(a)
    result = function(torch.where(undefined[..., None, None], 0.0, a))
    if isinstance(result, torch.Tensor):
        return _nan_where(undefined, result)
    return tuple([_nan_where(undefined, x) for x in result])


def _nan_where(where: Array, x: Array) -> Array:
    return torch.where(where.reshape((*where.shape, *(1,) * (x.ndim - where.ndim))), torch.nan, x)


class Linalg(Backend):
    """See `phlox.backend.contract.linalg`."""

    det = native(_linalg.det)
    matrix_exp = native(_linalg.matrix_exp)

    def float_dot_general(self, x: Array, y: Array, batch: tuple[Axes, Axes], summed: tuple[Axes, Axes]) -> Array:
        plan = matmul_plan(tuple(x.shape), tuple(y.shape), batch, summed)
        if not plan.sums or batch[0] or (plan.m != 1 and plan.n != 1):
            return super().float_dot_general(x, y, batch, summed)
        # torch multiplies a matrix of one row or one column slowly, unless it is passed as a vector.
        rows, cols = arranged(self, x, plan.order_x, plan.matrices_x), arranged(self, y, plan.order_y, plan.matrices_y)
        product = torch.mv(rows, cols[:, 0]) if plan.n == 1 else torch.mv(cols.T, rows[0])
        return product.reshape((plan.m, plan.n) if plan.result is None else plan.result)

    def solve(self, a: Array, b: Array) -> Array:
        # If b has fewer axes than a, torch might read it as vectors.
        b = b.broadcast_to(*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:])
        x, info = _of_numbers(lambda a: _linalg.solve_ex(a, b), a)
        return _raise_if_any(x, info != 0, SINGULAR)

    def solve_triangular(self, a: Array, b: Array, lower: bool, unit: bool) -> Array:
        a = torch.tril(a, -int(unit)) if lower else torch.triu(a, int(unit))  # the elements that are read
        x = _of_numbers(lambda a: _linalg.solve_triangular(a, b, upper=not lower, unitriangular=unit), a)
        if unit:
            return x
        return _raise_if_any(x, (torch.diagonal(a, dim1=-2, dim2=-1) == 0).any(-1), SINGULAR)

    def inv(self, a: Array) -> Array:
        x, info = _of_numbers(_linalg.inv_ex, a)
        return _raise_if_any(x, info != 0, SINGULAR)

    def slogdet(self, a: Array) -> tuple[Array, Array]:
        sign, logarithm = _linalg.slogdet(a)
        return torch.where(logarithm.isnan(), torch.nan, sign), logarithm

    def cholesky(self, a: Array) -> Array:
        y, info = _of_numbers(_linalg.cholesky_ex, self._symmetric(a))
        return _raise_if_any(y, info != 0, NOT_POSITIVE)

    def _signs(self, v: Array) -> Array:
        size = v.abs()
        near = size >= size.amax(-2, keepdim=True) * NEARLY
        first = near.to(torch.int32).argmax(-2, keepdim=True)
        return torch.where(v.gather(-2, first) < 0, -1.0, 1.0).to(v.dtype)

    def qr(self, a: Array, complete: bool) -> tuple[Array, Array]:
        return self._without_negatives(*_of_numbers(partial(_linalg.qr, mode="complete" if complete else "reduced"), a))

    def svd(self, a: Array, full: bool) -> tuple[Array, Array, Array]:
        return self._oriented_svd(*_of_numbers(partial(_linalg.svd, full_matrices=full), a))

    def eigh(self, a: Array) -> tuple[Array, Array]:
        return self._oriented_eigh(*_of_numbers(_linalg.eigh, self._symmetric(a)))

    def eigvalsh(self, a: Array) -> Array:
        return _of_numbers(_linalg.eigvalsh, self._symmetric(a))

    def svdvals(self, a: Array) -> Array:
        return _of_numbers(_linalg.svdvals, a)
