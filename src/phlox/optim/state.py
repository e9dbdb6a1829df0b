"""Optimizer state: any structure of dicts, lists and tuples around tensors, numbers, strings and None.

It is taken apart into its leaves, which change from step to step, and a skeleton, which does not: that is what saving
it and compiling a step both need.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeAlias, cast

from phlox.backend.kind import KINDS
from phlox.errors import OptimizerError
from phlox.record import LazyTensor
from phlox.tensor import Tensor

State: TypeAlias = Any
Skeleton: TypeAlias = Hashable
"""Nested tuples, the first entry of each saying what it stands for: ("dict", keys, parts), ("leaf", type), ..."""

INTEGER, REAL = "integer", "real"
_INT, _REAL = ("leaf", INTEGER), ("leaf", REAL)


class Mastered:
    """The state of a parameter of half precision: its value at full precision, `master`, and the state beside it.

    `optimizer.states[id]["moment_1"]` reads the same as where there is no master.
    """

    __slots__ = ("master", "state")

    def __init__(self, master: Any, state: State) -> None:
        self.master = master
        self.state = state

    def __getitem__(self, key: Any) -> Any:
        return self.state[key]

    def __repr__(self) -> str:
        return f"Mastered({self.master!r}, {self.state!r})"


def unmastered(state: State) -> State:
    """The state beside the master, where there is one."""
    return state.state if isinstance(state, Mastered) else state


def flatten(state: State, leaves: list[Any]) -> Skeleton:
    """Append the leaves of a state, tensors and numbers, and return its skeleton."""
    if isinstance(state, (Tensor, LazyTensor)):
        leaves.append(state)
        return ("leaf", state.kind if isinstance(state, LazyTensor) else state.kind.name)
    if state is None or isinstance(state, (bool, str)):
        return ("plain", state)
    if isinstance(state, dict):
        parts = cast("dict[Any, Any]", state)
        return ("dict", tuple(parts), tuple(flatten(part, leaves) for part in parts.values()))
    if isinstance(state, Mastered):
        return ("mastered", flatten(state.master, leaves), flatten(state.state, leaves))
    if isinstance(state, (list, tuple)):
        name = "list" if isinstance(state, list) else "tuple"
        return (name, tuple(flatten(part, leaves) for part in cast("list[Any]", state)))
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
        case "mastered":
            return Mastered(unflatten(skeleton[1], leaves), unflatten(skeleton[2], leaves))
        case "plain":
            return skeleton[1]
        case "leaf":
            return next(leaves)
        case _:
            raise ValueError(f"unknown part {skeleton[0]!r}")


def paths(skeleton: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The path of every leaf, and its type: a tensor's kind, "integer" or "real"."""
    match skeleton[0]:
        case "dict":
            for key, part in zip(skeleton[1], skeleton[2], strict=True):
                yield from paths(part, f"{prefix}.{key}")
        case "list" | "tuple":
            for place, part in enumerate(skeleton[1]):
                yield from paths(part, f"{prefix}.{place}")
        case "mastered":
            yield from paths(skeleton[1], f"{prefix}.master")
            yield from paths(skeleton[2], f"{prefix}.state")
        case "leaf":
            yield prefix.lstrip("."), skeleton[1]
        case _:
            return


def to_plain(skeleton: Any) -> Any:
    """The skeleton as a value that a record can hold."""
    return [to_plain(part) for part in cast("tuple[Any, ...]", skeleton)] if isinstance(skeleton, tuple) else skeleton


def from_plain(value: Any) -> Any:
    """The inverse of `to_plain`."""
    return tuple(from_plain(part) for part in cast("list[Any]", value)) if isinstance(value, list) else value


def fits(kind: str, leaf: Any) -> bool:
    """Is this leaf, from a record, of the type that the skeleton says?"""
    if kind in KINDS:
        return isinstance(leaf, LazyTensor) and leaf.kind == kind
    number = int if kind == INTEGER else float
    return isinstance(leaf, number) and not isinstance(leaf, bool)


def mismatch(fresh: State, state: State) -> str | None:
    """What tells a state from one that a fresh optimizer would begin with, if anything: entries, kinds, shapes.

    States may grow, so a list may be longer; an optimizer that begins with None may have any.
    """
    if fresh is None:
        return None
    if isinstance(fresh, dict):
        expected = cast("dict[Any, Any]", fresh)
        if not isinstance(state, dict) or set(expected) != set(cast("dict[Any, Any]", state)):
            return f"expected {', '.join(map(str, expected))}, found {_described(state)}"
        return next(
            (f"{key}: {wrong}" for key, part in expected.items() if (wrong := mismatch(part, state[key]))), None
        )
    if isinstance(fresh, Tensor):
        if not isinstance(state, (Tensor, LazyTensor)) or _built(state) != _built(fresh):
            return f"expected {_described(fresh)}, found {_described(state)}"
        return None
    if isinstance(fresh, (list, tuple)) and not isinstance(state, (list, tuple)):
        return f"expected a {type(cast('object', fresh)).__name__}, found {_described(state)}"
    return None


def _built(leaf: Any) -> tuple[str, tuple[int, ...]]:
    return leaf.kind if isinstance(leaf, LazyTensor) else leaf.kind.name, leaf.shape


def _described(state: State) -> str:
    if isinstance(state, (Tensor, LazyTensor)):
        kind, shape = _built(state)
        return f"{kind.capitalize()} of shape {shape}"
    if isinstance(state, dict):
        return ", ".join(map(str, cast("dict[Any, Any]", state))) or "nothing"
    return type(state).__name__


def map_tensors(state: State, fn: Callable[[Any], Any]) -> State:
    """The state with `fn` of every tensor."""
    leaves: list[Any] = []
    skeleton = flatten(state, leaves)
    return unflatten(skeleton, iter([fn(x) if isinstance(x, (Tensor, LazyTensor)) else x for x in leaves]))
