"""Products with a matrix of each row's own: mixtures of experts.

Both operations are linear in each of their float operands, and each other's derivatives.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from phlox.backend.contract.indexing import IndexingOps
from phlox.backend.contract.linalg import LinalgOps
from phlox.backend.contract.reduction import ReductionOps
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.backend.tracing.symbolic import is_symbolic
from phlox.errors import IndexRangeError


class Blocks(NamedTuple):
    """Rows sorted into blocks of equal length, each with rows of one expert, and zeros after them."""

    length: int
    experts: Array
    """[blocks], Int: the expert of each block."""
    slots: Array
    """[rows], Int: where each row is among the rows of all blocks."""


def rows_by_expert(experts: np.ndarray[Any, Any], n: int) -> list[tuple[int, np.ndarray[Any, Any]]]:
    """On the host: each of n experts that has rows, and their numbers; `IndexRangeError` for another expert.

    >>> [(expert, rows.tolist()) for expert, rows in rows_by_expert(np.array([2, 0, 2]), 3)]
    [(0, [1]), (2, [0, 2])]
    """
    if not experts.size:
        return []
    order = np.argsort(experts, kind="stable")
    numbers, starts = np.unique(experts[order], return_index=True)
    for number in (int(numbers[0]), int(numbers[-1])):
        if not 0 <= number < n:
            raise IndexRangeError(f"expert {number} is out of range for {n} experts")
    return list(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True))


class ExpertOps(LinalgOps, ReductionOps, IndexingOps):
    """Products of rows x [rows, inputs] with those of weight [n, inputs, outputs] that `experts` [rows], Int, names.

    The definition has fixed shapes, so that it can be compiled. Rows are sorted into n + rows / length blocks of the
    average length, rows / n: all products together take twice the necessary operations at most.
    """

    def expert_linear(self, x: Array, weight: Array, experts: Array) -> Array:
        """x[r] @ weight[experts[r]] for each row r: [rows, outputs]."""
        rows, _ = self.shape(x)
        n, _, outputs = self.shape(weight)
        if n == 0 or self._is_row_by_row(rows, n):
            y = self.float_matmul(self.expand_dims(x, (1,)), self.take(weight, experts, 0))
            return self.reshape(y, (rows, outputs))
        blocks = self._expert_blocks(experts, n)
        y = self.float_matmul(self._in_blocks(x, blocks), self.take(weight, blocks.experts, 0))
        count, length, _ = self.shape(y)
        return self.take(self.reshape(y, (count * length, outputs)), blocks.slots, 0)

    def expert_linear_forward(self, x: Array, weight: Array, experts: Array) -> tuple[Array, Any]:
        """See `expert_linear`."""
        return self.expert_linear(x, weight, experts), (x, weight, experts)

    def expert_linear_backward(self, saved: Any, g: Array, needed: Needed) -> Gradients:
        """dx = g w', and dw the sum of x' g over the rows of each expert."""
        x, weight, experts = saved
        dx = dw = None
        if needed[0]:
            dx = self.expert_linear(g, self.permute_dims(weight, (0, 2, 1)), experts)
        if needed[1]:
            dw = self.expert_linear_dw(x, g, experts, self.shape(weight)[0])
        return dx, dw, None

    def expert_linear_dw(self, x: Array, g: Array, experts: Array, n: int) -> Array:
        """The sum of the outer products x[r] g[r] over the rows r of each expert: [n, inputs, outputs]."""
        rows, inputs = self.shape(x)
        if n == 0 or self._is_row_by_row(rows, n):
            products = self.float_mul(self.expand_dims(x, (2,)), self.expand_dims(g, (1,)))
        else:
            blocks = self._expert_blocks(experts, n)
            experts = blocks.experts
            products = self.float_matmul(
                self.permute_dims(self._in_blocks(x, blocks), (0, 2, 1)), self._in_blocks(g, blocks)
            )
        zeros = self.float_full((n, inputs, self.shape(g)[1]), 0.0, self.device_of(x))
        return self.float_scatter(zeros, experts, products, "add")

    def _is_row_by_row(self, rows: int, n: int) -> bool:
        """Is each row multiplied by itself? If there are no more rows than experts."""
        return not is_symbolic(rows) and rows <= n

    def _block_length(self, rows: int, n: int) -> int:
        """The number of rows in a block: the average of an expert."""
        return (rows + n - 1) // n

    def _expert_blocks(self, experts: Array, n: int) -> Blocks:
        (rows,), device = self.shape(experts), self.device_of(experts)
        length = self._block_length(rows, n)
        count = n + (rows if is_symbolic(rows) else rows // length)
        numbers = self.int_arange(0, n, 1, device)
        is_its = self.bool_into_int(self.int_equal(self.expand_dims(experts, (1,)), numbers))
        earlier = self.take_along_axis(self.int_cumsum(is_its, 0), self.expand_dims(experts, (1,)), 1)
        rank = self.int_sub(self.reshape(earlier, (rows,)), 1)
        blocks = self.int_floordiv(self.int_add(self.int_sum(is_its, (0,), False), length - 1), length)
        ends = self.int_cumsum(blocks, 0)
        slots = self.int_add(self.int_mul(self.take(self.int_sub(ends, blocks), experts, 0), length), rank)
        is_after = self.int_less_equal(ends, self.expand_dims(self.int_arange(0, count, 1, device), (1,)))
        of_blocks = self.int_minimum(self.int_sum(self.bool_into_int(is_after), (1,), False), n - 1)
        return Blocks(length, of_blocks, slots)

    def _in_blocks(self, x: Array, blocks: Blocks) -> Array:
        count, width = self.shape(blocks.experts)[0], self.shape(x)[1]
        zeros = self.float_full((count * blocks.length, width), 0.0, self.device_of(x))
        rows = self.float_scatter(zeros, blocks.slots, x, "set")
        return self.reshape(rows, (count, blocks.length, width))
