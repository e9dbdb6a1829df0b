"""Linear algebra, derived.

Decompositions are unique, so that every engine gives the same factors: the diagonal of a triangular factor R is not
negative, and in an eigenvector or left singular vector the first component that is nearly the largest is positive.
If an operation is not defined for a matrix, it raises `LinalgError` if values are known, and gives NaN under a trace.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from phlox.backend.contract import decompositions as host
from phlox.backend.contract.elementwise import ElementwiseOps
from phlox.backend.contract.matrices import (
    MatmulPlan,
    arranged,
    diagonal,
    identity,
    last,
    matmul_plan,
    products_without,
    transposed,
)
from phlox.backend.contract.types import Array, Axes
from phlox.backend.kind import Float

_LONG = 1 << 12
"""The length from which a dot product is computed as a product and a sum."""

NEARLY = 0.99
"""A component with this fraction of the largest one counts as equally large."""


class LinalgOps(ElementwiseOps):
    """Products, decompositions and solutions of stacks of matrices [..., m, n]."""

    # --- products

    def float_dot_general(self, x: Array, y: Array, batch: tuple[Axes, Axes], summed: tuple[Axes, Axes]) -> Array:
        """The product of x and y over the paired axes `batch` and `summed`, summed over the latter.

        The axes of the result are those of `batch`, then the other axes of x in order, then the others of y in order.
        """
        if max([self.shape(x)[axis] for axis in summed[0]], default=0) >= _LONG:
            plan = matmul_plan(self.shape(x), self.shape(y), batch, summed)
            if plan.m == plan.n == 1:
                return self._long_dot(x, y, plan)
        return self._dot_general(self.float_matmul, self.float_mul, x, y, batch, summed)

    def _long_dot(self, x: Array, y: Array, plan: MatmulPlan) -> Array:
        """Products of long vectors, by `sum`: engines sum in pairs there, but one by one in a matmul."""
        matrices_x = arranged(self, x, plan.order_x, plan.matrices_x)
        matrices_y = arranged(self, y, plan.order_y, plan.matrices_y)
        rank = len(self.shape(matrices_x))
        products = self.float_mul(matrices_x, transposed(self, matrices_y))
        total = self.float_sum(products, (rank - 1,), True)
        return total if plan.result is None else self.reshape(total, plan.result)

    def int_dot_general(self, x: Array, y: Array, batch: tuple[Axes, Axes], summed: tuple[Axes, Axes]) -> Array:
        """See `float_dot_general`."""
        return self._dot_general(self.int_matmul, self.int_mul, x, y, batch, summed)

    def _dot_general(
        self,
        matmul: Callable[[Array, Array], Array],
        multiply: Callable[[Array, Array], Array],
        x: Array,
        y: Array,
        batch: tuple[Axes, Axes],
        summed: tuple[Axes, Axes],
    ) -> Array:
        plan = matmul_plan(self.shape(x), self.shape(y), batch, summed)
        matrices_x = arranged(self, x, plan.order_x, plan.matrices_x)
        matrices_y = arranged(self, y, plan.order_y, plan.matrices_y)
        product = (matmul if plan.sums else multiply)(matrices_x, matrices_y)
        return product if plan.result is None else self.reshape(product, plan.result)

    def _products(self, x: Array, y: Array) -> Array:
        """x y': the products of every row of x with every row of y, for stacks [..., m, k] and [..., n, k]."""
        return self.float_matmul(x, transposed(self, y))

    # --- solutions

    def solve(self, a: Array, b: Array) -> Array:
        """The x of a x = b, for matrices a [..., n, n] and b [..., n, k]; a singular a is LinalgError."""
        return self.on_host(Float, host.solve, a, b)

    def solve_triangular(self, a: Array, b: Array, lower: bool, unit: bool) -> Array:
        """`solve` that reads only a triangle of a; with `unit` its diagonal counts as ones."""
        return self.on_host(Float, partial(host.solve_triangular, lower=lower, unit=unit), a, b)

    def inv(self, a: Array) -> Array:
        """The inverse; LinalgError for a singular matrix."""
        return self.solve(a, identity(self, self.shape(a)[-1], a))

    def pinv(self, a: Array, rtol: float) -> Array:
        """The Moore-Penrose pseudo-inverse; singular values up to rtol times the largest count as zero."""
        u, s, vh = self.svd(a, False)
        if 0 in self.shape(a):
            return transposed(self, a)
        axis = (len(self.shape(s)) - 1,)
        counts = self.float_less(self.float_mul(self.float_max(s, axis, True), rtol), s)
        inverse = self.where(counts, self.float_reciprocal(self.where(counts, s, 1.0)), 0.0)
        scaled = self.float_mul(transposed(self, vh), self.expand_dims(inverse, (len(self.shape(s)) - 1,)))
        return self.float_matmul(scaled, transposed(self, u))

    # --- functions of a matrix

    def det(self, a: Array) -> Array:
        """The determinant."""
        return self.on_host(Float, host.det, a)

    def slogdet(self, a: Array) -> tuple[Array, Array]:
        """The sign of the determinant and the logarithm of its magnitude; 0 and minus infinity if singular."""
        return self.on_host((Float, Float), host.slogdet, a)

    def adjugate(self, a: Array) -> Array:
        """The transposed matrix of cofactors: the derivative of the determinant, for singular matrices too."""
        u, s, vh = self.svd(a, False)
        sign = self.float_sign(self.float_mul(self.det(u), self.det(vh)))
        others = self.float_mul(products_without(self, s, 1), self.expand_dims(sign, (len(self.shape(sign)),)))
        scaled = self.float_mul(transposed(self, vh), self.expand_dims(others, (len(self.shape(s)) - 1,)))
        return self.float_matmul(scaled, transposed(self, u))

    def matrix_exp(self, a: Array) -> Array:
        """The sum of a^k / k! over k."""
        return self.on_host(Float, host.matrix_exp, a)

    # --- decompositions

    def cholesky(self, a: Array) -> Array:
        """The lower triangular L with L L' = (a + a') / 2; LinalgError if that is not positive definite."""
        return self.on_host(Float, host.cholesky, a)

    def qr(self, a: Array, complete: bool) -> tuple[Array, Array]:
        """q with orthonormal columns [..., m, k] and upper triangular r [..., k, n], k = min(m, n); a = q r.

        No element of the diagonal of r is negative. If `complete`, q is [..., m, m] and r [..., m, n].
        """
        return self._without_negatives(*self.on_host((Float, Float), partial(host.qr, complete=complete), a))

    def svd(self, a: Array, full: bool) -> tuple[Array, Array, Array]:
        """u [..., m, k], the singular values s [..., k] in descending order, and vh [..., k, n]; a = u diag(s) vh.

        If `full`, u is [..., m, m] and vh [..., n, n].
        """
        return self._oriented_svd(*self.on_host((Float,) * 3, partial(host.svd, full=full), a))

    def svdvals(self, a: Array) -> Array:
        """The singular values in descending order."""
        return self.svd(a, False)[1]

    def eigh(self, a: Array) -> tuple[Array, Array]:
        """The eigenvalues of (a + a') / 2 in ascending order, and its eigenvectors as columns."""
        return self._oriented_eigh(*self.on_host((Float, Float), host.eigh, a))

    def eigvalsh(self, a: Array) -> Array:
        """The eigenvalues of (a + a') / 2 in ascending order."""
        return self.eigh(a)[0]

    # --- the signs that decompositions leave open

    def _symmetric(self, x: Array) -> Array:
        return self.float_mul(self.float_add(x, transposed(self, x)), 0.5)

    def _without_negatives(self, q: Array, r: Array) -> tuple[Array, Array]:
        signs = self.where(self.float_less(diagonal(self, r), 0.0), -1.0, 1.0)
        *batch, count = self.shape(signs)
        missing = self.shape(q)[-1] - count
        if missing:  # a complete q has more columns than r has diagonal elements
            signs = self.pad(signs, (*((0, 0),) * len(batch), (0, missing)), 1.0)
        rank = len(batch)
        return self.float_mul(q, self.expand_dims(signs, (rank,))), self.float_mul(
            r, self.expand_dims(signs, (rank + 1,))
        )

    def _oriented_eigh(self, w: Array, v: Array) -> tuple[Array, Array]:
        return w, self.float_mul(v, self._signs(v)) if 0 not in self.shape(v) else v

    def _oriented_svd(self, u: Array, s: Array, vh: Array) -> tuple[Array, Array, Array]:
        if 0 in self.shape(s):
            return u, s, vh
        *batch, count = self.shape(s)
        columns, rows = self.shape(u)[-1], self.shape(vh)[-2]
        signs = self._signs(u)
        across = self.reshape(signs, (*batch, columns, 1))
        if rows < columns:
            across = self.index(across, last(self.shape(across), slice(0, rows, 1), slice(0, 1, 1)))
        elif rows > columns:
            across = self.pad(across, (*((0, 0),) * len(batch), (0, rows - count), (0, 0)), 1.0)
        return self.float_mul(u, signs), s, self.float_mul(vh, across)

    def _signs(self, v: Array) -> Array:
        """For each column, [..., 1, k], the sign of its first component within a hundredth of the largest.

        Eigenvectors often have equal components, whose order rounding may change, but hardly by a hundredth.
        """
        *batch, n, _ = self.shape(v)
        down = (len(batch),)
        size = self.float_abs(v)
        near = self.float_less_equal(self.float_mul(self.float_max(size, down, True), NEARLY), size)
        order = self.reshape(self.int_arange(n, 0, -1, self.device_of(v)), (n, 1))
        rank = self.where(near, order, 0)
        first = self.int_equal(rank, self.int_max(rank, down, True))
        return self.where(self.float_less(self.float_sum(self.where(first, v, 0.0), down, True), 0.0), -1.0, 1.0)
