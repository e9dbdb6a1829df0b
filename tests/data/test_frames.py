"""Tables of pandas, polars and Arrow go in as they are; what makes no array is refused with the column's name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from phlox.data import Loader
from phlox.errors import DataError

COLUMNS: dict[str, Any] = {
    "age": [31.0, 44.0, 27.0], "n": [1, 2, 3], "city": ["Bern", "Zug", "Bern"], "gap": ["a", None, "b"],
    "is_old": [True, False, True],
}  # fmt: skip


def _pandas(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("pandas").DataFrame(columns)


def _polars(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("polars").DataFrame(columns, strict=False)


def _record_batch(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("pyarrow").RecordBatch.from_pydict(columns)


def _arrow(columns: dict[str, Any]) -> Any:
    return pytest.importorskip("pyarrow").table(columns)


MADE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "pandas": _pandas, "polars": _polars, "arrow": _arrow, "a record batch": _record_batch
}  # fmt: skip


@pytest.mark.parametrize("library", MADE)
def test_columns_are_arrays(library: str) -> None:
    (batch,) = Loader(MADE[library](COLUMNS), 3)
    assert list(batch) == list(COLUMNS)
    assert batch["age"].dtype == np.float64 and batch["n"].dtype == np.int64 and batch["is_old"].dtype == bool
    for name, values in COLUMNS.items():
        assert batch[name].tolist() == values
    assert (batch["city"] == "Bern").tolist() == [True, False, True]
    assert (batch["gap"] == "b").tolist() == [False, False, True]


@pytest.mark.parametrize("library", MADE)
def test_missing_numbers_are_nan_and_missing_truth_values_an_error(library: str) -> None:
    (batch,) = Loader(MADE[library]({"n": [1, None, 3], "x": [0.5, None, 1.5]}), 3)
    np.testing.assert_array_equal(batch["n"], [1.0, np.nan, 3.0])
    np.testing.assert_array_equal(batch["x"], [0.5, np.nan, 1.5])
    with pytest.raises(DataError, match="column 'b' has truth values, and some are missing, first in row 1"):
        Loader(MADE[library]({"b": [True, None, False]}), 3)


def test_categories_dates_and_single_columns_of_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({
        "kind": pandas.Categorical(["x", "y", None]), "size": pandas.Categorical([3, 1, 3]),
        "day": pandas.to_datetime(["2024-01-01", None, "2024-01-03"]), "n": pandas.array([1, None, 3], "Int64"),
    })  # fmt: skip
    (batch,) = Loader(table, 3)
    assert batch["kind"].tolist() == ["x", "y", None] and batch["size"].tolist() == [3, 1, 3]
    assert np.isnat(batch["day"]).tolist() == [False, True, False]
    np.testing.assert_array_equal(batch["n"], [1.0, np.nan, 3.0])
    (pair,) = Loader((table["size"], table["kind"]), 3)
    assert pair[0].tolist() == [3, 1, 3] and pair[1].tolist() == ["x", "y", None]


def test_what_makes_no_array_is_refused_with_its_column() -> None:
    pandas = pytest.importorskip("pandas")
    remedy = re.escape(
        "Loader({'x': table[['age', 'income']].to_numpy('float32'), 'city': table['city'].cat.codes, ...}"
    )
    for values, kind in (([object(), object()], "object"), ([1, "a"], "int and str"), ([[1], [2, 3]], "list")):
        message = rf"column 'o' has values of type {kind}, which .* table\.drop\(columns=\['o'\]\), .*{remedy}"
        with pytest.raises(DataError, match=message):
            Loader(pandas.DataFrame({"o": values}), 2)
    with pytest.raises(DataError, match="two columns of the DataFrame are called 'a'"):
        Loader(pandas.DataFrame([[1, 2]], columns=["a", "a"]), 1)
