"""Shapes of the functions that a backend is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

Array: TypeAlias = Any
"""A backend's own array: `numpy.ndarray`, `jax.Array`, `torch.Tensor`, or what a decorator makes of one."""

Shape: TypeAlias = tuple[int, ...]
Axes: TypeAlias = tuple[int, ...]
"""Axes are non-negative, in ascending order and without repetition when they reach a backend."""

Index: TypeAlias = tuple[int | slice, ...]
"""One entry an axis: an integer in range, or a slice whose bounds are in range and whose step is positive."""

Pair: TypeAlias = tuple[int, int]
"""A height and a width."""

Unary: TypeAlias = Callable[[Array], Array]
Binary: TypeAlias = Callable[[Array, Any], Array]
"""The right operand, or the left, may be a Python number; both broadcast as NumPy does."""

Reduction: TypeAlias = Callable[[Array, Axes, bool], Array]
"""`(x, axes, keepdims)`."""

ArgReduction: TypeAlias = Callable[[Array, int], Array]
"""`(x, axis)`, the axis removed; the first of equal values, and the first NaN before all."""

Arrays: TypeAlias = Sequence[Array]


def native(function: Callable[..., Any]) -> Any:
    """An engine's own function as an operation of a backend, whatever the engine says of its types."""
    return staticmethod(function)
