"""How composites are called, and what their options may be."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, TypeAlias, cast

from phlox.backend import Float
from phlox.errors import KindError, ShapeError
from phlox.tensor.functional.operands import compute
from phlox.tensor.tensor import Tensor

Sizes: TypeAlias = int | Sequence[int]
"""One number a spatial axis, or one for all."""

Padding: TypeAlias = int | str | Sequence[int | Sequence[int]]
"""How much is added around: a number, one an axis, or a pair (before, after) an axis; or "same" or "valid"."""


def fixed(option: Any) -> Any:
    """An option whose lists have become tuples, so that what follows from it can be remembered."""
    return tuple(map(fixed, cast("Sequence[Any]", option))) if isinstance(option, (list, tuple)) else option


def sizes(name: str, what: str, value: Sizes, axes: int, least: int) -> tuple[int, ...]:
    """An option as one integer of at least `least` an axis."""
    try:
        found = tuple(map(index, value)) if isinstance(value, Sequence) else (index(value),) * axes
    except TypeError:
        found = ()
    if len(found) != axes or min(found) < least:
        count = "one integer" if axes == 1 else f"one or {axes} integers"
        raise ShapeError(f"{name}: {what} must be {count} of at least {least}, got {value!r}")
    return found


def widths(
    name: str,
    value: Padding,
    have: tuple[int, ...],
    reach: tuple[int, ...],
    stride: tuple[int, ...],
) -> tuple[tuple[int, int], ...]:
    """A padding as a pair (before, after) an axis.

    "valid" adds nothing. "same" adds what makes the result ceil(size / stride) long, as evenly as may be and the odd
    one after; `have` are the sizes, and `reach` is how far a window reaches.
    """
    axes = len(have)
    if value == "valid":
        return ((0, 0),) * axes
    if value == "same":
        spare = [max((-(-n // s) - 1) * s + r - n, 0) for n, r, s in zip(have, reach, stride, strict=True)]
        return tuple((total // 2, total - total // 2) for total in spare)
    if isinstance(value, str):
        raise ShapeError(f'{name}: padding by name is "same" or "valid", got {value!r}')
    try:
        if isinstance(value, Sequence):
            found = [tuple(map(index, e)) if isinstance(e, Sequence) else (index(e),) * 2 for e in value]
        else:
            found = [(index(value),) * 2] * axes
    except TypeError:
        found = []
    if len(found) != axes or any(len(pair) != 2 or min(pair) < 0 for pair in found):
        example = "((1, 2),)" if axes == 1 else f"({', '.join(['(1, 2)'] * axes)})"
        raise ShapeError(
            f"{name}: padding must be a number of at least 0, one an axis, or a pair (before, after) an axis, "
            f"such as {example}; got {value!r}"
        )
    return cast("tuple[tuple[int, int], ...]", tuple(found))


def call(name: str, x: Tensor[Any, Any, Any], *arguments: Any, operation: str | None = None) -> Tensor[Any, Any, Any]:
    """Call a composite, `operation` where it is not called `name`; tensors beside `x` must be Float too.

    All are brought to one backend.
    """
    for argument in (x, *arguments):
        if isinstance(argument, Tensor):
            kind = cast("Tensor[Any, Any, Any]", argument).kind
            if kind is not Float:
                raise KindError(f"{name} takes Float tensors, got {kind.__name__}; convert with .float() first")
        elif hasattr(argument, "__array__"):
            raise KindError(f"{name} takes tensors, got a bare array; make it a tensor with phlox.tensor(...)")
    return compute(name, x, *arguments, operation=operation)
