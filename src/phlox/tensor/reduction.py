"""Reductions over one, several or all axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, TypeAlias

from phlox.backend import Int
from phlox.errors import ShapeError
from phlox.tensor.base import TensorBase

if TYPE_CHECKING:
    from phlox.tensor.tensor import Tensor

Axis: TypeAlias = int | tuple[int, ...] | None
"""One axis, several, or None for all; negative ones count from the end."""


class Reduction(TensorBase):
    """`keepdims=True` leaves the reduced axes in place with size one."""

    __slots__ = ()

    def sum(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """The sum; of nothing, zero."""
        return self._apply("sum", self._axes("sum", axis), keepdims)

    def prod(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """The product; of nothing, one."""
        return self._apply("prod", self._axes("prod", axis), keepdims)

    def mean(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """The arithmetic mean; of nothing, NaN."""
        return self._apply("mean", self._axes("mean", axis), keepdims)

    def var(self, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Self:
        """The mean squared deviation, its divisor being n - `correction`."""
        return self._apply("var", self._axes("var", axis), correction, keepdims)

    def std(self, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Self:
        """The square root of `var`; where it is zero, so is its gradient."""
        return self._apply("std", self._axes("std", axis), correction, keepdims)

    def max(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """The greatest value; NaN wins. Of nothing: `ShapeError`. Equal values share the gradient."""
        return self._apply("max", self._filled("max", self._axes("max", axis)), keepdims)

    def min(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """The least value; NaN wins. Of nothing: `ShapeError`. Equal values share the gradient."""
        return self._apply("min", self._filled("min", self._axes("min", axis)), keepdims)

    def logsumexp(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """log(sum(exp(x))), without overflow. Of nothing: `ShapeError`."""
        return self._apply("logsumexp", self._filled("logsumexp", self._axes("logsumexp", axis)), keepdims)

    def argmax(self, axis: int | None = None) -> Tensor[Any, Any, Int]:
        """The place of the greatest value along an axis, or in reading order; the first of equals, a NaN before all."""
        return self._arg("argmax", axis)

    def argmin(self, axis: int | None = None) -> Tensor[Any, Any, Int]:
        """The place of the least value along an axis, or in reading order; the first of equals, a NaN before all."""
        return self._arg("argmin", axis)

    def _arg(self, name: str, axis: int | None) -> Any:
        if axis is None:
            self._filled(name, self._axes(name, None))
            return self._apply("reshape", (self.size,))._apply_to(Int, name, 0)
        place = self._axis(name, axis)
        self._filled(name, (place,))
        return self._apply_to(Int, name, place)

    def _filled(self, name: str, axes: tuple[int, ...]) -> tuple[int, ...]:
        """The axes, none of which may be of size zero."""
        shape = self.shape
        if 0 in shape and any(shape[axis] == 0 for axis in axes):
            raise ShapeError(f"{name}: of nothing there is none; the reduced axes {axes} of shape {shape} have size 0")
        return axes

    def any(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """Is any element of a Bool tensor true? Of nothing: false."""
        return self._apply("any", self._axes("any", axis), keepdims)

    def all(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """Is every element of a Bool tensor true? Of nothing: true."""
        return self._apply("all", self._axes("all", axis), keepdims)

    def cumsum(self, axis: int) -> Self:
        """The sum of each element and all before it along an axis."""
        return self._apply("cumsum", self._axis("cumsum", axis))
