"""The kernels of the reproducible mode, as far as an engine has its own; see `phlox.backend.contract.reproducible`."""

from __future__ import annotations

from typing import ClassVar

from phlox.backend.contract.backend import Backend
from phlox.backend.contract.shape import part
from phlox.backend.contract.types import Array

ROWS = 64
"""The number of rows in a tile: fewer rows are filled up with zeros."""


class TileOps(Backend):
    """Products of matrices whose order of summation the shapes determine, and not the number of rows or threads."""

    varying: ClassVar[tuple[str, ...]] = ()
    """Elementwise operations of several steps that the engine rounds by an element's position in memory."""

    def is_on_processor(self, x: Array) -> bool:
        """Is it an array on a CPU? Only there are the kernels reproducible."""
        return True

    def tile_products(self, x: Array, y: Array) -> Array:
        """The product of x [tiles * ROWS, k] and y [k, n], each tile by itself."""
        tiles = range(0, self.shape(x)[0], ROWS)
        products = [self.tile_product(part(self, x, 0, start, start + ROWS), y) for start in tiles]
        return self.concat(products, 0) if len(products) > 1 else products[0]

    def tile_product(self, x: Array, y: Array) -> Array:
        """The product of x [ROWS, k] and y [k, n]."""
        return self.engine_matmul(x, y)

    def stacked_products(self, x: Array, y: Array) -> Array:
        """The products of stacks [count, m, k] and [count, k, n], each as if it were the only one."""
        return self.engine_matmul(x, y)

    def engine_matmul(self, x: Array, y: Array) -> Array:
        """The engine's own `float_matmul`."""
        return self.float_matmul(x, y)
