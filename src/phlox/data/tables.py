"""Tables: comma-separated text by Python's own reader, Parquet by Arrow."""

from __future__ import annotations

import csv
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from phlox.data.frames import column_of
from phlox.data.sources import Columns
from phlox.errors import DataError, ExtraNotInstalledError


def read_csv(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The columns of a file with a header: int64 if all values are integers, float64 if all are numbers, else text.

    An empty cell of a column of numbers is NaN. `.tsv` files are separated by tabs.

    Raises:
        DataError: no header, a row with another number of cells than the header, or no rows; it names the line.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
            names = next(reader, None)
            if not names:
                raise DataError(f"{path}: the file is empty; the first line must name the columns")
            if len(set(names)) < len(names):
                double = next(name for name in names if names.count(name) > 1)
                raise DataError(f"{path}: two columns are called '{double}'; give each a name of its own")
            cells: list[list[str]] = []
            for row in reader:
                if not row:
                    continue
                if len(row) != len(names):
                    raise DataError(f"{path}: line {reader.line_num} has {len(row)} cells, the header {len(names)}")
                cells.append(row)
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise DataError(f"{path}: cannot be read as comma-separated text in UTF-8: {error}") from error
    if not cells:
        raise DataError(f"{path}: there is a header, but no row; give at least one")
    return {name: _to_column([row[column] for row in cells]) for column, name in enumerate(names)}


def _to_column(cells: list[str]) -> npt.NDArray[Any]:
    try:
        return np.array([int(cell) for cell in cells], np.int64)
    except (ValueError, OverflowError):
        pass
    try:
        return np.array([float(cell) if cell.strip() else np.nan for cell in cells], np.float64)
    except ValueError:
        return np.array(cells, np.str_)


def open_parquet(path: Path) -> Columns:
    """The columns of a Parquet file, which is mapped and read by row numbers.

    Raises:
        ExtraNotInstalledError: Arrow is not installed.
        DataError: the file cannot be read.
    """
    try:
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError as error:
        raise ExtraNotInstalledError(
            f"{path}: reading Parquet needs Arrow; install Phlox with the extra 'data'"
        ) from error
    try:
        table: Any = parquet.read_table(path, memory_map=True)
    except Exception as error:
        raise DataError(f"{path}: cannot be read as Parquet: {error}") from error
    gaps = frozenset(name for name in table.column_names if table.column(name).null_count)
    for name in table.column_names:  # a column that no batch can have is an error here
        column = table.column(name)
        try:
            _arrow_column(column if name in gaps and str(column.type) == "bool" else column.slice(0, 1), name, False)
        except DataError as error:
            raise DataError(f"{path}: {str(error).removeprefix('source: ')}") from error
    return Columns(table, partial(_read_rows, gaps))


def _read_rows(gaps: frozenset[str], table: Any, rows: list[int]) -> dict[str, Any]:
    selected = table.take(rows)
    return {name: _arrow_column(selected.column(name), name, name in gaps) for name in selected.column_names}


def _arrow_column(column: Any, name: str, has_gaps: bool) -> Any:
    kind = str(column.type)
    if kind.startswith(("list", "large_list", "fixed_size_list", "struct")):  # whose values may differ in shape
        return column.to_pylist()
    array = column_of(column, name)
    # All batches have one dtype, with a missing value or without.
    if has_gaps and array.dtype.kind in "iu":
        return array.astype(np.float64)
    return array.astype(object) if has_gaps and array.dtype.kind in "US" else array
