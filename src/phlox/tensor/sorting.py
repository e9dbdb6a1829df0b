"""Sorting, searching and counting."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from phlox.backend import Bool, Float, Int
from phlox.backend.tracing.symbolic import less
from phlox.errors import IndexRangeError, KindError, ShapeError, UnsupportedError
from phlox.tensor.base import TensorBase

if TYPE_CHECKING:
    from phlox.tensor.tensor import Tensor


class Sorting(TensorBase):
    """NaN counts as the greatest value, and -0.0 equals 0.0. Sorting is stable."""

    __slots__ = ()

    def sort(self, axis: int = -1, descending: bool = False) -> Self:
        """Sort along an axis, NaN last (first if descending).

        >>> import phlox as px
        >>> px.tensor([3.0, 1.0, 2.0]).sort(descending=True).tolist()
        [3.0, 2.0, 1.0]
        """
        return self._apply("sort", self._axis("sort", axis), bool(descending))

    def argsort(self, axis: int = -1, descending: bool = False) -> Tensor[Any, Any, Int]:
        """The indices that sort an axis. Stable: equal elements keep their order, also if descending.

        >>> import phlox as px
        >>> px.tensor([3, 1, 3]).argsort(descending=True).tolist()
        [0, 2, 1]
        """
        return self._apply_to(Int, "argsort", self._axis("argsort", axis), bool(descending))

    def topk(self, k: int, axis: int = -1, largest: bool = True) -> tuple[Self, Tensor[Any, Any, Int]]:
        """The k largest (or smallest) elements along an axis, sorted, and their indices. Of equal elements, the first.

        Raises `ShapeError` if there are fewer than k elements.

        >>> import phlox as px
        >>> values, indices = px.tensor([1.0, 4.0, 2.0, 4.0]).topk(2)
        >>> values.tolist(), indices.tolist()
        ([4.0, 4.0], [1, 3])
        """
        axis = self._axis("topk", axis)
        try:
            k = index(k)
        except TypeError:
            raise KindError(f"topk: k must be an integer, got {k!r}") from None
        if k < 0 or less(self.shape[axis], k):
            raise ShapeError(f"topk: k = {k} does not fit axis {axis} of a tensor of shape {self.shape}")
        indices = self._apply_to(Int, "argtopk", k, axis, bool(largest))
        return self._apply("take_along_axis", indices.primitive, axis), indices

    def searchsorted(self, values: Self, side: Literal["left", "right"] = "left") -> Tensor[Any, Any, Int]:
        """The indices at which to insert `values` into this tensor, sorted along its last axis, to keep it sorted.

        "left" inserts before equal elements, "right" after them. A vector takes values of any shape. A tensor [..., n]
        takes values [..., m] with the same leading axes, and searches row by row.

        >>> import phlox as px
        >>> px.tensor([1.0, 2.0, 2.0, 5.0]).searchsorted(px.tensor([2.0, 9.0]), side="right").tolist()
        [3, 4]
        """
        if side not in ("left", "right"):
            raise ShapeError(f'searchsorted: side must be "left" or "right", got {side!r}')
        x, values = self._pair("searchsorted", values)
        sorted_shape, shape = x.shape, values.shape
        if len(sorted_shape) == 1:
            flat = values._apply("reshape", (values.size,))
            indices = x._apply_to(Int, "searchsorted", flat.primitive, side == "right")
            return indices if len(shape) == 1 else indices._apply("reshape", shape)
        if not sorted_shape or sorted_shape[:-1] != shape[:-1]:
            raise ShapeError(
                f"searchsorted: values of shape {shape} do not fit sorted rows of shape {sorted_shape}; "
                f"the leading axes must be equal, or the sorted tensor of rank 1"
            )
        return x._apply_to(Int, "searchsorted", values.primitive, side == "right")

    def isin(self, values: Self) -> Tensor[Any, Any, Bool]:
        """Is each element among `values`, a tensor of the same kind and any shape? NaN is not.

        >>> import phlox as px
        >>> px.tensor([1, 5, 3]).isin(px.tensor([3, 1])).tolist()
        [True, False, True]
        """
        x, values = self._pair("isin", values)
        if x.kind is Bool:
            x, values = x._apply_to(Int, "into_int"), values._apply_to(Int, "into_int")
        count = values.size
        if count == 0:
            return x._apply_to(Bool, "not_equal", x.primitive)._apply("and", False)
        ordered = values._apply("reshape", (count,)).sort()
        indices = ordered.searchsorted(x)._apply("minimum", count - 1)
        return ordered._apply("take", indices.primitive, 0)._apply_to(Bool, "equal", x.primitive)

    @overload
    def unique(self) -> Self: ...
    @overload
    def unique(self, *, return_inverse: Literal[True]) -> tuple[Self, Tensor[Any, Any, Int]]: ...
    @overload
    def unique(self, *, return_counts: Literal[True]) -> tuple[Self, Tensor[Any, Any, Int]]: ...
    @overload
    def unique(
        self, *, return_inverse: Literal[True], return_counts: Literal[True]
    ) -> tuple[Self, Tensor[Any, Any, Int], Tensor[Any, Any, Int]]: ...
    def unique(self, *, return_inverse: bool = False, return_counts: bool = False) -> Any:
        """The distinct elements in ascending order; all NaNs count as one. The gradient goes to the first of equals.

        `return_inverse` adds the index of each element of x among them, `return_counts` their numbers of occurrences.
        The size depends on the values, so this raises `UnsupportedError` during tracing.

        >>> import phlox as px
        >>> values, counts = px.tensor([3, 1, 3, 3]).unique(return_counts=True)
        >>> values.tolist(), counts.tolist()
        ([1, 3], [1, 3])
        """
        self._check_not_traced("unique", "sort the elements and compare neighbours, or count with zeros.at[x].add(1)")
        flat = self._apply("reshape", (self.size,))
        keys = flat._apply_to(Int, "into_int") if self.kind is Bool else flat
        distinct = keys._apply_to(Int, "unique")
        first, inverse, counts = (distinct._with(part) for part in distinct.primitive)
        results: list[Any] = [flat._apply("take", first.primitive, 0)]
        results += [inverse._apply("reshape", self.shape)] if return_inverse else []
        results += [counts] if return_counts else []
        return tuple(results) if len(results) > 1 else results[0]

    @overload
    def bincount(self, weights: None = None, minlength: int = 0) -> Tensor[Any, Any, Int]: ...
    @overload
    def bincount(self, weights: Tensor[Any, Any, Float], minlength: int = 0) -> Tensor[Any, Any, Float]: ...
    def bincount(self, weights: Tensor[Any, Any, Float] | None = None, minlength: int = 0) -> Any:
        """Count the occurrences of 0, 1, 2, ... up to the largest element: an Int vector of at least `minlength`.

        With Float `weights` of the same shape, sum the weights of each value instead. Raises `IndexRangeError` for a
        negative element. The size depends on the values, so this raises `UnsupportedError` during tracing.

        >>> import phlox as px
        >>> px.tensor([1, 3, 1]).bincount().tolist()
        [0, 2, 0, 1]
        """
        if self.kind is not Int or self.ndim != 1:
            raise KindError(f"bincount takes Int tensors of rank 1, got {self.kind.__name__} of shape {self.shape}")
        self._check_not_traced("bincount", "give the size n yourself: phlox.zeros((n,)).at[x].add(1.0)")
        size = self.size
        greatest = int(self.backend.to_host(self.primitive).max()) if size else -1
        length = max(minlength, greatest + 1)
        try:
            self.backend.check_indices(self.primitive, length, from_end=False)
        except IndexRangeError as error:
            raise IndexRangeError(f"bincount: {error}") from None
        backend, device = self.backend, self.device
        if weights is None:
            totals = self._with(backend.int_full((length,), 0, device))
            updates: Any = self._with(backend.int_full((size,), 1, device))
        else:
            if weights.kind is not Float or weights.shape != self.shape:
                raise ShapeError(
                    f"bincount: the weights must be Float of shape {self.shape}, "
                    f"got {weights.kind.__name__} of shape {weights.shape}"
                )
            totals, updates = weights._with(backend.float_full((length,), 0.0, device)), weights
        return totals._apply("scatter", self.primitive, updates.primitive, "add")

    def _pair(self, name: str, values: Self) -> tuple[Self, Self]:
        """Promote this tensor and another of its kind to one backend."""
        if not isinstance(values, TensorBase):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise KindError(f"{name}: values must be a {self.kind.__name__} tensor, got {type(values).__name__}")
        x = self._promoted_with(values)
        return x, x._with(x._operand(name, values))

    def _check_not_traced(self, name: str, remedy: str) -> None:
        if self.backend.is_traced(self.primitive):
            raise UnsupportedError(
                f"{name}: the shape of the result depends on the values of a tensor of shape {self.shape}, which are "
                f"unknown during tracing; {remedy}"
            )
