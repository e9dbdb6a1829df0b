"""Calls of composite operations, and parsing of their options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

from phlox.backend import Float
from phlox.backend.tracing.dimension import as_size, larger
from phlox.backend.tracing.symbolic import any_less, less
from phlox.errors import KindError, ShapeError
from phlox.tensor.functional.operands import compute
from phlox.tensor.tensor import Tensor

Sizes: TypeAlias = int | Sequence[int]
"""One integer per spatial axis, or one for all."""

Padding: TypeAlias = int | str | Sequence[int | Sequence[int]]
"""Padding: an integer, one per axis, or a pair (before, after) per axis; or "same" or "valid"."""


def hashable(option: Any) -> Any:
    """An option with lists converted to tuples, so that it can be a cache key."""
    return tuple(map(hashable, cast("Sequence[Any]", option))) if isinstance(option, (list, tuple)) else option


def sizes(name: str, option: str, value: Sizes, axes: int, least: int) -> tuple[int, ...]:
    """An option as one integer per axis, each at least `least`."""
    try:
        per_axis = tuple(map(as_size, value)) if isinstance(value, Sequence) else (as_size(value),) * axes
    except TypeError:
        per_axis = ()
    if len(per_axis) != axes or any_less(per_axis, least):
        count = "one integer" if axes == 1 else f"one or {axes} integers"
        raise ShapeError(f"{name}: {option} must be {count} of at least {least}, got {value!r}")
    return per_axis


def pad_pairs(
    name: str,
    value: Padding,
    input_sizes: tuple[int, ...],
    reach: tuple[int, ...],
    stride: tuple[int, ...],
) -> tuple[tuple[int, int], ...]:
    """A padding as a pair (before, after) per axis.

    "valid" is no padding. "same" pads to a result of size ceil(size / stride), as evenly as possible; an odd element
    goes after. `reach` are the sizes of the dilated window.
    """
    axes = len(input_sizes)
    if value == "valid":
        return ((0, 0),) * axes
    if value == "same":
        spare = [larger((-(-n // s) - 1) * s + r - n, 0) for n, r, s in zip(input_sizes, reach, stride, strict=True)]
        return tuple((total // 2, total - total // 2) for total in spare)
    if isinstance(value, str):
        raise ShapeError(f'{name}: a padding string must be "same" or "valid", got {value!r}')
    try:
        if isinstance(value, Sequence):
            pairs = [tuple(map(as_size, e)) if isinstance(e, Sequence) else (as_size(e),) * 2 for e in value]
        else:
            pairs = [(as_size(value),) * 2] * axes
    except TypeError:
        pairs = []
    if len(pairs) != axes or any(len(pair) != 2 or less(pair[0], 0) or less(pair[1], 0) for pair in pairs):
        example = "((1, 2),)" if axes == 1 else f"({', '.join(['(1, 2)'] * axes)})"
        raise ShapeError(
            f"{name}: padding must be an integer of at least 0, one per axis, or a pair (before, after) per axis, "
            f"such as {example}; got {value!r}"
        )
    return cast("tuple[tuple[int, int], ...]", tuple(pairs))


def call(name: str, x: Tensor[Any, Any, Any], *arguments: Any, operation: str | None = None) -> Tensor[Any, Any, Any]:
    """Call the composite `operation` (by default `name`) on Float tensors, promoted to one backend."""
    for argument in (x, *arguments):
        if isinstance(argument, Tensor):
            kind = cast("Tensor[Any, Any, Any]", argument).kind
            if kind is not Float:
                raise KindError(f"{name} takes Float tensors, got {kind.__name__}; convert with .float() first")
        elif hasattr(argument, "__array__"):
            raise KindError(f"{name} takes tensors, got an array; make it a tensor with phlox.tensor(...)")
    return compute(name, x, *arguments, operation=operation)
