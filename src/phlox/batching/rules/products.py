"""Products of matrices, stacks of matrices, searches and signals."""

from __future__ import annotations

import math

from phlox.backend.contract.types import Array, Axes
from phlox.batching.build import GeneralRule, MatrixRule, Rule, shifted
from phlox.batching.mapped import MappedOps


def _matmul(name: str) -> Rule:
    def rule(M: MappedOps, lhs: Array, rhs: Array) -> Array:
        B = M.inner
        product = getattr(B, name)
        if type(lhs) is M.box and type(rhs) is not M.box and len(B.shape(rhs)) == 2:
            # One product of many rows instead of many products.
            *stack, k = B.shape(lhs.value)
            result = product(B.reshape(lhs.value, (math.prod(stack), k)), rhs)
            return M.boxed(B.reshape(result, (*stack, B.shape(rhs)[1])))
        rank = max(len(M.shape(lhs)), len(M.shape(rhs))) + 1
        left = M.raised(lhs.value, rank) if type(lhs) is M.box else lhs
        right = M.raised(rhs.value, rank) if type(rhs) is M.box else rhs
        return M.boxed(product(left, right))

    return GeneralRule(2, rule)


def _dot_general(name: str) -> Rule:
    def rule(M: MappedOps, x: Array, y: Array, batch: tuple[Axes, Axes], summed: tuple[Axes, Axes]) -> Array:
        product = getattr(M.inner, name)
        (bx, by), (sx, sy) = batch, summed
        if type(x) is M.box:
            bx, sx = shifted(bx), shifted(sx)
        if type(y) is M.box:
            by, sy = shifted(by), shifted(sy)
        if type(x) is M.box and type(y) is M.box:
            return M.boxed(product(x.value, y.value, ((0, *bx), (0, *by)), (sx, sy)))
        # The batch is the first of the free axes of its operand.
        if type(x) is M.box:
            return M.boxed(M.moved(product(x.value, y, (bx, by), (sx, sy)), len(bx), 0))
        position = len(M.shape(x)) - len(sx)
        return M.boxed(M.moved(product(x, y.value, (bx, by), (sx, sy)), position, 0))

    return GeneralRule(2, rule)


_MATRICES = (
    "inv", "pinv", "det", "slogdet", "adjugate", "matrix_exp", "cholesky", "qr", "svd", "svdvals", "eigh", "eigvalsh",
)  # fmt: skip
_SIGNALS = {"rfft": 1, "irfft": 2, "fft": 2, "frame": 1, "overlap_add": 2}

PRODUCTS: dict[str, Rule] = {
    "float_matmul": _matmul("float_matmul"),
    "int_matmul": _matmul("int_matmul"),
    "float_dot_general": _dot_general("float_dot_general"),
    "int_dot_general": _dot_general("int_dot_general"),
    **{name: MatrixRule((2,)) for name in _MATRICES},
    **{name: MatrixRule((rank,)) for name, rank in _SIGNALS.items()},
    "solve": MatrixRule((2, 2)),
    "solve_triangular": MatrixRule((2, 2)),
    "float_searchsorted": MatrixRule((1, 1)),
    "int_searchsorted": MatrixRule((1, 1)),
}
