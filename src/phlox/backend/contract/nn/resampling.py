"""Interpolation along one axis as a table of the elements and weights for each element of the result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np

Mode: TypeAlias = Literal["nearest", "nearest-exact", "linear", "cubic", "area"]
Table: TypeAlias = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
"""Positions and weights, both [out, taps]."""


@dataclass(frozen=True, slots=True)
class Resampling:
    """A linear map from `size` elements to `out`."""

    size: int
    out: int
    mode: Mode
    align_corners: bool = False
    """Do the centres of the first and last elements stay in place? Otherwise their outer edges do."""
    ratio: float | None = None
    """The number of input elements for each element of the result; None means size / out."""
    antialias: bool = False
    transposed: bool = False
    """Is it the transpose, from `out` elements to `size`?"""

    @property
    def transpose(self) -> Resampling:
        """The transposed map."""
        return replace(self, transposed=not self.transposed)

    @property
    def table(self) -> Table:
        """The table of the map."""
        return _table(self)


@lru_cache(256)
def _table(plan: Resampling) -> Table:
    if plan.transposed:
        return _transposed(*_table(plan.transpose), plan.size)
    if plan.antialias:
        return _antialiased(plan)
    return _TABLES[plan.mode](plan)


def _nearest(plan: Resampling) -> Table:
    number = np.arange(plan.out)
    offset = 1 if plan.mode == "nearest-exact" else 0
    if plan.ratio is None:  # in integers, without rounding
        positions = (2 * number + offset) * plan.size // (2 * plan.out)
    else:
        positions = np.floor((number + 0.5 * offset) * plan.ratio).astype(np.int64)
    return np.minimum(positions, plan.size - 1)[:, None], np.ones((plan.out, 1))


def _area(plan: Resampling) -> Table:
    number = np.arange(plan.out)
    starts, stops = number * plan.size // plan.out, -(-(number + 1) * plan.size // plan.out)
    counts = (stops - starts)[:, None]
    taps = np.arange(int(counts.max(initial=0)))
    positions = np.minimum(starts[:, None] + taps, stops[:, None] - 1)
    return positions, np.where(taps < counts, 1.0 / counts, 0.0)


def _sources(plan: Resampling) -> np.ndarray[Any, Any]:
    """The positions of the results' centres, in elements of the input."""
    number = np.arange(plan.out, dtype=np.float64)
    if plan.align_corners:
        return number * ((plan.size - 1) / max(plan.out - 1, 1))
    return (number + 0.5) * _ratio(plan) - 0.5


def _ratio(plan: Resampling) -> float:
    return plan.size / max(plan.out, 1) if plan.ratio is None else plan.ratio


def _linear(plan: Resampling) -> Table:
    source = np.maximum(_sources(plan), 0.0)
    low = np.minimum(np.floor(source), plan.size - 1)
    share = np.minimum(source - low, 1.0)
    positions = np.stack([low, np.minimum(low + 1, plan.size - 1)], 1).astype(np.int64)
    return positions, np.stack([1.0 - share, share], 1)


def _cubic(plan: Resampling) -> Table:
    source = _sources(plan)
    low = np.floor(source)
    taps = np.arange(-1, 3)
    positions = np.clip(low[:, None] + taps, 0, plan.size - 1).astype(np.int64)
    return positions, _keys((source - low)[:, None] - taps, -0.75)


def _keys(x: np.ndarray[Any, Any], a: float) -> np.ndarray[Any, Any]:
    """The kernel of cubic convolution (Keys 1981)."""
    x = np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = ((x - 5.0) * x + 8.0) * x * a - 4.0 * a
    return np.where(x <= 1.0, near, np.where(x < 2.0, far, 0.0))


def _antialiased(plan: Resampling) -> Table:
    """The kernel is as wide as the distance of the results, so that a smaller image uses all pixels of the larger."""
    ratio = (plan.size - 1) / max(plan.out - 1, 1) if plan.align_corners else _ratio(plan)
    if plan.align_corners and plan.out == 1:
        ratio = 0.0  # as without antialias: the only result is at the first element
    width = max(ratio, 1.0)
    reach = width * (1.0 if plan.mode == "linear" else 2.0)
    centre = ((np.arange(plan.out) + 0.5) * ratio)[:, None]
    starts = np.maximum((centre - reach + 0.5).astype(np.int64), 0)
    stops = np.minimum((centre + reach + 0.5).astype(np.int64), plan.size)
    positions = starts + np.arange(int((stops - starts).max(initial=1)))
    away = (positions - centre + 0.5) / width
    weights = np.maximum(1.0 - np.abs(away), 0.0) if plan.mode == "linear" else _keys(away, -0.5)
    weights = np.where(positions < stops, weights, 0.0)
    return np.minimum(positions, plan.size - 1), weights / weights.sum(1, keepdims=True)


def _transposed(positions: np.ndarray[Any, Any], weights: np.ndarray[Any, Any], size: int) -> Table:
    """For each input element, the results that use it, and their weights."""
    used = weights != 0.0
    result, _ = np.nonzero(used)
    origin = positions[used]
    order = np.argsort(origin, kind="stable")
    counts = np.bincount(origin, minlength=size)
    first = np.cumsum(counts) - counts
    tap = np.arange(len(order)) - np.repeat(first, counts)
    shape = (size, max(int(counts.max(initial=0)), 1))
    back, share = np.zeros(shape, np.int64), np.zeros(shape)
    back[origin[order], tap] = result[order]
    share[origin[order], tap] = weights[used][order]
    return back, share


_TABLES = {"nearest": _nearest, "nearest-exact": _nearest, "area": _area, "linear": _linear, "cubic": _cubic}
