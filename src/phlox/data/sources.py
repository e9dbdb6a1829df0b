"""Sources: objects with a number of rows, which can be read by their numbers.

`as_source` makes one of whatever a user has. A source is anything with `len(source)` and `source[rows]`, where `rows`
is an array of row numbers and the result a batch: arrays in any nesting, `[len(rows), ...]`.
"""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from collections import UserList, deque
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import accumulate
from numbers import Real
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from phlox.data.arrays import Arrays, has_rows, is_container, is_in_memory, is_read_on_demand, load_arrays
from phlox.data.frames import columns_of, is_column, is_table
from phlox.data.order import Rows, check_number, classes_of, key_of, permute
from phlox.data.rows import RowSource, Source, row_numbers
from phlox.data.structure import children, copy_views, host_array, is_array, mapped, stack, with_parts
from phlox.errors import DataError


class RowByRow(RowSource):
    """A source of batches from single rows, `rows[17]`: it reads each row alone, and stacks them.

    It is for lists, PyTorch's map-style datasets, and everything else that takes one number at a time.

    >>> RowByRow([(1.0, "a"), (2.0, "b")])[np.array([1, 0])]
    (array([2., 1.]), ['b', 'a'])
    """

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Rows, /) -> Any:
        return stack(self.list_rows(rows))

    def list_rows(self, rows: Rows) -> list[Any]:
        """The rows, one by one."""
        numbers = [int(row) for row in rows]
        read_many = getattr(self.rows, "__getitems__", None)
        values = [self.rows[number] for number in numbers] if read_many is None else read_many(numbers)
        return [_to_numpy(row) for row in values]


def list_rows(source: Any, rows: Rows) -> list[Any]:
    """The rows of a source as a list, which the caller may write to; those of a list of rows may differ in shape."""
    if isinstance(source, RowByRow):
        return [mapped(_copy_leaf, row) for row in source.list_rows(rows)]
    if isinstance(source, Subset):
        return list_rows(source.source, source.rows[rows])
    if isinstance(source, Concat):
        return [item for row in rows for item in list_rows(*source.located(row))]
    batch = copy_views(source[rows])
    return [mapped(itemgetter(i), batch) for i in range(len(rows))]


def _copy_leaf(leaf: Any) -> Any:
    return copy(cast("Any", leaf)) if isinstance(leaf, (np.ndarray, list)) else leaf


def _to_numpy(row: Any) -> Any:
    """A row with NumPy arrays in place of tensors and of lists of numbers."""
    parts = children(row)
    if parts is not None:
        return with_parts(row, [_to_numpy(part) for _, part in parts])
    if isinstance(row, list):
        items = cast("list[Any]", row)
        return items if any(isinstance(x, str) for x in items) else np.asarray(items)
    array = host_array(row)
    return row if array is None else array


class Columns(RowSource):
    """A source whose columns are read by row numbers together: a Hugging Face data set, or an Arrow table."""

    def __init__(self, data: Any, take: Callable[[Any, list[int]], Mapping[str, Any]]) -> None:
        self.data, self._take = data, take

    def __len__(self) -> int:
        return len(self.data)

    def take(self, rows: Rows, /) -> Any:
        columns: Any = self._take(self.data, [int(row) for row in rows])
        if is_table(columns):
            return columns_of(columns)
        return {str(name): _column(values) for name, values in columns.items()}


def _column(values: Any) -> Any:
    """A column of a batch: an array if its rows have one shape, otherwise a list."""
    array = host_array(values)
    if array is not None:
        return array
    rows = list(values)
    if any(isinstance(x, (str, bytes)) or x is None for x in rows):
        return rows
    try:
        array = np.asarray(rows)
    except ValueError:  # rows of different lengths
        return rows
    return rows if array.dtype == object else array


def as_source(data: Any) -> Source:
    """Make a source from arrays, rows, a file, a folder of images or a data set of another library.

    | `data` | a batch is |
    |---|---|
    | arrays (NumPy, memory maps, tensors) in any nesting | the same nesting |
    | a path to `.npy`, `.npz`, `.csv`, `.parquet` | an array; dicts of the arrays or columns |
    | a table of pandas, polars or Arrow | a dict of its columns, see `columns_of` |
    | a path to a folder of images | `{"image": ..., "label": ...}`, see `ImageFolder` |
    | a list of rows | the rows, stacked |
    | a Hugging Face `datasets.Dataset` | a dict of its columns |
    | a PyTorch map-style `Dataset` | its rows, stacked |
    | anything else with `len` and `[rows]` | what `[rows]` returns |

    Raises:
        DataError: `data` is none of these, has no rows, or cannot be read.

    >>> as_source([(1.0, 0), (2.0, 1)])[np.array([1])][0].tolist()
    [2.0]
    """
    source = _as_source(data)
    if len(source) == 0:
        raise DataError("source: it has no rows; give at least one")
    return source


def _as_source(data: Any) -> Source:
    if isinstance(data, (str, os.PathLike)):
        return from_path(Path(cast("str", data)))
    if isinstance(data, (list, deque, UserList)):
        return RowByRow(cast("Any", data))
    if is_table(data) or is_column(data) or is_container(data) or is_array(data):
        return Arrays(data)
    if _is_of(data, "torch.utils.data", "Dataset"):
        if not hasattr(data, "__len__"):
            raise DataError(
                "source: an iterable-style Dataset of PyTorch has no rows by number; give it to the learner directly, "
                "or in a torch DataLoader"
            )
        return RowByRow(data)
    if type(data).__module__.partition(".")[0] == "datasets":
        return Columns(data, lambda table, rows: table[rows])
    if is_read_on_demand(data) or is_in_memory(data) or (hasattr(data, "__array__") and hasattr(data, "shape")):
        return Arrays(data)
    if has_rows(data):
        return cast("Source", data)
    lazy = "; collect() it first" if hasattr(data, "collect") else ""
    raise DataError(
        f"source: {type(data).__name__} has no len() and [rows]{lazy}; give arrays, a path, a list of rows, or an "
        "object with both. An iterable without these needs no loader: give it to the learner directly"
    )


def _is_of(data: Any, module: str, name: str) -> bool:
    """Is this an instance of a class of a library that has been imported?"""
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(data, cls)


def from_path(path: Path) -> Source:
    """The source in a file or a folder, see `as_source`."""
    if path.is_dir():
        if path.suffix == ".zarr":
            raise DataError(f"{path}: open it with zarr.open(path), and give the group, or its arrays by name")
        from phlox.data.image_folder import ImageFolder

        return ImageFolder(path)
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder; check the path")
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz"):
        return Arrays(load_arrays(path))
    if suffix in (".csv", ".tsv"):
        from phlox.data.tables import read_csv

        return Arrays(read_csv(path))
    if suffix in (".parquet", ".pq"):
        from phlox.data.tables import open_parquet

        return open_parquet(path)
    remedy = _OPENED_BY.get(suffix, "give .npy, .npz, .csv, .tsv or .parquet")
    raise DataError(f"{path}: cannot read {suffix or 'a file without a suffix'}; {remedy}")


_HDF5 = "open it with h5py, and give its arrays: Loader({'x': file['x'], 'y': file['y']}, batch_size)"
_OPENED_BY = {".h5": _HDF5, ".hdf5": _HDF5}
"""What to do with a file that another library has to open."""


class Subset(RowSource):
    """A source of some rows of another source.

    Args:
        source: see `as_source`.
        rows: the numbers of the rows, in order; or a mask, True for each row to take.

    >>> Subset(np.arange(10) * 10, [3, 5])[np.array([1, 0])].tolist()
    [50, 30]
    """

    def __init__(self, source: Any, rows: Sequence[int] | npt.NDArray[Any]) -> None:
        self.source = as_source(source)
        self.rows = row_numbers(rows, len(self.source), "Subset")
        wrong = self.rows[(self.rows < 0) | (self.rows >= len(self.source))]
        if self.rows.ndim != 1 or wrong.size:
            problem = f"row {wrong[0]} is out of range" if wrong.size else f"rows have shape {self.rows.shape}"
            raise DataError(f"Subset: {problem}; give numbers from 0 to {len(self.source) - 1}")

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Rows, /) -> Any:
        return self.source[self.rows[rows]]


class Concat(RowSource):
    """The concatenation of sources whose rows have the same structure.

    >>> Concat(np.arange(3), np.arange(10, 12))[np.array([4, 0])].tolist()
    [11, 0]
    """

    def __init__(self, *sources: Any) -> None:
        if not sources:
            raise DataError("Concat: there is no source; give at least one")
        self.sources = [as_source(source) for source in sources]
        self._ends = list(accumulate(len(source) for source in self.sources))

    def __len__(self) -> int:
        return self._ends[-1]

    def take(self, rows: Rows, /) -> Any:
        source_numbers = np.array([bisect_right(self._ends, row) for row in rows])
        starts = [0, *self._ends]
        batches, order = list[Any](), list[npt.NDArray[Any]]()
        for number in np.unique(source_numbers):
            selected = np.flatnonzero(source_numbers == number)
            batches.append(self.sources[number][rows[selected] - starts[number]])
            order.append(selected)
        if len(batches) == 1:
            return batches[0]
        inverse = np.argsort(np.concatenate(order))

        def joined(*parts: Any) -> Any:
            if isinstance(parts[0], list):
                merged = [x for part in parts for x in part]
                return [merged[index] for index in inverse]
            return np.concatenate(parts)[inverse]

        return mapped(joined, *batches)

    def located(self, row: int) -> tuple[Source, Rows]:
        """The source that has the given row, and the row's number in it."""
        number = bisect_right(self._ends, row)
        return self.sources[number], np.array([row - [0, *self._ends][number]])


class Mapped(RowSource):
    """A source that applies a function, `fn(batch)`, to the batches of another source.

    >>> Mapped(np.arange(4), lambda batch: batch * 2)[np.array([3])].tolist()
    [6]
    """

    def __init__(self, source: Any, fn: Callable[[Any], Any]) -> None:
        if not callable(fn):
            raise DataError(f"Mapped: {fn!r} is no function; give one of a batch")
        self.source, self.fn = as_source(source), fn

    def __len__(self) -> int:
        return len(self.source)

    def take(self, rows: Rows, /) -> Any:
        return self.fn(self.source[rows])


def split_rows(source: Any, *shares: float, seed: int | None = 0, labels: npt.ArrayLike | None = None) -> list[Subset]:
    """Divide a source into parts of disjoint rows.

    Args:
        source: see `as_source`.
        shares: the fraction of each part; together they are 1.
        seed: the seed of the shuffling; None keeps the order.
        labels: the class of each row, for a stratified split: each class has the same proportion in every part.

    Raises:
        DataError: a share is not positive, they do not add up to 1, or a part would have no rows.

    >>> train, validation = split_rows(np.arange(10), 0.8, 0.2)
    >>> len(train), len(validation), sorted({*train.rows, *validation.rows}) == list(range(10))
    (8, 2, True)
    """
    whole = as_source(source)
    wrong = [share for share in shares if not isinstance(cast("Any", share), Real) or isinstance(share, bool)]
    if wrong:
        raise DataError(f"split_rows: share {wrong[0]!r} is no number; give fractions, such as 0.8, 0.2")
    if seed is not None:
        check_number("split_rows: seed", seed, 0, 2**64 - 1)
    if not shares or not min(shares) > 0.0 or not abs(sum(shares) - 1.0) <= 1e-6:
        raise DataError(f"split_rows: shares are {shares}; give positive ones that add up to 1")
    rows = np.arange(len(whole))
    if seed is not None:
        rows = permute(rows, len(whole), key_of(seed, 0))
    groups = [rows]
    if labels is not None:
        kinds, names = classes_of(labels, len(whole), "split_rows: labels")
        groups = [rows[kinds[rows] == kind] for kind in range(len(names))]
    parts: list[list[npt.NDArray[Any]]] = [[] for _ in shares]
    for group in groups:
        ends = np.round(np.cumsum(shares) * len(group)).astype(int)
        for part, start, stop in zip(parts, [0, *ends[:-1]], ends, strict=True):
            part.append(group[start:stop])
    part_rows = [np.concatenate(part) for part in parts]
    if len(groups) > 1:  # otherwise rows of one class would be neighbours
        part_rows = (
            [np.sort(part) for part in part_rows]
            if seed is None
            else [
                part[permute(np.arange(len(part)), len(part), key_of(seed, 1 + number))]
                for number, part in enumerate(part_rows)
            ]
        )
    empty = next((number for number, part in enumerate(part_rows) if not len(part)), None)
    if empty is not None:
        raise DataError(f"split_rows: part {empty} would have no rows of {len(whole)}; give larger shares or more rows")
    return [Subset(whole, part) for part in part_rows]
