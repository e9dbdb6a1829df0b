"""A summary of an array: its shape, the range of its values, and how many are not finite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from phlox.backend import Backend, Float
from phlox.debug.running import host_of


@dataclass(frozen=True, slots=True)
class Range:
    """The values of one operand."""

    shape: tuple[int, ...]
    low: float
    """The least finite value; NaN if there is none."""
    high: float
    """The greatest finite value."""
    nans: int = 0
    infinities: int = 0

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def is_finite(self) -> bool:
        """Is there neither a NaN nor an infinity?"""
        return not self.nans and not self.infinities

    def what(self) -> str:
        """The kind and the number of elements that are not finite: `NaN (3 of 16 elements)`."""
        bad = self.nans + self.infinities
        return f"{'NaN' if self.nans else 'infinity'} ({bad} of {self.size} elements)"

    def __str__(self) -> str:
        if not self.shape and self.is_finite:
            return f"{self.low:.4g}"
        parts = [] if np.isnan(self.low) else [f"from {self.low:.4g} to {self.high:.4g}"]
        parts += [f"{self.nans} NaN"] if self.nans else []
        parts += [f"{self.infinities} infinite"] if self.infinities else []
        return f"{list(self.shape)} {', '.join(parts) or 'empty'}"


def range_of(backend: Backend, x: Any) -> Range | None:
    """The range of a backend's own array of floats; None for anything else, and for a tracer."""
    if isinstance(x, float):  # NumPy's doubles are floats
        array = np.asarray(x)
    elif isinstance(x, (bool, int, str, tuple, list, dict, slice, type(None))) or not hasattr(x, "shape"):
        return None
    else:
        try:
            if backend.kind_of(x) is not Float:
                return None
            values = host_of(backend, x)
        except Exception:  # it is an option of the operation, and no array of the backend
            return None
        if values is None:
            return None
        array = values
    return range_of_values(array)


def range_of_values(array: np.ndarray[Any, Any]) -> Range:
    """The range of an array of floats."""
    wide = array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)
    finite = np.isfinite(wide)
    if finite.all():
        low, high = (float(wide.min()), float(wide.max())) if wide.size else (np.nan, np.nan)
        return Range(array.shape, low, high)
    nans = int(np.count_nonzero(np.isnan(wide)))
    values = wide[finite]
    low, high = (float(values.min()), float(values.max())) if values.size else (np.nan, np.nan)
    return Range(array.shape, low, high, nans, int(wide.size - np.count_nonzero(finite)) - nans)


def arrays_in(arguments: Sequence[Any]) -> Iterator[Any]:
    """The operands among the arguments of an operation, those in lists and tuples too."""
    for argument in arguments:
        if isinstance(argument, (list, tuple)):
            yield from arrays_in(cast("Sequence[Any]", argument))
        else:
            yield argument
