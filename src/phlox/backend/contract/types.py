"""Shapes of the functions that a backend is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from phlox.backend.kind import Kind

Array: TypeAlias = Any
"""A backend's own array: `numpy.ndarray`, `jax.Array`, `torch.Tensor`, or what a decorator makes of one."""

Shape: TypeAlias = tuple[int, ...]
Axes: TypeAlias = tuple[int, ...]
"""Axes are non-negative, in ascending order and without repetition when they reach a backend."""

Index: TypeAlias = tuple[int | slice, ...]
"""One entry an axis: an integer in range, or a slice whose bounds are in range and whose step is positive."""

Widths: TypeAlias = tuple[tuple[int, int], ...]
"""A pair (before, after) an axis."""

Kinds: TypeAlias = type[Kind] | tuple[type[Kind], ...]
"""The kind of a result, or those of several."""

Needed: TypeAlias = tuple[bool, ...]
"""For each operand: does anybody ask for its gradient?"""

Gradients: TypeAlias = tuple[Array | None, ...]
"""One gradient an operand."""

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
