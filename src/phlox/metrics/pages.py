"""Values of metrics in notebooks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from phlox.host.page import MOST_ROWS, Cell, Page, Part, Table, facts
from phlox.host.text import count, short

_LARGEST = 24
"""A matrix with more rows or columns than this is not shown as a matrix."""


def page_of_results(results: Mapping[str, Any]) -> Page:
    """Values by name: one table of scalars, and below it the metrics with a value for each class."""
    flat = list(_flat(results, ""))
    numbers: list[tuple[str, str | Cell]] = []
    parts: list[Part] = []
    for name, result in flat[:MOST_ROWS]:
        value: Any = cast("Any", result).item() if isinstance(result, np.generic) else result
        array = _as_array(value)
        if array is not None and array.dtype.kind in "biuf" and array.ndim in (1, 2) and array.size:
            parts.append(Page(name, parts=[_array(array)], is_open=True))
        elif isinstance(value, (int, float)):
            numbers.append((name, Cell(_number(value), kind="" if math.isfinite(value) else "bad")))
        else:
            numbers.append((name, short(value)))
    hidden = f"and {len(flat) - MOST_ROWS:,} more" if len(flat) > MOST_ROWS else ""
    return Page("Results", [count(len(flat), "value")], [facts(numbers), *parts, hidden])


def _flat(results: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in results.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat += _flat(cast("Mapping[str, Any]", value), f"{path}/")
        else:
            flat.append((path, value))
    return flat


def _as_array(value: Any) -> np.ndarray[Any, Any] | None:
    """Values of classes, in a list or an array."""
    try:
        return np.asarray(cast("Any", value)) if isinstance(value, (list, tuple, np.ndarray)) else None
    except ValueError:  # rows of different lengths
        return None


def _array(array: np.ndarray[Any, Any]) -> str | Table:
    """A row of values, or a matrix whose cells are shaded by their share of their row."""
    rows = np.atleast_2d(array)
    if max(rows.shape) > _LARGEST:
        return f"shape {array.shape}, {_number(array.min())} to {_number(array.max())}"
    sizes = np.where(np.isfinite(rows), np.abs(rows.astype(np.float64)), 0.0)
    shares = sizes / np.maximum(sizes.sum(axis=1, keepdims=True), 1e-300) if array.ndim == 2 else np.zeros(rows.shape)
    heads = [*[""] * (array.ndim == 2), *map(str, range(rows.shape[1]))]
    cells = [
        [
            *[Cell(str(number), kind="soft")] * (array.ndim == 2),
            *(Cell(_number(value), shade=float(share)) for value, share in zip(row, shares[number], strict=True)),
        ]
        for number, row in enumerate(rows)
    ]
    return Table(heads, cells, 0)


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, (int, np.integer)) else f"{float(value):.5g}"
