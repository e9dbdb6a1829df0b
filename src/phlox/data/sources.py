"""Sources: objects with a number of rows, which can be read by their numbers.

`as_source` makes one of whatever a user has. A source is anything with `len(source)` and `source[rows]`, where `rows`
is an array of row numbers and the result a batch: arrays in any nesting, `[len(rows), ...]`.
"""

from __future__ import annotations

import os
import sys
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import itemgetter, methodcaller
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from phlox.data.order import Rows
from phlox.data.structure import children, count_rows, is_array, leaves, mapped, rebuilt, stack
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
        numbers = np.asarray(rows)
        if numbers.dtype == bool and numbers.shape == (len(self),):
            return self.take(np.flatnonzero(numbers))
        if numbers.size == 0 and isinstance(rows, list):
            numbers = numbers.astype(np.int64)
        name = type(self).__name__
        if numbers.dtype.kind not in "iu" or numbers.ndim > 1:
            raise DataError(f"{name}: {rows!r} is no number of a row; give a number, a slice, or a list of numbers")
        wrong = numbers[(numbers < -len(self)) | (numbers >= len(self))]
        if wrong.size:
            raise NoSuchRowError(f"{name}: there is no row {wrong.flat[0]}; it has {len(self)} rows")
        chosen = np.atleast_1d(numbers.astype(np.int64)) % len(self)
        batch = self.take(chosen)
        return batch if numbers.ndim else mapped(itemgetter(0), batch)

    def __len__(self) -> int:
        raise NotImplementedError

    def take(self, rows: Rows, /) -> Any:
        """The batch of the rows with these numbers, `int64 [n]`, counted from 0."""
        raise NotImplementedError


class Arrays(RowSource):
    """A source of arrays of one length, in any nesting of tuples, dicts and dataclasses.

    Memory-mapped arrays are read from the disk when their rows are needed.

    Raises:
        DataError: the arrays have different numbers of rows, or there is no array.

    >>> source = Arrays({"x": np.arange(6).reshape(3, 2), "y": [7, 8, 9]})
    >>> len(source), source[np.array([2, 0])]["y"].tolist()
    (3, [9, 7])
    """

    def __init__(self, arrays: Any) -> None:
        self.arrays = mapped(as_array, arrays)
        self._length = count_rows(self.arrays, "source")

    def __len__(self) -> int:
        return self._length

    def take(self, rows: Rows, /) -> Any:
        # Neighbours are a view, which costs nothing; otherwise `take` is several times faster than an index.
        start = _start_of_run(rows)
        if start is not None:
            return mapped(itemgetter(slice(start, start + len(rows))), self.arrays)
        return mapped(methodcaller("take", rows, axis=0), self.arrays)


def _start_of_run(rows: Rows) -> int | None:
    size = len(rows)
    if size and rows[-1] - rows[0] == size - 1 and (size < 3 or bool((np.diff(rows) == 1).all())):
        return int(rows[0])
    return None


def as_array(value: Any) -> Any:
    if is_array(value):
        return value
    if isinstance(value, (str, os.PathLike)):
        return opened(Path(cast("str", value)))
    numpy = getattr(value, "numpy", None)
    try:
        array = np.asarray(numpy() if callable(numpy) else value)
    except ValueError:  # rows of different lengths
        array = np.array(None, object)
    if array.dtype == object:
        raise DataError(
            f"source: {type(value).__name__} of rows of different shapes is no array; give a list of rows as the "
            "source itself, and collate=Pad()"
        )
    return array


class RowByRow(RowSource):
    """A source of single rows, `rows[17]`, as a source of batches: each row is asked for alone, and they are stacked.

    So are lists, PyTorch's map-style datasets, and everything that takes one number at a time.

    >>> RowByRow([(1.0, "a"), (2.0, "b")])[np.array([1, 0])]
    (array([2., 1.]), ['b', 'a'])
    """

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Rows, /) -> Any:
        return stack(self.listed(rows))

    def listed(self, rows: Rows) -> list[Any]:
        """The rows, one by one."""
        several = getattr(self.rows, "__getitems__", None)
        if several is not None:
            return list(several([int(row) for row in rows]))
        return [_plain(self.rows[int(row)]) for row in rows]


def listed(source: Any, rows: Rows) -> list[Any]:
    """The rows of a source as a list; those of a list of rows, or of parts of one, may differ in shape."""
    if isinstance(source, RowByRow):
        return source.listed(rows)
    if isinstance(source, Subset):
        return listed(source.source, source.rows[rows])
    if isinstance(source, Concat):
        return [one for row in rows for one in listed(*source.located(row))]
    batch = source[rows]
    return [mapped(itemgetter(i), batch) for i in range(len(rows))]


def _plain(row: Any) -> Any:
    """A row with tensors of PyTorch as NumPy's arrays, and lists of numbers as arrays."""
    found = children(row)
    if found is not None:
        return rebuilt(row, [_plain(part) for _, part in found])
    if isinstance(row, list):
        items = cast("list[Any]", row)
        return items if any(isinstance(x, str) for x in items) else np.asarray(items)
    if type(row).__module__.partition(".")[0] == "torch" and hasattr(row, "numpy"):
        return row.detach().cpu().numpy()
    return row


class Columns(RowSource):
    """A source whose columns are read by row numbers together: a Hugging Face data set, or a table of Arrow's."""

    def __init__(self, data: Any, take: Callable[[Any, list[int]], Mapping[str, Any]]) -> None:
        self.data, self._take = data, take

    def __len__(self) -> int:
        return len(self.data)

    def take(self, rows: Rows, /) -> Any:
        columns = self._take(self.data, [int(row) for row in rows])
        return {str(name): _column(values) for name, values in columns.items()}


def _column(values: Any) -> Any:
    """A column of a batch: an array, where its rows have one shape; else a list."""
    if is_array(values):
        return values
    listed = list(values)
    if any(isinstance(x, (str, bytes)) or x is None for x in listed):
        return listed
    try:
        array = np.asarray(listed)
    except ValueError:  # rows of different lengths
        return listed
    return listed if array.dtype == object else array


def as_source(data: Any) -> Source:
    """Make a source from arrays, rows, a file, a folder of images or a data set of another library.

    | `data` | a batch is |
    |---|---|
    | arrays (NumPy, memory maps, tensors) in any nesting | the same nesting |
    | a path to `.npy`, `.npz`, `.csv`, `.parquet` | an array; dicts of the arrays or columns |
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
    if isinstance(data, list):
        return RowByRow(cast("list[Any]", data))
    if children(data) is not None or is_array(data):
        return Arrays(data)
    if _is_of(data, "torch.utils.data", "Dataset"):
        if not hasattr(data, "__len__"):
            raise DataError(
                "source: an iterable-style Dataset of PyTorch has no rows by number; give it to the learner as it is, "
                "or in a torch DataLoader"
            )
        return RowByRow(data)
    if type(data).__module__.partition(".")[0] == "datasets":
        return Columns(data, lambda table, rows: table[rows])
    if hasattr(data, "__array__") and hasattr(data, "shape"):
        return Arrays(data)
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return cast("Source", data)
    raise DataError(
        f"source: {type(data).__name__} has no len() and [rows]; give arrays, a path, a list of rows, or an object "
        "with both. What can only be iterated over needs no loader: give it to the learner as it is"
    )


def _is_of(data: Any, module: str, name: str) -> bool:
    """Is this an instance of a class of a library that has been imported?"""
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(data, cls)


def from_path(path: Path) -> Source:
    """The source in a file or a folder, see `as_source`."""
    if path.is_dir():
        from phlox.data.image_folder import ImageFolder

        return ImageFolder(path)
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder; check the path")
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz"):
        return Arrays(opened(path))
    if suffix in (".csv", ".tsv"):
        from phlox.data.tables import read_csv

        return Arrays(read_csv(path))
    if suffix in (".parquet", ".pq"):
        from phlox.data.tables import open_parquet

        return open_parquet(path)
    raise DataError(
        f"{path}: cannot read {suffix or 'a file without a suffix'}; give .npy, .npz, .csv, .tsv or .parquet"
    )


def opened(path: Path) -> Any:
    """The array of a `.npy` file, mapped; the arrays of a `.npz` file as a dict. Nothing in a file is ever run."""
    try:
        if path.suffix.lower() == ".npy":
            return np.load(path, mmap_mode="r", allow_pickle=False)
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file; check the path") from error
    except Exception as error:  # a damaged file fails in a dozen ways
        pickled = "allow_pickle" in str(error) or "Python objects" in str(error)
        remedy = "it holds Python objects, which Phlox never loads; save arrays of numbers" if pickled else f"{error}"
        raise DataError(f"{path}: cannot be read as NumPy's file: {remedy}") from error


class Subset(RowSource):
    """A source of some rows of another source.

    Args:
        source: see `as_source`.
        rows: the numbers of the rows, in order.

    >>> Subset(np.arange(10) * 10, [3, 5])[np.array([1, 0])].tolist()
    [50, 30]
    """

    def __init__(self, source: Any, rows: Sequence[int] | npt.NDArray[Any]) -> None:
        self.source, self.rows = as_source(source), np.asarray(rows, np.int64)
        wrong = self.rows[(self.rows < 0) | (self.rows >= len(self.source))]
        if self.rows.ndim != 1 or wrong.size:
            what = f"row {wrong[0]} is out of range" if wrong.size else f"rows have shape {self.rows.shape}"
            raise DataError(f"Subset: {what}; give numbers from 0 to {len(self.source) - 1}")

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
        which = np.array([bisect_right(self._ends, row) for row in rows])
        starts = [0, *self._ends]
        found, order = list[Any](), list[npt.NDArray[Any]]()
        for number in np.unique(which):
            here = np.flatnonzero(which == number)
            found.append(self.sources[number][rows[here] - starts[number]])
            order.append(here)
        if len(found) == 1:
            return found[0]
        back = np.argsort(np.concatenate(order))

        def joined(*parts: Any) -> Any:
            if isinstance(parts[0], list):
                whole = [x for part in parts for x in part]
                return [whole[place] for place in back]
            return np.concatenate(parts)[back]

        return mapped(joined, *found)

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
    from phlox.data.order import key_of, permuted

    whole = as_source(source)
    if not shares or min(shares) <= 0.0 or abs(sum(shares) - 1.0) > 1e-6:
        raise DataError(f"split_rows: shares are {shares}; give positive ones that add up to 1")
    rows = np.arange(len(whole))
    if seed is not None:
        rows = permuted(rows, len(whole), key_of(seed, 0))
    groups = [rows]
    if labels is not None:
        kinds = np.asarray(labels)[rows]
        if kinds.shape != rows.shape:
            raise DataError(f"split_rows: labels have shape {kinds.shape}; give one for each of the {len(whole)} rows")
        groups = [rows[kinds == kind] for kind in np.unique(kinds)]
    parts: list[list[npt.NDArray[Any]]] = [[] for _ in shares]
    for group in groups:
        ends = np.round(np.cumsum(shares) * len(group)).astype(int)
        for part, start, stop in zip(parts, [0, *ends[:-1]], ends, strict=True):
            part.append(group[start:stop])
    found = [np.concatenate(part) for part in parts]
    if len(groups) > 1:  # rows of one class would stand side by side
        found = (
            [np.sort(part) for part in found]
            if seed is None
            else [
                part[permuted(np.arange(len(part)), len(part), key_of(seed, 1 + number))]
                for number, part in enumerate(found)
            ]
        )
    empty = next((number for number, part in enumerate(found) if not len(part)), None)
    if empty is not None:
        raise DataError(f"split_rows: part {empty} would have no rows of {len(whole)}; give larger shares or more rows")
    return [Subset(whole, part) for part in found]


def describe(batch: Any) -> str:
    """The leaves of a batch with their shapes, for messages."""
    return ", ".join(
        f"{path or 'array'} {getattr(leaf, 'dtype', type(leaf).__name__)} {tuple(getattr(leaf, 'shape', ()))}"
        for path, leaf in leaves(batch)
    )
