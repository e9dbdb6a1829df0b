"""Operations whose results depend neither on the size of a batch nor on the number of threads.

An engine chooses its kernel by the size of a product, and cuts a sum by the number of threads, so the rounding changes
with both. Here all products are products of tiles of one shape, all sums are additions in one order, and everything
else that multiplies or sums is the contract's definition, which consists of these two.

Each engine has a twin, a backend on the same arrays with these operations (`twin_of`). When the reproducible mode is
first used, the engine's own operations get a switch: in the mode, the twin's operation runs (`install_in`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, NamedTuple

from phlox.backend.contract.backend import Backend
from phlox.backend.contract.catalogue import DERIVED, OPERATIONS, REQUIRED
from phlox.backend.contract.engine import EngineBackend
from phlox.backend.contract.matrices import arranged, matmul_plan, transposed
from phlox.backend.contract.nn.attention import AttentionOps
from phlox.backend.contract.nn.conv import ConvOps
from phlox.backend.contract.nn.experts import ExpertOps
from phlox.backend.contract.nn.linear import DenseOps
from phlox.backend.contract.nn.loss import LossOps
from phlox.backend.contract.nn.norm import NormOps
from phlox.backend.contract.nn.packed import PackedOps
from phlox.backend.contract.nn.pooling import PoolingOps
from phlox.backend.contract.nn.recurrent import RecurrentOps
from phlox.backend.contract.nn.sampling import SamplingOps
from phlox.backend.contract.shape import part, replaced
from phlox.backend.contract.tiles import ROWS, TileOps
from phlox.backend.contract.types import Array, Axes, Gradients, Needed, Shape
from phlox.backend.contract.widening import COMPUTING, converters, widen
from phlox.backend.reproducible import is_reproducible
from phlox.backend.tracing.dimension import is_open
from phlox.errors import UnsupportedError

DEPTH = 512
"""The most products that a kernel sums: with more, some kernels cut the sum by the number of threads."""
COLUMNS = 16
"""Columns are filled up to a multiple of this: for the last columns, some kernels have another order of summation."""

_FAMILIES = (
    DenseOps, NormOps, AttentionOps, ConvOps, LossOps, RecurrentOps, PackedOps, ExpertOps, PoolingOps, SamplingOps,
)  # fmt: skip
"""Families whose operations multiply and sum: in the mode, each is the contract's definition."""

_REDUCTIONS = ("float_mean", "float_var", "float_std", "float_logsumexp", "float_norm")

_FUSED = (
    "float_mul", "float_square", "float_exp", "float_expm1", "float_log", "float_log1p", "float_sin", "float_cos",
    "float_tanh", "float_erf",
)  # fmt: skip
"""Operations that may end with a product, which a compiler may fuse with a following sum into one rounding."""


class ReproducibleOps(TileOps):
    """The products and sums of a twin; the kernels are the engine's (`TileOps`)."""

    def setup(self) -> None:
        super().setup()  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
        wide, grow, shrink = converters(self)
        if wide is not self:
            widen(self, wide, COMPUTING, grow, shrink)
        elif type(self).rounded is not Backend.rounded:
            for name in _FUSED:
                setattr(self, name, _rounded(self, getattr(self, name)))

    def float_matmul(self, lhs: Array, rhs: Array) -> Array:
        """As the contract says. Each row of the result depends only on its row of `lhs`, and on `rhs`."""
        (*batch, m, k), (*stack, _, n) = self.shape(lhs), self.shape(rhs)
        sizes = (*batch, m, k, *stack, n)
        self._check(lhs, sizes)
        if 0 in sizes:
            return super().float_matmul(lhs, rhs)
        if columns := -n % COLUMNS:
            rhs = self.pad(rhs, (*((0, 0),) * (len(stack) + 1), (0, columns)), 0.0)
        if math.prod(stack) == 1:
            x, y = self.reshape(lhs, (math.prod(batch) * m, k)), self.reshape(rhs, (k, n + columns))
            multiply, outer = self._tiled, (*(1,) * (len(stack) - len(batch)), *batch)
        else:
            rank = max(len(batch), len(stack))
            pairs = zip(*[(*(1,) * (rank - len(some)), *some) for some in (batch, stack)], strict=True)
            outer = tuple(max(pair) for pair in pairs)
            x = self.reshape(self.broadcast_to(lhs, (*outer, m, k)), (math.prod(outer), m, k))
            y = self.reshape(self.broadcast_to(rhs, (*outer, k, n + columns)), (math.prod(outer), k, n + columns))
            multiply = self.stacked_products
        product = self.reshape(self._in_blocks_of_depth(multiply, x, y), (*outer, m, n + columns))
        return part(self, product, len(outer) + 1, 0, n) if columns else product

    def _tiled(self, x: Array, y: Array) -> Array:
        """The product of x [rows, k] and y [k, n], by tiles of rows."""
        rows = self.shape(x)[0]
        whole = rows - rows % ROWS
        products = [self.tile_products(part(self, x, 0, 0, whole) if whole < rows else x, y)] if whole else []
        if whole < rows:
            last = part(self, x, 0, whole, rows) if whole else x
            last = self.pad(last, ((0, ROWS - rows + whole), (0, 0)), 0.0)
            products.append(part(self, self.tile_product(last, y), 0, 0, rows - whole))
        return self.concat(products, 0) if len(products) > 1 else products[0]

    def linear_backward(self, saved: Any, g: Array, needed: Needed) -> Gradients:
        """As in the contract; the sum over rows in x' g has an order of its own, so its kernel need not be a tile's."""
        x, weight = saved
        dx, _, db = DenseOps.linear_backward(self, saved, g, (needed[0], False, needed[2]))
        if not needed[1]:
            return dx, None, db
        rows = math.prod(self.shape(x)[:-1])
        flat, g = (self.reshape(array, (rows, size)) for array, size in zip((x, g), self.shape(weight), strict=True))
        if not rows or 0 in self.shape(weight):
            return dx, self.engine_matmul(self.permute_dims(flat, (1, 0)), g), db
        sizes = self.shape(weight)
        flat, g = (self.pad(z, ((0, 0), (0, -size % COLUMNS)), 0.0) for z, size in zip((flat, g), sizes, strict=True))
        dw = self._in_blocks_of_depth(self.tile_product, self.permute_dims(flat, (1, 0)), g)
        return dx, part(self, part(self, dw, 0, 0, sizes[0]), 1, 0, sizes[1]), db

    def gelu_forward(self, x: Array, approximate: bool) -> tuple[Array, Any]:
        """As in the contract; the distribution function is kept, since an engine's own gelu is not there to be fast."""
        cdf = self._normal_cdf(x, approximate)
        return self.float_mul(x, cdf), (x, cdf)

    def engine_matmul(self, x: Array, y: Array) -> Array:
        return super().float_matmul(x, y)

    def _in_blocks_of_depth(self, multiply: Callable[[Array, Array], Array], x: Array, y: Array) -> Array:
        """The product of x [..., m, k] and y [..., k, n], as a sum of products of at most `DEPTH` terms each."""
        axis = len(self.shape(x)) - 1
        k = self.shape(x)[axis]
        if k <= DEPTH:
            return multiply(x, y)
        blocks = [(start, min(start + DEPTH, k)) for start in range(0, k, DEPTH)]
        return self._in_pairs([multiply(part(self, x, axis, *b), part(self, y, axis - 1, *b)) for b in blocks])

    def _in_pairs(self, parts: list[Array]) -> Array:
        """The sum of arrays: neighbours first."""
        while len(parts) > 1:
            pairs = [self.float_add(*parts[i : i + 2]) for i in range(0, len(parts) - 1, 2)]
            parts = pairs + parts[len(parts) // 2 * 2 :]
        return parts[0]

    def float_sum(self, x: Array, axes: Axes, keepdims: bool) -> Array:
        """Axis by axis; along an axis, the second half is added to the first until one element is left."""
        self._check(x, self.shape(x))
        for axis in axes:
            x = self._halved(x, axis)
        return x if keepdims else self.squeeze(x, axes)

    def _halved(self, x: Array, axis: int) -> Array:
        shape = self.shape(x)
        size = shape[axis]
        if size == 0:
            return self.float_full(replaced(shape, axis, 1), 0.0, self.device_of(x))
        half = 1 << (size.bit_length() - 1)
        if half < size:
            excess = size - half
            added = self.float_add(part(self, x, axis, 0, excess), part(self, x, axis, half, size))
            x = self.concat((added, part(self, x, axis, excess, half)), axis)
        while half > 1:
            half //= 2
            x = self.float_add(part(self, x, axis, 0, half), part(self, x, axis, half, 2 * half))
        return x

    def float_dot_general(self, x: Array, y: Array, batch: tuple[Axes, Axes], summed: tuple[Axes, Axes]) -> Array:
        """As the contract says; products of vectors are elementwise products, and a sum."""
        plan = matmul_plan(self.shape(x), self.shape(y), batch, summed)
        lhs, rhs = arranged(self, x, plan.order_x, plan.matrices_x), arranged(self, y, plan.order_y, plan.matrices_y)
        if not plan.sums:
            product = self.float_mul(lhs, rhs)
        elif plan.m == plan.n == 1:
            rank = len(self.shape(lhs))
            product = self.float_sum(self.float_mul(lhs, transposed(self, rhs)), (rank - 1,), True)
        else:
            product = self.float_matmul(lhs, rhs)
        return product if plan.result is None else self.reshape(product, plan.result)

    def _products(self, x: Array, y: Array) -> Array:
        return self.float_matmul(x, transposed(self, y))

    def _is_row_by_row(self, rows: int, n: int) -> bool:
        return False

    def _block_length(self, rows: int, n: int) -> int:
        return ROWS

    def _check(self, x: Array, sizes: Shape) -> None:
        if any(map(is_open, sizes)):
            raise UnsupportedError("the reproducible mode needs sizes that are known; export outside of it")
        if not self.is_on_processor(x):
            raise UnsupportedError("the reproducible mode is for arrays on a CPU; move them there, or leave the mode")


def _rounded(backend: Backend, operation: Callable[..., Array]) -> Callable[..., Array]:
    """The operation, whose result a compiler rounds before it is used."""
    return wraps(operation)(lambda *operands: backend.rounded(operation(*operands)))


@cache
def _twin_class(engine: type[EngineBackend]) -> type[Any]:
    own = vars(ReproducibleOps)
    members = {name: value for family in _FAMILIES for name, value in vars(family).items() if not name.startswith("__")}
    for name in (*_REDUCTIONS, *engine.varying):
        members[name] = vars(DERIVED[name])[name]
    members = {name: value for name, value in members.items() if name not in own}
    return type(f"Reproducible{engine.__name__}", (ReproducibleOps, engine), members)


def twin_of(backend: EngineBackend) -> Any:
    """The backend of the same element types on the same arrays whose operations are reproducible."""
    # An engine's own constructor may have other arguments.
    return EngineBackend.__new__(_twin_class(type(backend)), backend.float_element, backend.int_element)


class Saved(NamedTuple):
    """The values that a forward pass in the mode saved: its backward pass is computed in the mode, too."""

    values: Any


def _switched(name: str, fast: Callable[..., Any], steady: Callable[..., Any]) -> Callable[..., Any]:
    """An operation that is `steady` in the mode, and `fast` outside."""

    @wraps(fast)
    def operation(*arguments: Any, **options: Any) -> Any:
        return (steady if is_reproducible() else fast)(*arguments, **options)

    @wraps(fast)
    def forward(*arguments: Any) -> tuple[Any, Any]:
        if not is_reproducible():
            return fast(*arguments)
        result, saved = steady(*arguments)
        return result, Saved(saved)

    @wraps(fast)
    def backward(saved: Any, *arguments: Any) -> Any:
        return steady(saved.values, *arguments) if type(saved) is Saved else fast(saved, *arguments)

    if name.endswith("_forward"):
        return forward
    has_forward = name.removesuffix("_backward") + "_forward" in OPERATIONS
    return backward if name.endswith("_backward") and has_forward else operation


def install_in(backend: EngineBackend) -> None:
    """Give the operations of an engine their switch."""
    if isinstance(backend, ReproducibleOps):
        return
    twin = twin_of(backend)
    members = vars(_twin_class(type(backend)))
    for name in (*COMPUTING, "in_one_call"):
        if name in REQUIRED and name not in members and name not in vars(ReproducibleOps) and name not in vars(twin):
            continue
        try:
            fast, steady = getattr(backend, name), getattr(twin, name)
        except UnsupportedError:
            continue
        if fast is not steady:
            setattr(backend, name, _switched(name, fast, steady))
