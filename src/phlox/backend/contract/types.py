"""The types of a backend's functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from phlox.backend.kind import Kind

Array: TypeAlias = Any
"""A backend's own array: `numpy.ndarray`, `jax.Array`, `torch.Tensor`, or a decorator's box around one."""

Shape: TypeAlias = tuple[int, ...]
Axes: TypeAlias = tuple[int, ...]
"""Axes are non-negative, in ascending order and without repetition when they reach a backend."""

Index: TypeAlias = tuple[int | slice, ...]
"""One entry for each axis: an integer in range, or a slice with bounds in range and a positive step."""

Widths: TypeAlias = tuple[tuple[int, int], ...]
"""A pair (before, after) for each axis."""

Kinds: TypeAlias = type[Kind] | tuple[type[Kind], ...]
"""The kind of a result, or the kinds of several results."""

Needed: TypeAlias = tuple[bool, ...]
"""For each operand: is its gradient needed?"""

Gradients: TypeAlias = tuple[Array | None, ...]
"""One gradient for each operand."""

Unary: TypeAlias = Callable[[Array], Array]
Binary: TypeAlias = Callable[[Array, Any], Array]
"""One of the operands may be a Python scalar; they broadcast as in NumPy."""

Reduction: TypeAlias = Callable[[Array, Axes, bool], Array]
"""`(x, axes, keepdims)`."""

ArgReduction: TypeAlias = Callable[[Array, int], Array]
"""`(x, axis)`, the axis removed; the first NaN, or else the first of equal values."""

Scan: TypeAlias = Callable[[Array, int], Array]
"""`(x, axis)`: each element combined with those before it."""

Arrays: TypeAlias = Sequence[Array]


def native(function: Callable[..., Any]) -> Any:
    """An engine's own function as an operation of a backend, typed as Any."""
    return staticmethod(function)
