"""Optimizer state: any structure of dicts, lists and tuples around tensors, numbers, strings and None.

It is taken apart into its leaves, which change from step to step, and a skeleton, which does not: that is what saving it
and compiling a step both need.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeAlias

from phlox.errors import OptimizerError
from phlox.record import LazyTensor
from phlox.tensor import Tensor

State: TypeAlias = Any
Skeleton: TypeAlias = Hashable
"""Nested tuples, the first entry of each saying what it stands for: ("dict", keys, parts), ("leaf", type), ..."""

_INT, _REAL = ("leaf", "integer"), ("leaf", "real")


def flatten(state: State, leaves: list[Any]) -> Skeleton:
    """Append the leaves of a state, tensors and numbers, and return its skeleton."""
    if isinstance(state, (Tensor, LazyTensor)):
        leaves.append(state)
        return ("leaf", state.kind if isinstance(state, LazyTensor) else state.kind.name)
    if state is None or isinstance(state, (bool, str)):
        return ("plain", state)
    if isinstance(state, dict):
        keys = tuple(state)  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
        return ("dict", keys, tuple(flatten(part, leaves) for part in state.values()))  # pyright: ignore
    if isinstance(state, (list, tuple)):
        name = "list" if isinstance(state, list) else "tuple"
        return (name, tuple(flatten(part, leaves) for part in state))  # pyright: ignore[reportUnknownVariableType]
    if isinstance(state, int):
        leaves.append(state)
        return _INT
    if isinstance(state, float) or getattr(state, "ndim", None) == 0:  # a number, or a compiled function's stand-in
        leaves.append(state)
        return _REAL if isinstance(state, float) or "float" in str(state.dtype) else _INT
    raise OptimizerError(
        f"optimizer state may hold tensors, numbers, strings, None, dicts, lists and tuples, got {type(state).__name__}"
    )


def unflatten(skeleton: Any, leaves: Iterator[Any]) -> State:
    """The state with this skeleton around these leaves."""
    match skeleton[0]:
        case "dict":
            return {key: unflatten(part, leaves) for key, part in zip(skeleton[1], skeleton[2], strict=True)}
        case "list":
            return [unflatten(part, leaves) for part in skeleton[1]]
        case "tuple":
            return tuple(unflatten(part, leaves) for part in skeleton[1])
        case "plain":
            return skeleton[1]
        case _:
            return next(leaves)


def paths(skeleton: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The path of every leaf, and its type: a tensor's kind, "integer" or "real"."""
    match skeleton[0]:
        case "dict":
            for key, part in zip(skeleton[1], skeleton[2], strict=True):
                yield from paths(part, f"{prefix}.{key}")
        case "list" | "tuple":
            for place, part in enumerate(skeleton[1]):
                yield from paths(part, f"{prefix}.{place}")
        case "plain":
            return
        case _:
            yield prefix.lstrip("."), skeleton[1]


def to_plain(skeleton: Any) -> Any:
    """The skeleton as a value that a record can hold."""
    return [to_plain(part) for part in skeleton] if isinstance(skeleton, tuple) else skeleton


def from_plain(value: Any) -> Any:
    """The inverse of `to_plain`."""
    return tuple(from_plain(part) for part in value) if isinstance(value, list) else value


def map_tensors(state: State, fn: Callable[[Any], Any]) -> State:
    """The state with `fn` of every tensor."""
    leaves: list[Any] = []
    skeleton = flatten(state, leaves)
    return unflatten(skeleton, iter([fn(x) if isinstance(x, (Tensor, LazyTensor)) else x for x in leaves]))
