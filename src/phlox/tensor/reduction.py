"""Reductions over one, several or all axes, and scans along one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast, get_args

import numpy as np

from phlox.backend import Int
from phlox.backend.contract.reduction import Between
from phlox.errors import KindError, RangeError, ShapeError
from phlox.tensor.base import TensorBase

if TYPE_CHECKING:
    from phlox.tensor.tensor import Tensor

Axis: TypeAlias = int | tuple[int, ...] | None
"""One axis, several, or None for all; negative ones count from the end."""


class Reduction(TensorBase):
    """`keepdims=True` keeps the reduced axes with size one."""

    __slots__ = ()

    def sum(self, axis: Axis = None, *, keepdims: bool = False, where: Any = None) -> Self:
        """The sum; with a Bool tensor `where`, only of the elements where it is true. Zero for no elements."""
        if where is not None:
            from phlox.tensor.creation import tensor  # imported here because it needs this class

            unwanted = ~tensor(where, device=self.device)
            return cast("Any", self).masked_fill(unwanted, 0).sum(axis, keepdims=keepdims)
        return self._apply("sum", self._axes("sum", axis), keepdims)

    def prod(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """The product. One for no elements."""
        return self._apply("prod", self._axes("prod", axis), keepdims)

    def mean(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """The arithmetic mean. NaN for no elements."""
        return self._apply("mean", self._axes("mean", axis), keepdims)

    def var(self, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Self:
        """The variance, with divisor n - `correction` (0 by default; 1 is the unbiased estimate)."""
        return self._apply("var", self._axes("var", axis), correction, keepdims)

    def std(self, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> Self:
        """The square root of `var`. Where it is zero, its gradient is zero."""
        return self._apply("std", self._axes("std", axis), correction, keepdims)

    def var_mean(self, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> tuple[Self, Self]:
        """`var` and `mean` together."""
        return self.var(axis, correction=correction, keepdims=keepdims), self.mean(axis, keepdims=keepdims)

    def max(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """The maximum; NaN if any is NaN. No elements: `ShapeError`. Equal maxima share the gradient."""
        return self._apply("max", self._nonempty("max", self._axes("max", axis)), keepdims)

    def min(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """The minimum; NaN if any is NaN. No elements: `ShapeError`. Equal minima share the gradient."""
        return self._apply("min", self._nonempty("min", self._axes("min", axis)), keepdims)

    def logsumexp(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """log(sum(exp(x))), without overflow. No elements: `ShapeError`."""
        return self._apply("logsumexp", self._nonempty("logsumexp", self._axes("logsumexp", axis)), keepdims)

    def norm(self, p: float = 2.0, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """The vector norm (sum |x|^p)^(1/p) of Float elements over the reduced axes, flattened to one vector.

        p = inf is the maximum of |x|, p = -inf the minimum (no elements: `ShapeError`), p = 0 the number of nonzero
        elements. At zero, where norms have a kink, the gradient is zero.

        >>> import phlox as px
        >>> px.tensor([[3.0, 4.0], [0.0, 0.0]]).norm(axis=1).tolist()
        [5.0, 0.0]
        """
        axes = self._axes("norm", axis)
        if not isinstance(p, (int, float)) or math.isnan(p):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RangeError(f"norm: p must be a number or an infinity, got {p!r}; for matrix norms see phlox.linalg")
        return self._apply("norm", self._nonempty("norm", axes) if math.isinf(p) else axes, float(p), keepdims)

    def median(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """The median of Float elements; for an even count, the mean of the two middle elements.

        NaN if any element is NaN. No elements: `ShapeError`. Equal values share the gradient.
        """
        return self._apply("median", self._nonempty("median", self._axes("median", axis)), keepdims)

    def quantile(
        self,
        q: float | Sequence[Any] | np.ndarray[Any, Any],
        axis: Axis = None,
        *,
        method: Between = "linear",
        keepdims: bool = False,
    ) -> Self:
        """The q-quantile of Float elements: the value that a share `q` of them does not exceed.

        Args:
            q: a number in [0, 1], or an array of numbers; the axes of the array come first in the result.
            axis: the axes to reduce; None is all.
            method: the choice where q falls between two elements: `"linear"` interpolates, `"lower"` and `"higher"`
                take one of them, `"nearest"` the nearer one (a tie: the one of even rank), `"midpoint"` their mean.
            keepdims: keep the reduced axes with size one.

        NaN if any element is NaN. Equal values share the gradient. Raises `ShapeError` for no elements, `RangeError` if
        q is out of range.

        >>> import phlox as px
        >>> px.tensor([3.0, 1.0, 2.0, 5.0]).quantile([0.0, 0.5, 0.9]).tolist()
        [1.0, 2.5, 4.400000095367432]
        """
        try:
            shares = np.asarray(q, np.float64)
        except (TypeError, ValueError):
            raise KindError(f"quantile: q must be a number or an array of numbers, got {q!r}") from None
        if not ((shares >= 0.0) & (shares <= 1.0)).all():
            raise RangeError(f"quantile: q must be between 0 and 1, got {q!r}")
        if method not in get_args(Between):
            raise RangeError(f"quantile: method must be one of {', '.join(get_args(Between))}, got {method!r}")
        axes = self._nonempty("quantile", self._axes("quantile", axis))
        if not shares.size:
            raise ShapeError("quantile: q is empty")
        quantiles = self._apply("quantile", axes, tuple(shares.ravel().tolist()), method, keepdims)
        return quantiles if shares.ndim == 1 else quantiles._apply("reshape", (*shares.shape, *quantiles.shape[1:]))

    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> Tensor[Any, Any, Int]:
        """The index of the maximum along an axis, or in the flattened tensor.

        Of several maxima it is the first; if there are NaNs, it is the index of the first NaN.
        """
        return self._arg_extreme("argmax", axis, keepdims)

    def argmin(self, axis: int | None = None, *, keepdims: bool = False) -> Tensor[Any, Any, Int]:
        """The index of the minimum along an axis, or in the flattened tensor.

        Of several minima it is the first; if there are NaNs, it is the index of the first NaN.
        """
        return self._arg_extreme("argmin", axis, keepdims)

    def _arg_extreme(self, name: str, axis: int | None, keepdims: bool) -> Any:
        if axis is None:
            axes = self._nonempty(name, self._axes(name, None))
            indices = self._apply("reshape", (self.size,))._apply_to(Int, name, 0)
        else:
            axes = self._nonempty(name, (self._axis(name, axis),))
            indices = self._apply_to(Int, name, axes[0])
        return indices._apply("expand_dims", axes) if keepdims and axes else indices

    def _nonempty(self, name: str, axes: tuple[int, ...]) -> tuple[int, ...]:
        """The axes; `ShapeError` if one has size zero."""
        shape = self.shape
        if 0 in shape and any(shape[axis] == 0 for axis in axes):
            raise ShapeError(f"{name}: undefined for no elements; a reduced axis of {axes} has size 0 in shape {shape}")
        return axes

    def any(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """Is any element of a Bool tensor true? False for no elements. Other kinds: compare first, `(x > 0).any()`."""
        return self._apply("any", self._axes("any", axis), keepdims)

    def all(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """Are all elements of a Bool tensor true? True for no elements. Other kinds: compare first, `(x > 0).all()`."""
        return self._apply("all", self._axes("all", axis), keepdims)

    def count_nonzero(self, axis: Axis = None, *, keepdims: bool = False) -> Tensor[Any, Any, Int]:
        """The number of elements that are nonzero (NaN is nonzero) or true."""
        axes = self._axes("count_nonzero", axis)
        truth = cast("Tensor[Any, Any, Any]", self).bool()
        return truth._apply_to(Int, "count_nonzero", axes, keepdims)

    # --- scans

    def cumsum(self, axis: int) -> Self:
        """The cumulative sum along an axis."""
        return self._apply("cumsum", self._axis("cumsum", axis))

    def cumprod(self, axis: int) -> Self:
        """The cumulative product along an axis. The gradient is exact even where elements are zero."""
        return self._apply("cumprod", self._axis("cumprod", axis))

    def cummax(self, axis: int) -> Self:
        """The cumulative maximum along an axis; NaN from the first NaN on.

        The gradient goes to the last of equal elements, as in PyTorch.
        """
        return self._apply("cummax", self._axis("cummax", axis))

    def cummin(self, axis: int) -> Self:
        """The cumulative minimum along an axis; NaN from the first NaN on.

        The gradient goes to the last of equal elements, as in PyTorch.
        """
        return self._apply("cummin", self._axis("cummin", axis))

    def logcumsumexp(self, axis: int) -> Self:
        """log(exp(x).cumsum(axis)), without overflow."""
        return self._apply("logcumsumexp", self._axis("logcumsumexp", axis))

    def diff(self, n: int = 1, axis: int = -1) -> Self:
        """The differences of neighbouring elements along an axis, taken `n` times. Each time the axis shrinks by one.

        >>> import phlox as px
        >>> px.tensor([1, 4, 9, 16]).diff().tolist()
        [3, 5, 7]
        """
        axis = self._axis("diff", axis)
        if n < 0:
            raise RangeError(f"diff: n must be an integer of at least 0, got {n}")
        x = self
        for _ in range(min(n, self.shape[axis])):
            size = x.shape[axis]
            ends = [[slice(0, length, 1) for length in x.shape] for _ in range(2)]
            ends[0][axis], ends[1][axis] = slice(min(1, size), size, 1), slice(0, max(size - 1, 0), 1)
            x = x._apply("index", tuple(ends[0]))._apply("sub", x._apply("index", tuple(ends[1])).primitive)
        return x
