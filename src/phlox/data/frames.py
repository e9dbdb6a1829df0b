"""Tables of pandas, polars and Arrow: their columns as arrays. None of these libraries is imported."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from phlox.errors import DataError

Column = npt.NDArray[Any]


def is_table(data: Any) -> bool:
    """Is it a table of columns with names: a DataFrame of pandas or polars, or an Arrow table?"""
    if isinstance(data, type):
        return False
    return (
        (hasattr(data, "iloc") and hasattr(data, "columns"))
        or (hasattr(data, "get_columns") and hasattr(data, "columns"))
        or (hasattr(data, "column_names") and hasattr(data, "column") and hasattr(data, "num_rows"))
    )


def is_column(data: Any) -> bool:
    """Is it a column of such a table?"""
    return (
        not isinstance(data, type)
        and hasattr(data, "to_numpy")
        and not hasattr(data, "isel")  # of xarray, which reads on demand
        and not is_table(data)
    )


def columns_of(data: Any) -> dict[str, Column]:
    """The columns of a table by name, each an array.

    | a column of | becomes |
    |---|---|
    | numbers | an array of its dtype; with missing values float64, and NaN where one is missing |
    | truth values | Bool; one that is missing is an error |
    | text | an array of text; of objects, with None where one is missing |
    | categories | as their values; for their numbers take `table["city"].cat.codes` (-1 where one is missing) |
    | dates and times | datetime64 (of UTC, with a time zone), timedelta64; NaT where one is missing |
    | lists of one length | an array with a further axis |

    Raises:
        DataError: two columns have one name, or a column has values that no array has; it names the column.
    """
    names: list[Any] = list(getattr(data, "column_names", None) or data.columns)
    texts = [str(name) for name in names]
    if len(set(texts)) < len(texts):
        double = next(name for name in texts if texts.count(name) > 1)
        raise DataError(f"source: two columns of the {type(data).__name__} are called {double!r}; rename one")
    is_arrow = hasattr(data, "column_names")
    return {
        text: column_of(data.column(name) if is_arrow else data[name], text)
        for text, name in zip(texts, names, strict=True)
    }


def column_of(values: Any, name: str | None = None) -> Column:
    """A column as an array, see `columns_of`."""
    name = str(getattr(values, "name", None) or "values") if name is None else name
    kind: Any = getattr(values, "dtype", None)
    if isinstance(kind, np.dtype) and not kind.hasobject:
        return np.asarray(values)
    if getattr(cast("Any", kind), "tz", None) is not None:  # pandas would make objects of times with a zone
        return np.asarray(values, f"datetime64[{cast('Any', kind).unit}]")
    if hasattr(values, "to_pylist"):  # Arrow names its types
        name_of_kind = str(values.type)
        if name_of_kind.startswith(("int", "uint", "float", "double", "half", "timestamp", "date", "duration")):
            return np.asarray(values.to_numpy(zero_copy_only=False))
        return _of_objects(values.to_pylist(), name)
    array = np.asarray(values.to_numpy())
    return _of_objects(list(array), name) if array.dtype == object else array


def _of_objects(values: Sequence[Any], name: str) -> Column:
    missing = [value is None or _is_missing(value) for value in values]
    present = [value for value, gap in zip(values, missing, strict=True) if not gap]
    if all(isinstance(value, (str, bytes)) for value in present):
        filled = [None if gap else value for value, gap in zip(values, missing, strict=True)]
        return np.array(filled, object) if any(missing) else np.array(filled)
    if all(isinstance(value, (bool, np.bool_)) for value in present):
        if any(missing):
            raise DataError(
                f"source: column {name!r} has truth values, and some are missing, first in row "
                f"{missing.index(True)}; fill them: table[{name!r}].fillna(False), or make them numbers"
            )
        return np.array(present, np.bool_)
    if all(isinstance(value, (int, float, np.number, Decimal)) for value in present):
        numbers: list[Any] = [np.nan if gap else value for value, gap in zip(values, missing, strict=True)]
        is_exact = not any(missing) and not any(isinstance(value, Decimal) for value in present)
        array = np.array(numbers) if is_exact else np.array(numbers, np.float64)
        return array if array.dtype != object else np.array(numbers, np.float64)
    if all(isinstance(value, date) and getattr(value, "tzinfo", None) is None for value in present):
        return np.array([None if gap else value for value, gap in zip(values, missing, strict=True)], "datetime64[us]")
    kinds = list(dict.fromkeys(type(value).__name__ for value in present))
    try:
        stacked = np.array(None, object) if len(kinds) > 1 else np.stack([_as_one_array(value) for value in values])
    except (TypeError, ValueError):
        stacked = np.array(None, object)
    if stacked.dtype == object or any(missing):
        gaps = ", and some are missing" if any(missing) else ""
        raise DataError(
            f"source: column {name!r} has values of type {' and '.join(kinds)}{gaps}, which make no array; leave it "
            f"out, table.drop(columns=[{name!r}]), or give what you need as numbers: Loader({{'x': table[['age', "
            "'income']].to_numpy('float32'), 'city': table['city'].cat.codes, ...}, batch_size)"
        )
    return stacked


def _as_one_array(value: Any) -> Column:
    """A value as an array; arrays of arrays, which pandas makes, become one array."""
    array = np.asarray(value)
    return np.stack([_as_one_array(row) for row in array]) if array.dtype == object and array.ndim else array


def _is_missing(value: Any) -> bool:
    """Is it NaN, NaT or NA, which are not equal to themselves?"""
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # NA, which is neither; or an array
        return not isinstance(value, (np.ndarray, list, tuple))
