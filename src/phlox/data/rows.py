"""What a source is: rows by their numbers; and row numbers as an array, from any kind of index."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Protocol, runtime_checkable

import numpy as np

from phlox.data.order import Rows
from phlox.data.structure import mapped
from phlox.errors import DataError


@runtime_checkable
class Source(Protocol):
    """The protocol of sources: rows by number, with `len` and `[rows]`."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any:
        """The rows with these numbers, `int64 [n]`: a batch of n rows."""
        ...


class NoSuchRowError(DataError, IndexError):
    """There is no such row; also an `IndexError`, so that a `for` loop over a source ends after the last row."""


class RowSource:
    """The base of sources that take any index. Implement `take(rows)`, for an array of row numbers, and `len`.

    `source[3]` is one row, without the batch axis; `source[-2:]`, `source[[5, 1]]` and a mask are batches.

    Raises:
        DataError: there is no such row, or the index is invalid.
    """

    def __getitem__(self, rows: Any, /) -> Any:
        if type(rows) is np.ndarray and rows.dtype.kind == "i" and rows.ndim == 1:  # a loader's index
            return self.take(rows)
        if isinstance(rows, slice):
            return self.take(np.arange(len(self))[rows])
        name = type(self).__name__
        numbers = row_numbers(rows, len(self), name)
        wrong = numbers[(numbers < -len(self)) | (numbers >= len(self))]
        if wrong.size:
            raise NoSuchRowError(f"{name}: there is no row {wrong.flat[0]}; it has {len(self)} rows")
        chosen = np.atleast_1d(numbers) % len(self)
        batch = self.take(chosen)
        return batch if numbers.ndim else mapped(itemgetter(0), batch)

    def __len__(self) -> int:
        raise NotImplementedError

    def take(self, rows: Rows, /) -> Any:
        """The batch of the rows with these numbers, `int64 [n]`, counted from 0."""
        raise NotImplementedError


def row_numbers(rows: Any, length: int, name: str) -> Rows:
    """Row numbers as int64, with one axis or none: the given numbers, or the rows at which a mask is True.

    Raises:
        DataError: they are no whole numbers, or a mask does not have one truth value for each row.
    """
    try:
        array = np.asarray(rows)
    except ValueError:  # lists of different lengths
        array = np.array(None, object)
    if array.dtype == object and any(isinstance(value, (bool, np.bool_)) for value in array.flat):
        gaps = [row for row, value in enumerate(array.flat) if not isinstance(value, (bool, np.bool_))]
        if gaps:
            raise DataError(f"{name}: the mask has no truth value in row {gaps[0]}; fill it: mask.fillna(False)")
        array = array.astype(bool)
    if array.dtype == bool:
        if array.shape != (length,):
            raise DataError(
                f"{name}: the mask has shape {array.shape}; give a truth value for each of the {length} rows"
            )
        return np.flatnonzero(array)
    if array.ndim > 1 or (array.size and array.dtype.kind not in "iu"):
        shown = repr(rows)
        raise DataError(
            f"{name}: {shown if len(shown) < 60 else f'{array.dtype} of shape {array.shape}'} is no number of a row; "
            "give a number, a slice, a list of numbers, or a mask of all rows"
        )
    return array.astype(np.int64)
