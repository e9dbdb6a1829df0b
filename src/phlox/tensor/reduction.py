"""Reductions over one, several or all axes, and scans along one."""

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

    def var_mean(self, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False) -> tuple[Self, Self]:
        """`var` and `mean` together."""
        return self.var(axis, correction=correction, keepdims=keepdims), self.mean(axis, keepdims=keepdims)

    def max(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """The greatest value; NaN wins. Of nothing: `ShapeError`. Equal values share the gradient."""
        return self._apply("max", self._filled("max", self._axes("max", axis)), keepdims)

    def min(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """The least value; NaN wins. Of nothing: `ShapeError`. Equal values share the gradient."""
        return self._apply("min", self._filled("min", self._axes("min", axis)), keepdims)

    def logsumexp(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """log(sum(exp(x))), without overflow. Of nothing: `ShapeError`."""
        return self._apply("logsumexp", self._filled("logsumexp", self._axes("logsumexp", axis)), keepdims)

    def norm(self, p: float = 2.0, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """The vector norm (sum |x|^p)^(1/p) of Float elements, as of one vector of all that is reduced.

        For p = inf it is the greatest |x|, for -inf the least (of nothing: `ShapeError`), for 0 the number of elements
        that are not zero. At zero, where norms have a kink, the gradient is zero.

        >>> import phlox as px
        >>> px.tensor([[3.0, 4.0], [0.0, 0.0]]).norm(axis=1).tolist()
        [5.0, 0.0]
        """
        axes = self._axes("norm", axis)
        if not isinstance(p, (int, float)) or math.isnan(p):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RangeError(
                f"norm: p is a number or an infinity, got {p!r}; for the norms of matrices see phlox.linalg"
            )
        return self._apply("norm", self._filled("norm", axes) if math.isinf(p) else axes, float(p), keepdims)

    def median(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """The middle of the sorted Float elements; of an even number of them, the mean of the middle two.

        NaN where there is one; of nothing: `ShapeError`. Equal values share the gradient.
        """
        return self._apply("median", self._filled("median", self._axes("median", axis)), keepdims)

    def quantile(
        self,
        q: float | Sequence[Any] | np.ndarray[Any, Any],
        axis: Axis = None,
        *,
        method: Between = "linear",
        keepdims: bool = False,
    ) -> Self:
        """The value that a share `q` of the Float elements does not exceed.

        Args:
            q: a number in [0, 1], or an array of them, whose axes then come first in the result.
            method: what to take where q falls between two elements: `"linear"` interpolates, `"lower"` and `"higher"`
                take either, `"nearest"` the nearer one (of two equally near the one of even rank), `"midpoint"` their
                mean.

        NaN where there is one; of nothing: `ShapeError`; q out of range: `RangeError`. Equal values share the gradient.

        >>> import phlox as px
        >>> px.tensor([3.0, 1.0, 2.0, 5.0]).quantile([0.0, 0.5, 0.9]).tolist()
        [1.0, 2.5, 4.400000095367432]
        """
        try:
            shares = np.asarray(q, np.float64)
        except (TypeError, ValueError):
            raise KindError(f"quantile: q is a number or an array of numbers, got {q!r}") from None
        if not ((shares >= 0.0) & (shares <= 1.0)).all():
            raise RangeError(f"quantile: q lies between 0 and 1, got {q!r}")
        if method not in get_args(Between):
            raise RangeError(f"quantile: the method is one of {', '.join(get_args(Between))}, got {method!r}")
        axes = self._filled("quantile", self._axes("quantile", axis))
        if not shares.size:
            raise ShapeError("quantile: q is empty")
        found = self._apply("quantile", axes, tuple(shares.ravel().tolist()), method, keepdims)
        return found if shares.ndim == 1 else found._apply("reshape", (*shares.shape, *found.shape[1:]))

    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> Tensor[Any, Any, Int]:
        """The place of the greatest value along an axis, or in reading order; the first of equals, a NaN before all."""
        return self._arg("argmax", axis, keepdims)

    def argmin(self, axis: int | None = None, *, keepdims: bool = False) -> Tensor[Any, Any, Int]:
        """The place of the least value along an axis, or in reading order; the first of equals, a NaN before all."""
        return self._arg("argmin", axis, keepdims)

    def _arg(self, name: str, axis: int | None, keepdims: bool) -> Any:
        if axis is None:
            axes = self._filled(name, self._axes(name, None))
            found = self._apply("reshape", (self.size,))._apply_to(Int, name, 0)
        else:
            axes = self._filled(name, (self._axis(name, axis),))
            found = self._apply_to(Int, name, axes[0])
        return found._apply("expand_dims", axes) if keepdims and axes else found

    def _filled(self, name: str, axes: tuple[int, ...]) -> tuple[int, ...]:
        """The axes, none of which may be of size zero."""
        shape = self.shape
        if 0 in shape and any(shape[axis] == 0 for axis in axes):
            raise ShapeError(f"{name}: of nothing there is none; the reduced axes {axes} of shape {shape} have size 0")
        return axes

    def any(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """Is any element of a Bool tensor true? Of nothing: false. Others say first what is true: `(x > 0).any()`."""
        return self._apply("any", self._axes("any", axis), keepdims)

    def all(self, axis: Axis = None, *, keepdims: bool = False) -> Self:
        """Is every element of a Bool tensor true? Of nothing: true. Others say first what is true: `(x > 0).all()`."""
        return self._apply("all", self._axes("all", axis), keepdims)

    def count_nonzero(self, axis: Axis = None, *, keepdims: bool = False) -> Tensor[Any, Any, Int]:
        """How many elements are not zero (NaN is not), or are true."""
        axes = self._axes("count_nonzero", axis)
        truth = cast("Tensor[Any, Any, Any]", self).bool()
        return truth._apply_to(Int, "count_nonzero", axes, keepdims)

    # --- scans

    def cumsum(self, axis: int) -> Self:
        """The sum of each element and all before it along an axis."""
        return self._apply("cumsum", self._axis("cumsum", axis))

    def cumprod(self, axis: int) -> Self:
        """The product of each element and all before it along an axis; the gradient is exact beside zeros, too."""
        return self._apply("cumprod", self._axis("cumprod", axis))

    def cummax(self, axis: int) -> Self:
        """The greatest of each element and all before it along an axis; NaN wins.

        The gradient goes to the latest of equals, as PyTorch has it.
        """
        return self._apply("cummax", self._axis("cummax", axis))

    def cummin(self, axis: int) -> Self:
        """The least of each element and all before it along an axis; NaN wins.

        The gradient goes to the latest of equals, as PyTorch has it.
        """
        return self._apply("cummin", self._axis("cummin", axis))

    def logcumsumexp(self, axis: int) -> Self:
        """log(exp(x).cumsum(axis)), without overflow."""
        return self._apply("logcumsumexp", self._axis("logcumsumexp", axis))

    def diff(self, n: int = 1, axis: int = -1) -> Self:
        """The differences of neighbours along an axis, which gets shorter by one; `n` times over.

        >>> import phlox as px
        >>> px.tensor([1, 4, 9, 16]).diff().tolist()
        [3, 5, 7]
        """
        place = self._axis("diff", axis)
        if n < 0:
            raise RangeError(f"diff: it is taken a number of times, got {n}")
        x = self
        for _ in range(min(n, self.shape[place])):
            size = x.shape[place]
            ends = [[slice(0, one, 1) for one in x.shape] for _ in range(2)]
            ends[0][place], ends[1][place] = slice(min(1, size), size, 1), slice(0, max(size - 1, 0), 1)
            x = x._apply("index", tuple(ends[0]))._apply("sub", x._apply("index", tuple(ends[1])).primitive)
        return x
