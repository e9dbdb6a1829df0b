"""Linear algebra on PyTorch."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from phlox.backend.contract import Backend
from phlox.backend.contract.decompositions import NOT_FINITE, NOT_POSITIVE, SINGULAR, refuse
from phlox.backend.contract.linalg import NEARLY
from phlox.backend.contract.matrices import arranged, layout
from phlox.backend.contract.types import Array, Axes, native
from phlox.backend.torch.placeholder import is_placeholder

_linalg: Any = torch.linalg


def _checked(result: Array, bad: Array, what: str) -> Array:
    if is_placeholder(bad):
        return torch.where(bad[..., None, None], torch.nan, result)
    refuse(bad.detach().cpu().numpy(), what)
    return result


def _decomposed(function: Callable[[Array], Any], a: Array, values: Callable[[Any], Array]) -> Any:
    """`function(a)`; where `values` of it are not finite, or there are none, a was not finite."""
    try:
        found = function(a)
        if is_placeholder(a) or math.isfinite(float(values(found).detach().sum())):
            return found
    except _linalg.LinAlgError:
        found = None
    refuse(~torch.isfinite(a.detach()).all(-1).all(-1).cpu().numpy(), NOT_FINITE)
    return function(a) if found is None else found


class Linalg(Backend):
    """See `phlox.backend.contract.linalg`."""

    det = native(_linalg.det)
    matrix_exp = native(_linalg.matrix_exp)

    def float_dot_general(self, x: Array, y: Array, batch: tuple[Axes, Axes], summed: tuple[Axes, Axes]) -> Array:
        plan = layout(tuple(x.shape), tuple(y.shape), batch, summed)
        if not plan.sums or batch[0] or (plan.m != 1 and plan.n != 1):
            return super().float_dot_general(x, y, batch, summed)
        # A matrix with one row or one column is slow to multiply unless it is said to be a vector.
        left, right = arranged(self, x, plan.order_x, plan.matrices_x), arranged(self, y, plan.order_y, plan.matrices_y)
        product = torch.mv(left, right[:, 0]) if plan.n == 1 else torch.mv(right.T, left[0])
        return product.reshape((plan.m, plan.n) if plan.result is None else plan.result)

    def solve(self, a: Array, b: Array) -> Array:
        # Given fewer axes than a has, torch might take b for vectors.
        b = b.broadcast_to(*torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:])
        x, info = _linalg.solve_ex(a, b)
        return _checked(x, info != 0, SINGULAR)

    def solve_triangular(self, a: Array, b: Array, lower: bool, unit: bool) -> Array:
        x = _linalg.solve_triangular(a, b, upper=not lower, unitriangular=unit)
        if unit:
            return x
        return _checked(x, (torch.diagonal(a, dim1=-2, dim2=-1) == 0).any(-1), SINGULAR)

    def inv(self, a: Array) -> Array:
        x, info = _linalg.inv_ex(a)
        return _checked(x, info != 0, SINGULAR)

    def slogdet(self, a: Array) -> tuple[Array, Array]:
        sign, logarithm = _linalg.slogdet(a)
        return sign, logarithm

    def cholesky(self, a: Array) -> Array:
        y, info = _linalg.cholesky_ex(self._symmetric(a))
        return _checked(y, info != 0, NOT_POSITIVE)

    def _signs(self, v: Array) -> Array:
        size = v.abs()
        near = size >= size.amax(-2, keepdim=True) * NEARLY
        first = near.to(torch.uint8).argmax(-2, keepdim=True)
        return torch.where(v.gather(-2, first) < 0, -1.0, 1.0).to(v.dtype)

    def qr(self, a: Array, complete: bool) -> tuple[Array, Array]:
        return self._without_negatives(*_linalg.qr(a, mode="complete" if complete else "reduced"))

    def svd(self, a: Array, full: bool) -> tuple[Array, Array, Array]:
        return self._oriented_svd(*_decomposed(partial(_linalg.svd, full_matrices=full), a, lambda found: found[1]))

    def eigh(self, a: Array) -> tuple[Array, Array]:
        return self._oriented_eigh(*_decomposed(_linalg.eigh, self._symmetric(a), lambda found: found[0]))

    def eigvalsh(self, a: Array) -> Array:
        return _decomposed(_linalg.eigvalsh, self._symmetric(a), lambda w: w)

    def svdvals(self, a: Array) -> Array:
        return _decomposed(_linalg.svdvals, a, lambda s: s)
