"""What a source is: rows by their numbers, which people write in many ways."""

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
        if type(rows) is np.ndarray and rows.dtype.kind == "i" and rows.ndim == 1:  # as loaders ask
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


def row_numbers(rows: Any, length: int, what: str) -> Rows:
    """Row numbers as int64, of one axis or none: as they are given, or those where a mask of all rows is True.

    Raises:
        DataError: they are no whole numbers, or a mask has not one truth value for each row.
    """
    try:
        found = np.asarray(rows)
    except ValueError:  # lists of different lengths
        found = np.array(None, object)
    if found.dtype == object and any(isinstance(one, (bool, np.bool_)) for one in found.flat):
        gaps = [place for place, one in enumerate(found.flat) if not isinstance(one, (bool, np.bool_))]
        if gaps:
            raise DataError(f"{what}: the mask has no truth value in row {gaps[0]}; fill it: mask.fillna(False)")
        found = found.astype(bool)
    if found.dtype == bool:
        if found.shape != (length,):
            raise DataError(
                f"{what}: the mask has shape {found.shape}; give a truth value for each of the {length} rows"
            )
        return np.flatnonzero(found)
    if found.ndim > 1 or (found.size and found.dtype.kind not in "iu"):
        shown = repr(rows)
        raise DataError(
            f"{what}: {shown if len(shown) < 60 else f'{found.dtype} of shape {found.shape}'} is no number of a row; "
            "give a number, a slice, a list of numbers, or a mask of all rows"
        )
    return found.astype(np.int64)
