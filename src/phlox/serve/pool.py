"""The keys and values of a batch whose rows come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phlox.backend import Int
from phlox.models.generation.decoding import round_up
from phlox.serve.steps import Columns
from phlox.tensor import Tensor, tensor
from phlox.tensor.functional.operands import compute
from phlox.transform import compile as compiled

if TYPE_CHECKING:
    from phlox.models.causal import CausalModel


class Pool:
    """Columns of keys and values for `rows` texts of up to `capacity` tokens; both change with what is needed.

    The first rows are those in use: when a row becomes free, the last one takes its place.
    """

    def __init__(self, model: CausalModel[Any, Any], slots: int, context: int, is_compiled: bool) -> None:
        self.model, self.slots, self.context, self.is_compiled = model, slots, context, is_compiled
        self.columns: Columns = ()
        self.rows: int = 0
        self.capacity: int = 0
        key, _ = self.fresh(1, 1)[0]
        self.is_writable: bool = key.backend.is_plain(key.primitive)
        """Are its arrays written to in place, through views of them, too?"""

    def fresh(self, rows: int, capacity: int) -> Columns:
        """Empty columns."""
        return tuple((layer.key, layer.value) for layer in self.model.init_cache(rows, capacity))

    def fit(self, rows: int, capacity: int) -> None:
        """Have space for so many rows and tokens. Space is given back when a quarter of it would be enough."""
        rows, capacity = round_up(rows, self.slots, 1), round_up(capacity, self.context)
        rows = self.rows if rows <= self.rows < 4 * rows else rows
        capacity = self.capacity if capacity <= self.capacity < 4 * capacity else capacity
        if (rows, capacity) == (self.rows, self.capacity):
            return
        self.columns = _resized(self.columns, rows, capacity) if self.columns else self.fresh(rows, capacity)
        self.rows, self.capacity = rows, capacity

    def clear(self) -> None:
        """Give all space back."""
        self.columns, self.rows, self.capacity = (), 0, 0

    def in_use(self, columns: Columns, rows: int, n: int) -> Columns:
        """Of these columns the first of the first rows, for a step that needs no others; a program takes all."""
        return _views(columns, slice(rows), n) if self._writes_to_views else columns

    def kept(self, old: Columns, new: Columns) -> Columns:
        """The columns after a step: new arrays, unless it wrote to views of the old ones."""
        return old if self._writes_to_views else new

    @property
    def _writes_to_views(self) -> bool:
        return self.is_writable and not self.is_compiled

    def insert(self, row: int, columns: Columns) -> None:
        """Write a single text into a row. The rest of the row becomes zero: an earlier text may have left NaN there."""
        index = tensor(row, device=columns[0][0].device)
        insert = _insert if self.is_writable else _compiled_insert
        self.columns = insert(self.columns, _resized(columns, 1, self.capacity), index)

    def move(self, source: int, target: int) -> None:
        """Copy a row to another row."""
        if source == target:
            return
        if self.is_writable:
            self.insert(target, self.row(source, self.capacity))
        else:
            device = self.columns[0][0].device
            self.columns = _compiled_move(self.columns, tensor([source], device=device), tensor(target, device=device))

    def row(self, row: int, n: int) -> Columns:
        """The first n columns of a row, as those of a single text; a view if the arrays are writable."""
        return _views(self.columns, slice(row, row + 1), n)


def _views(columns: Columns, rows: slice, n: int | None = None) -> Columns:
    return tuple((key[rows, :, :n], value[rows, :, :n]) for key, value in columns)


def _resized(columns: Columns, rows: int, capacity: int) -> Columns:
    def resized(x: Tensor) -> Tensor:
        x = x[:rows, :, :capacity]
        return x.pad(((0, rows - x.shape[0]), (0, 0), (0, capacity - x.shape[2]), (0, 0)))

    return tuple((resized(key), resized(value)) for key, value in columns)


def _insert(columns: Columns, new: Columns, row: Tensor[Any, Any, Int]) -> Columns:
    return tuple(
        (compute("write_from", key, new_key, row, 0, True), compute("write_from", value, new_value, row, 0, True))
        for (key, value), (new_key, new_value) in zip(columns, new, strict=True)
    )


def _move(columns: Columns, source: Tensor[Any, Any, Int], target: Tensor[Any, Any, Int]) -> Columns:
    return _insert(columns, tuple((key.take(source), value.take(source)) for key, value in columns), target)


_compiled_insert = compiled(_insert, donate=("columns",))
_compiled_move = compiled(_move, donate=("columns",))
