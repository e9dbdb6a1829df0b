"""Tolerances by dtype."""

from __future__ import annotations

from typing import NamedTuple

from phlox.backend import Backend


class Tolerance(NamedTuple):
    """`actual` is close to `expected` if |actual - expected| <= atol + rtol * |expected|."""

    rtol: float
    atol: float

    def times(self, factor: float) -> Tolerance:
        """A wider tolerance, for results of many operations."""
        return Tolerance(self.rtol * factor, self.atol * factor)


TOLERANCES: dict[str, Tolerance] = {
    "f64": Tolerance(1e-11, 1e-12),
    "f32": Tolerance(1e-5, 2e-6),
    "f16": Tolerance(4e-3, 2e-3),
    "bf16": Tolerance(3e-2, 1e-2),
}
"""The error of a short chain of operations on values near one, some tens of roundings, by float dtype."""


def tolerance_of(backend: Backend) -> Tolerance:
    """The tolerance for the float dtype of a backend.

    >>> from phlox.backend import NumPy
    >>> tolerance_of(NumPy(float="f64")).rtol
    1e-11
    """
    return TOLERANCES[backend.float_element]
