"""Tensors in lists, tuples and dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from phlox.tensor import Tensor
from phlox.transform.reading import same_sequence

AnyTensor: TypeAlias = Tensor[Any, Any, Any]


def map_tensors(fn: Callable[[AnyTensor], Any], value: Any) -> Any:
    """The same structure of lists, tuples and dicts with `fn(tensor)` in place of each tensor."""
    if isinstance(value, Tensor):
        return fn(cast("AnyTensor", value))
    if isinstance(value, dict):
        return {key: map_tensors(fn, one) for key, one in cast("dict[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        sequence = cast("list[Any]", value)
        return same_sequence(type(sequence), [map_tensors(fn, one) for one in sequence])
    return value


def tensors_of(value: Any) -> list[AnyTensor]:
    """The tensors in a structure, in order."""
    found: list[AnyTensor] = []
    map_tensors(found.append, value)
    return found
