"""Indexing: gather and scatter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from phlox.backend import Bool, Int
from phlox.errors import IndexRangeError, KindError, ShapeError
from phlox.tensor.at import At, broadcast_value
from phlox.tensor.backend_promotion import is_below
from phlox.tensor.base import Number, TensorBase
from phlox.tensor.index_parsing import Entry, flatnonzero, parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from phlox.tensor.tensor import Tensor


class Indexing(TensorBase):
    """Indexing never changes a tensor: a write returns a new one.

    Negative indices count from the end. An index out of range raises `IndexRangeError`. A compiled program cannot
    raise: there such a read gives NaN (or the smallest integer), and such a write is dropped.
    """

    __slots__ = ()

    # --- reading

    def take(self, indices: Tensor[Any, Any, Int], axis: int = 0) -> Self:
        """The slices of x at `indices` along an axis. The axes of `indices` replace that axis."""
        self = self._promoted_with(indices)
        return self._apply("take", self._indices("take", indices), self._axis("take", axis))

    def take_along_axis(self, indices: Tensor[Any, Any, Int], axis: int = -1) -> Self:
        """The elements of x at `indices` along an axis; `indices` has the shape of x in the other axes."""
        self = self._promoted_with(indices)
        axis = self._axis("take_along_axis", axis)
        shape, index_shape = self.shape, indices.shape
        if len(shape) != len(index_shape) or shape != (*index_shape[:axis], shape[axis], *index_shape[axis + 1 :]):
            raise ShapeError(
                f"take_along_axis: indices of shape {indices.shape} do not fit a tensor of shape {self.shape}; "
                f"they must be equal in every axis except {axis}"
            )
        return self._apply("take_along_axis", self._indices("take_along_axis", indices), axis)

    def gather(self, axis: int, indices: Tensor[Any, Any, Int]) -> Self:
        """Like `take_along_axis`, but `indices` may be shorter than x in the other axes, as in PyTorch.

        For axis 0 of a matrix, result[i, j] = x[indices[i, j], j]. The result has the shape of `indices`.

        >>> import phlox as px
        >>> px.tensor([[1.0, 2.0], [3.0, 4.0]]).gather(1, px.tensor([[1, 1, 0]])).tolist()
        [[2.0, 2.0, 1.0]]
        """
        self = self._promoted_with(indices)
        axis = self._axis("gather", axis)
        self._check_index_shape("gather", indices.shape, axis)
        part = tuple(
            slice(0, size if dim == axis else n, 1)
            for dim, (size, n) in enumerate(zip(self.shape, indices.shape, strict=True))
        )
        block = self._apply("index", part)
        return block._apply("take_along_axis", self._indices("gather", indices), axis)

    def masked_select(self, mask: Tensor[Any, Any, Bool]) -> Self:
        """The elements where a mask is true, as a vector in row-major order. The mask broadcasts.

        The size depends on the mask's values, so this raises `UnsupportedError` during tracing; use `where` or
        `masked_fill` there.
        """
        self = self._promoted_with(mask)
        return self[self._mask("masked_select", mask)]

    def nonzero(self) -> tuple[Tensor[Any, Any, Int], ...]:
        """The indices of the nonzero (or true) elements in row-major order: one tensor per axis.

        The size depends on the values, so this raises `UnsupportedError` during tracing.

        >>> import phlox as px
        >>> [i.tolist() for i in px.tensor([[0, 7], [5, 0]]).nonzero()]
        [[0, 1], [1, 0]]
        """
        if not self.shape:
            raise ShapeError("nonzero: a tensor of rank 0 has no axis to index")
        mask = self if self.kind is Bool else self._apply_to(Bool, "into_bool")
        remaining = flatnonzero("nonzero", mask, "use phlox.where(x != 0, ..., ...), or compare and sum to count")
        columns: list[Any] = []
        for size in reversed(self.shape):
            columns.append(remaining % size if remaining.size else remaining)
            remaining = remaining // size if remaining.size else remaining
        return tuple(reversed(columns))

    def argwhere(self) -> Tensor[Any, Any, Int]:
        """The indices of the nonzero (or true) elements: [elements, rank]; see `nonzero`.

        >>> import phlox as px
        >>> px.tensor([[0, 7], [5, 0]]).argwhere().tolist()
        [[0, 1], [1, 0]]
        """
        columns = [column._apply("expand_dims", (1,)) for column in self.nonzero()]
        return columns[0]._with(self.backend.concat([column.primitive for column in columns], 1))

    def __len__(self) -> int:
        if not self.shape:
            raise ShapeError("a tensor of rank 0 has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Entry | tuple[Entry, ...]) -> Self:
        """Index with integers, slices, None, `...`, Int tensors and Bool masks, in any combination, as in NumPy.

        Lists and NumPy arrays of integers or booleans count as tensors. Int tensors broadcast together. Their axes
        replace the axes that they index, or come first if those are not adjacent. An index out of range raises
        `IndexRangeError`. The size of a masked read depends on the mask's values, so it raises `UnsupportedError`
        during tracing.

        >>> import phlox as px
        >>> x = px.arange(12).reshape(3, 4)
        >>> x[[0, 2], 1:3].tolist()
        [[1, 2], [9, 10]]
        >>> x[x > 9].tolist()
        [10, 11]
        """
        if key.__class__ is int:  # the fast path for rows, which loops read
            size, *other_sizes = self.shape or (0,)
            if -size <= key < size:  # pyright: ignore[reportOperatorIssue]
                return self._apply("index", (key % size, *(slice(0, n, 1) for n in other_sizes)))  # pyright: ignore[reportOperatorIssue]
        x, parsed = parse(self, key)
        return parsed.read(x)

    # --- writing

    @property
    def at(self) -> At[Self]:
        """Functional updates: `x.at[key]` has `.set(v)`, `.add(v)`, `.sub(v)`, `.mul(v)`, `.min(v)` and `.max(v)`.

        Each returns a new tensor. `key` is any index of x, and v broadcasts to the shape of `x[key]`. Where the key
        repeats an element, `set` keeps the last value and the others combine all. All have exact derivatives.

        >>> import phlox as px
        >>> px.zeros((4,)).at[[1, 3, 1]].add(px.tensor([1.0, 2.0, 3.0])).tolist()
        [0.0, 4.0, 0.0, 2.0]
        """
        return At(self)

    def scatter(
        self,
        axis: int,
        indices: Tensor[Any, Any, Int],
        updates: Self | Number,
        mode: Literal["set", "add", "mul", "min", "max"] = "set",
    ) -> Self:
        """Write `updates`, of the shape of `indices`, where `gather` would read; returns a new tensor.

        For axis 0 of a matrix, result[indices[i, j], j] is set to updates[i, j], or combined with it. Where indices
        repeat, "set" keeps the last update and the other modes combine all.

        >>> import phlox as px
        >>> px.zeros((2, 3)).scatter(1, px.tensor([[2], [0]]), 5.0).tolist()
        [[0.0, 0.0, 5.0], [5.0, 0.0, 0.0]]
        """
        self = self._promoted_with(indices)._promoted_with(updates)
        axis = self._axis("scatter", axis)
        shape = indices.shape
        self._check_index_shape("scatter", shape, axis)
        updates = broadcast_value(self, "scatter", updates, shape)
        if mode not in ("set", "add", "mul", "min", "max") or (self.kind is Bool and mode != "set"):
            raise KindError(f"scatter: {self.kind.__name__} tensors have no mode {mode!r}")
        backend, native = self.backend, self._indices("scatter", indices)
        try:
            backend.check_indices(native, self.shape[axis], from_end=True)
        except IndexRangeError as error:
            raise IndexRangeError(f"scatter: {error}, axis {axis} of shape {self.shape}") from None
        backend.check_scalar(self.size, Int)
        positions = backend.reshape(backend.int_places_along(native, axis, self.shape), (indices.size,))
        flat = updates._apply("reshape", (indices.size,)).primitive
        result = self._apply("reshape", (self.size,))._apply("scatter", positions, flat, mode)
        return result._apply("reshape", self.shape)

    def masked_fill(self, mask: Tensor[Any, Any, Bool], value: Self | Number) -> Self:
        """Replace elements by `value` where a mask is true. The value (a scalar or a tensor) and the mask broadcast.

        The gradient of replaced elements is zero, even where they are NaN.
        """
        self = self._promoted_with(mask)._promoted_with(value)
        mask = self._mask("masked_fill", mask)
        operand = self._operand("masked_fill", value)
        if operand is NotImplemented or isinstance(value, TensorBase):
            operand = broadcast_value(self, "masked_fill", value, self.shape).primitive
        return self._with(self.backend.where(mask.primitive, operand, self.primitive))

    # --- checks

    def _indices(self, name: str, indices: TensorBase) -> Any:
        if not isinstance(indices, TensorBase):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise KindError(f"{name}: indices must be an Int tensor, got {type(indices).__name__}")
        is_compatible = indices.backend is self.backend or is_below(indices.backend, self.backend)
        if indices.kind is not Int or not is_compatible:
            raise KindError(
                f"{name}: indices must be an Int tensor on {self.backend!r}, "
                f"got {indices.kind.__name__} on {indices.backend!r}"
            )
        return indices.primitive

    def _mask(self, name: str, mask: Tensor[Any, Any, Bool]) -> Tensor[Any, Any, Bool]:
        """A mask, broadcast to this tensor's shape."""
        if not isinstance(mask, TensorBase):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise KindError(f"{name}: the mask must be a Bool tensor, got {type(mask).__name__}")
        if mask.kind is not Bool or not (mask.backend is self.backend or is_below(mask.backend, self.backend)):
            raise KindError(
                f"{name}: the mask must be a Bool tensor on {self.backend!r}, "
                f"got {mask.kind.__name__} on {mask.backend!r}"
            )
        return mask if mask.shape == self.shape else mask.broadcast_to(self.shape)

    def _check_index_shape(self, name: str, indices: tuple[int, ...], longer_axis: int) -> None:
        shape = self.shape
        rank = len(shape)
        if len(indices) != rank or any(indices[axis] > shape[axis] for axis in range(rank) if axis != longer_axis):
            raise ShapeError(
                f"{name}: indices of shape {indices} do not fit a tensor of shape {shape}; "
                f"they must have the same rank, and only axis {longer_axis} may be longer"
            )
