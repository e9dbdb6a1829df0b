"""Sources of arrays: in memory, in files, or read from elsewhere when their rows are needed."""

from __future__ import annotations

import dataclasses
import os
from collections import UserList, deque
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from phlox.data.frames import column_of, columns_of, is_column, is_table
from phlox.data.order import Rows
from phlox.data.rows import RowSource, Source
from phlox.data.structure import children, copy_views, count_rows, host_array, is_array, mapped, with_parts
from phlox.errors import DataError


class Arrays(RowSource):
    """A source of arrays of one length, in any nesting of tuples, dicts and dataclasses.

    Batches are copies: writing to one does not change the arrays. Memory-mapped arrays, arrays of HDF5 and zarr, and
    sources in the nesting are read when their rows are needed.

    Raises:
        DataError: the arrays have different numbers of rows, or there is no array.

    >>> source = Arrays({"x": np.arange(6).reshape(3, 2), "y": [7, 8, 9]})
    >>> len(source), source[np.array([2, 0])]["y"].tolist()
    (3, [9, 7])
    """

    def __init__(self, arrays: Any) -> None:
        self.arrays = _parts(arrays)
        self._length = count_rows(self.arrays, "source")

    def __len__(self) -> int:
        return self._length

    def take(self, rows: Rows, /) -> Any:
        return mapped(partial(_read, rows, _start_of_run(rows)), self.arrays)


class OnDemand:
    """An array of h5py, zarr and the like, or a source: its rows are read when they are needed."""

    def __init__(self, rows: Any) -> None:
        # Only some formats of sparse matrices can be indexed by rows.
        self.array: Any = (rows.tocsr() if hasattr(rows, "tocsr") else rows) if is_read_on_demand(rows) else None
        self.source: Source | None = None
        if self.array is None:
            from phlox.data.sources import as_source

            self.source = as_source(rows)

    def __len__(self) -> int:
        return self.array.shape[0] if self.source is None else len(self.source)

    def read(self, rows: Rows, start: int | None) -> Any:
        """These rows; `start` is the first, if they are neighbours."""
        if self.source is not None:
            return copy_views(self.source[rows])
        if start is not None:
            return _to_dense(self.array[start : start + len(rows)])
        # File libraries take increasing row numbers; zarr takes them through `oindex`.
        unique, inverse = np.unique(rows, return_inverse=True)
        return _to_dense(getattr(self.array, "oindex", self.array)[unique])[inverse]


def is_read_on_demand(value: Any) -> bool:
    """Is it like an array, but not in memory? Arrays in memory offer their memory, or a copy as a NumPy array."""
    shape = getattr(value, "shape", None)
    return (
        isinstance(shape, tuple)
        and len(cast("tuple[Any, ...]", shape)) > 0
        and hasattr(value, "dtype")
        and hasattr(value, "__getitem__")
        and (hasattr(value, "__array__") or hasattr(value, "toarray"))  # the latter of sparse matrices
        and not is_in_memory(value)
        and not is_column(value)
    )


def has_rows(value: Any) -> bool:
    """Does it have `len` and `[rows]`?"""
    return not isinstance(value, type) and hasattr(value, "__len__") and hasattr(value, "__getitem__")


def is_container(value: Any) -> bool:
    """Is it a nesting of arrays? A dataclass that is an array, or has `len` and `[rows]`, is not."""
    if is_group(value):
        return True
    if children(value) is None or is_read_on_demand(value):
        return False
    return not (dataclasses.is_dataclass(value) and has_rows(value))


def is_group(value: Any) -> bool:
    """Does it have arrays by name without being a mapping, like a group of zarr?"""
    if isinstance(value, (Mapping, type)) or not (has_rows(value) and callable(getattr(value, "keys", None))):
        return False
    names = list(value.keys())
    if len(names) != len(value) or not all(isinstance(name, str) for name in names):
        return False
    try:
        return all(hasattr(value[name], "shape") for name in names[:1])
    except Exception:  # a source whose rows have names, but which is indexed by numbers
        return False


def is_in_memory(value: Any) -> bool:
    """Is it an array, or a sequence of numbers, in memory?"""
    if isinstance(value, (list, range, deque, UserList, bytes, bytearray, memoryview)):
        return True
    offers = ("__array_interface__", "__array_struct__", "__dlpack__", "__cuda_array_interface__", "numpy")
    return any(hasattr(value, name) for name in offers) or hasattr(value, "buffer_info")  # of array.array


def _parts(value: Any) -> Any:
    """The nesting, with arrays or `OnDemand` as its leaves."""
    if is_table(value):
        return columns_of(value)
    if is_group(value):
        value = {name: value[name] for name in value.keys()}  # noqa: SIM118  (it is no dict)
    if not is_container(value):
        return as_array(value)
    return with_parts(value, [_parts(part) for _, part in children(value) or ()])


def _read(rows: Rows, start: int | None, leaf: Any) -> Any:
    # Always a copy: a transform may write to its batch. Neighbours are one block; otherwise `take` is several times
    # faster than an index.
    if not is_array(leaf):
        return leaf.read(rows, start)
    array = leaf.view(np.ndarray) if isinstance(leaf, np.memmap) else leaf  # masked arrays stay what they are
    block = array.take(rows, axis=0) if start is None else np.array(array[start : start + len(rows)], subok=True)
    return host_array(block) if block.dtype.kind == "V" else block


def _to_dense(array: Any) -> Any:
    return array.toarray() if hasattr(array, "toarray") else np.asanyarray(array)


def _start_of_run(rows: Rows) -> int | None:
    size = len(rows)
    if size and rows[-1] - rows[0] == size - 1 and (size < 3 or bool((np.diff(rows) == 1).all())):
        return int(rows[0])
    return None


def as_array(value: Any) -> Any:
    """A NumPy array, or `OnDemand`."""
    if is_array(value) or isinstance(value, OnDemand):
        return value
    if isinstance(value, (str, os.PathLike)):
        return load_arrays(Path(cast("str", value)))
    if is_column(value):
        return column_of(value)
    is_single = getattr(value, "shape", None) == ()
    if is_read_on_demand(value) or (has_rows(value) and not is_in_memory(value) and not is_single):
        return OnDemand(value)
    numpy = getattr(value, "numpy", None)
    try:
        on_host = host_array(value)
        array = np.asarray(numpy() if callable(numpy) else value) if on_host is None else on_host
    except ValueError:  # rows of different lengths
        array = np.array(None, object)
    except Exception as error:
        raise DataError(f"source: {type(value).__name__} cannot be made a NumPy array: {error}") from error
    if array.dtype == object:
        raise DataError(
            f"source: {type(value).__name__} of rows of different shapes is no array; give a list of rows as the "
            "source itself, and collate=Pad()"
        )
    return array


def load_arrays(path: Path) -> Any:
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
