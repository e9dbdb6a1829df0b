"""Products of tensors, and diagonals of matrices, as methods."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, Self, TypeVar

from phlox.backend import Bool
from phlox.backend.contract import matrices
from phlox.errors import KindError, ShapeError
from phlox.tensor.backend_promotion import promote
from phlox.tensor.base import TensorBase
from phlox.tensor.dispatch import Ops
from phlox.tensor.engine_arrays import is_array
from phlox.tensor.explain import failure, mixed, type_shown

T = TypeVar("T", bound=TensorBase)

_NO_AXES = ((), ())
_new = object.__new__


def promote_to_ops(name: str, *tensors: Any) -> tuple[Ops, list[Any]]:
    """Promote tensors of one kind: their common table of operations, and their arrays."""
    for x in tensors:
        if not isinstance(x, TensorBase):
            raise KindError(f"{name}: every operand must be a tensor, got {type_shown(x)}")
    if not tensors:
        raise KindError(f"{name}: needs a tensor")
    ops: Ops = tensors[0]._ops
    for other in tensors:
        if other._ops is not ops:
            promoted = promote(name, tensors)
            for x in promoted:
                if x._ops is not promoted[0]._ops:
                    raise mixed(name, promoted[0]._ops, x._ops)
            return promoted[0]._ops, [x.primitive for x in promoted]
    return ops, [x.primitive for x in tensors]


def rounded(x: T) -> T:
    """x, rounded: no compiler fuses it with later operations, so equal products differ by exactly zero."""
    return x._with(x.backend.rounded(x.primitive))  # pyright: ignore[reportPrivateUsage]


class Products(TensorBase):
    """The operands of a product must have one kind."""

    __slots__ = ()

    def __matmul__(self, other: Self) -> Self:
        return self.matmul(other)

    if not TYPE_CHECKING:  # to a type checker it would take every operand

        def __rmatmul__(self, other: Any) -> Any:
            return self._as_operand("matmul", other).matmul(self) if is_array(other) else NotImplemented

    def matmul(self, other: Self) -> Self:
        """The matrix product over the last two axes. Leading axes broadcast; vectors are treated as in NumPy.

        Shapes [..., m, k] and [..., k, n] give [..., m, n]. Raises `ShapeError` if the shapes do not fit.
        """
        ops = self._ops
        if other.__class__ is self.__class__ and other._ops is ops:
            x, y = self.primitive, other.primitive
        else:
            other = self._as_operand("matmul", other)
            ops, (x, y) = promote_to_ops("matmul", self, other)
        left, right = self.ndim, other.ndim
        if left == 0 or right == 0:
            raise ShapeError(f"matmul: shapes {self.shape} and {other.shape}; both operands need an axis")
        if left == 1 or right == 1:
            return self._contract("matmul", other, ((left - 1,), (max(right - 2, 0),)))
        try:
            return self._wrap(ops, ops["matmul"](x, y))
        except Exception as error:
            raise failure("matmul", ops, (x, y), error) from error

    def dot(self, other: Self) -> Self:
        """The dot product of two vectors [n]. For batches see `linalg.vecdot`, for matrices `matmul`."""
        if self.ndim != 1 or other.ndim != 1:
            raise ShapeError(
                f"dot: takes two vectors, got shapes {self.shape} and {other.shape}; use matmul, vecdot or tensordot"
            )
        return self._contract("dot", other, ((0,), (0,)))

    def outer(self, other: Self) -> Self:
        """The products of all pairs of elements of two vectors, [m] and [n]: [m, n]."""
        if self.ndim != 1 or other.ndim != 1:
            raise ShapeError(
                f"outer: takes two vectors, got shapes {self.shape} and {other.shape}; flatten them, or use tensordot"
            )
        return self._contract("outer", other, _NO_AXES)

    def diagonal(self, offset: int = 0, *, axis1: int = -2, axis2: int = -1) -> Self:
        """The elements (i, i + offset) of two axes, as a new last axis in place of both; `offset` may be negative."""
        try:
            offset = index(offset)
        except TypeError:
            raise KindError(f"diagonal: the offset must be an integer, got {offset!r}") from None
        first, second = self._axis("diagonal", axis1), self._axis("diagonal", axis2)
        if first == second:
            raise ShapeError(f"diagonal: needs two different axes of shape {self.shape}, got {axis1} and {axis2}")
        other_axes = [axis for axis in range(self.ndim) if axis not in (first, second)]
        order = (*other_axes, first, second)
        x = self if order == tuple(range(self.ndim)) else self._apply("permute_dims", order)
        return x._with(matrices.diagonal(x.backend, x.primitive, offset))

    def trace(self, offset: int = 0, *, axis1: int = -2, axis2: int = -1) -> Self:
        """The sum of a diagonal; see `diagonal`."""
        if self.kind is Bool:
            raise KindError("trace takes Float or Int tensors, got Bool; convert with .int() first")
        diagonal = self.diagonal(offset, axis1=axis1, axis2=axis2)
        return diagonal._apply("sum", (diagonal.ndim - 1,), False)

    # --- implementation

    def _contract(self, name: str, other: Self, summed: tuple[tuple[int, ...], tuple[int, ...]]) -> Self:
        """The product summed over pairs of axes, whose sizes must be equal."""
        ops, (x, y) = promote_to_ops(name, self, other)
        left, right = self.shape, other.shape
        if [left[axis] for axis in summed[0]] != [right[axis] for axis in summed[1]]:
            raise ShapeError(
                f"{name}: shapes {left} and {right} do not fit; axes {list(summed[0])} of the left operand must have "
                f"the sizes of axes {list(summed[1])} of the right one"
            )
        if ops.kind is Bool:
            raise KindError(f"{name} takes Float or Int tensors, got Bool; convert with .int() first")
        try:
            return self._wrap(ops, ops["dot_general"](x, y, _NO_AXES, summed))
        except Exception as error:
            raise failure(name, ops, (x, y), error) from error

    def _wrap(self, ops: Ops, primitive: Any) -> Self:
        """Wrap an array with another table of operations."""
        result = _new(type(self))
        result._ops = ops
        result.primitive = primitive
        return result


__all__ = ["Products", "promote_to_ops", "rounded"]
