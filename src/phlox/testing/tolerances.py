"""How close is close: by element type."""

from __future__ import annotations

from typing import NamedTuple

from phlox.backend import Backend


class Tolerance(NamedTuple):
    """`actual` is close to `expected` where |actual - expected| <= atol + rtol * |expected|."""

    rtol: float
    atol: float

    def times(self, factor: float) -> Tolerance:
        """A wider one, for what adds up the errors of many operations."""
        return Tolerance(self.rtol * factor, self.atol * factor)


TOLERANCES: dict[str, Tolerance] = {
    "f64": Tolerance(1e-11, 1e-12),
    "f32": Tolerance(1e-5, 2e-6),
    "f16": Tolerance(4e-3, 2e-3),
    "bf16": Tolerance(3e-2, 1e-2),
}
"""What a short chain of operations on numbers about one may lose, some tens of roundings, by float element type."""


def tolerance_of(backend: Backend) -> Tolerance:
    """The tolerance for the floats of a backend.

    >>> from phlox.backend import NumPy
    >>> tolerance_of(NumPy(float="f64")).rtol
    1e-11
    """
    return TOLERANCES[backend.float_element]
