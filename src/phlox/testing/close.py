"""`assert_close`: compare a tensor with another tensor or an array; and derivatives by central differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from phlox.tensor import Tensor
from phlox.testing.tolerances import Tolerance, tolerance_of

_EXACT = Tolerance(0.0, 0.0)


def assert_close(
    actual: Tensor[Any, Any, Any], expected: Any, *, tolerance: Tolerance | None = None, name: str = "tensor"
) -> None:
    """Raise `AssertionError` unless a tensor has the expected shape and, within a tolerance, the expected values.

    `expected` is a tensor or anything that NumPy converts to an array. NaN is close to NaN, an infinity to itself. The
    default tolerance is that of the backend's float dtype; integers and booleans must be equal. The message shows the
    number of elements that are off, and the worst one, under the given `name`.

    >>> import phlox as px
    >>> assert_close(px.tensor([1.0, 2.0]), [1.0, 2.5], name="y")
    Traceback (most recent call last):
    AssertionError: y: 1 of 2 elements are off; worst at (1,): got 2.0, expected 2.5 (tolerance rtol=1e-05, atol=2e-06)
    """
    expected_array = np.asarray(expected.numpy() if isinstance(expected, Tensor) else expected)
    if actual.shape != expected_array.shape:
        raise AssertionError(f"{name}: has shape {actual.shape}, expected {expected_array.shape}")
    if tolerance is None:
        tolerance = tolerance_of(actual.backend) if actual.kind.name == "float" else _EXACT
    compare(actual.numpy(), expected_array, tolerance, name)


def compare(got: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], tolerance: Tolerance, name: str) -> None:
    """`assert_close` for arrays of one shape."""
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        error = np.abs(got - expected)
        off = ~((error <= tolerance.atol + tolerance.rtol * np.abs(expected)) | (got == expected))
    off &= ~(np.isnan(got) & np.isnan(expected))
    # An infinite expected value would make the tolerance infinite.
    off |= np.isinf(expected) & (got != expected)
    if not off.any():
        return
    ranked = np.where(off, np.where(np.isnan(error), np.inf, error), -1.0)
    worst = np.unravel_index(int(ranked.argmax()), ranked.shape)
    index = tuple(int(i) for i in worst)
    raise AssertionError(
        f"{name}: {int(off.sum())} of {off.size} elements are off; worst at {index}: got {float(got[worst])!r}, "
        f"expected {float(expected[worst])!r} (tolerance rtol={tolerance.rtol:.3g}, atol={tolerance.atol:.3g})"
    )


def central_difference(
    f: Callable[[np.ndarray[Any, Any]], float], x: np.ndarray[Any, Any], at: tuple[int, ...], step: float = 1e-6
) -> float:
    """The derivative of `f` with respect to one element of x; the step is relative to elements beyond 1.

    >>> round(central_difference(lambda x: float((x**3).sum()), np.array([1.0, 2.0]), (1,)), 6)
    12.0
    """
    h = step * max(1.0, abs(float(x[at])))
    sides: list[float] = []
    for moved in (x[at] + h, x[at] - h):
        near = x.copy()
        near[at] = moved
        sides.append(f(near))
    return (sides[0] - sides[1]) / (2.0 * h)
