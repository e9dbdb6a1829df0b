"""The keys and values of a batch whose rows come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from phlox.backend import Int
from phlox.serve.steps import Columns
from phlox.tensor import Tensor, tensor
from phlox.tensor.functional.operands import compute
from phlox.transform import compile as compiled

if TYPE_CHECKING:
    from phlox.models.causal import CausalModel

BLOCK = 64
"""The smallest capacity: with fewer tokens, nothing is saved."""


def round_up(size: int, least: int, most: int) -> int:
    """The next power of two, at least `least` and at most `most`: few sizes, so few programs and few copies."""
    return min(most, max(least, 1 << (size - 1).bit_length()))


class Pool:
    """Columns of keys and values for `rows` texts of up to `capacity` tokens; both change with what is needed.

    The first rows are those in use: when a row becomes free, the last one takes its place.
    """

    def __init__(self, model: CausalModel[Any, Any], slots: int, context: int, is_compiled: bool) -> None:
        self.model, self.slots, self.context, self.is_compiled = model, slots, context, is_compiled
        self.columns: Columns = ()
        self.rows: int = 0
        self.capacity: int = 0

    def fresh(self, rows: int, capacity: int) -> Columns:
        """Empty columns."""
        return tuple((layer.key, layer.value) for layer in self.model.init_cache(rows, capacity))

    def copied(self, columns: Columns, n: int, capacity: int) -> Columns:
        """Columns for a single text of up to `capacity` tokens, with copies of the first n of `columns`."""
        new = self.fresh(1, capacity)
        if not n:
            return new
        first = tensor(0, device=new[0][0].device)
        return tuple(
            (compute("write_from", key, old_key[:, :, :n], first, 2, True),
             compute("write_from", value, old_value[:, :, :n], first, 2, True))
            for (key, value), (old_key, old_value) in zip(new, columns, strict=True)
        )  # fmt: skip

    def fit(self, rows: int, capacity: int) -> None:
        """Have space for so many rows and tokens. Space is given back when a quarter of it would be enough."""
        rows, capacity = round_up(rows, 1, self.slots), round_up(capacity, BLOCK, self.context)
        rows = self.rows if rows <= self.rows < 4 * rows else rows
        capacity = self.capacity if capacity <= self.capacity < 4 * capacity else capacity
        if (rows, capacity) == (self.rows, self.capacity):
            return
        self.columns = _resized(self.columns, rows, capacity) if self.columns else self.fresh(rows, capacity)
        self.rows, self.capacity = rows, capacity

    def clear(self) -> None:
        """Give all space back."""
        self.columns, self.rows, self.capacity = (), 0, 0

    @property
    def is_writable(self) -> bool:
        """Are its arrays written to in place, through views of them, too?"""
        key = self.columns[0][0]
        return key.backend.is_plain(key.primitive)

    def in_use(self, rows: int) -> Columns:
        """The columns of at least the first rows, for a step: without a compiled program, of no others."""
        return _views(self.columns, slice(rows)) if self.is_writable and not self.is_compiled else self.columns

    def keep(self, columns: Columns) -> None:
        """The columns after a step: new arrays, unless it wrote to views of the old ones."""
        if columns[0][0].shape[0] == self.rows:
            self.columns = columns

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
