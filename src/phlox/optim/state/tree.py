"""Optimizer state: any structure of dicts, lists, tuples and dataclasses around tensors, numbers and plain values.

It is flattened into leaves, which change from step to step, and a skeleton, which does not; saving and compiling need
this. Modules are flattened into their parameters. Any other object with `into_record` and `load_record` is a leaf.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from enum import Enum
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from phlox.backend.kind import KINDS
from phlox.backend.pytree import DATACLASS, DEQUE, DICT, LIST, NAMED_TUPLE, TUPLE, container_of_class, field_names
from phlox.errors import OptimizerError
from phlox.module import Module, Param, ParamId
from phlox.module.own_records import saves_itself
from phlox.module.structure import build
from phlox.module.template import Template, aux_of
from phlox.optim.state.records import ARRAY, RAW_KEYS, constant, from_constant, from_key, key_of
from phlox.record import LazyTensor, Record
from phlox.tensor import Tensor

State: TypeAlias = Any
Skeleton: TypeAlias = Hashable
"""Nested tuples, which begin with the kind of the part: ("dict", keys, parts), ("leaf", type), ..."""

INTEGER, REAL, OBJECT = "integer", "real", "object"
_CONTAINERS = (LIST, NAMED_TUPLE, TUPLE, DEQUE, DICT)
"""Containers that are flattened in the same way; dataclasses come after modules and objects that save themselves."""
_INT, _REAL = ("leaf", INTEGER), ("leaf", REAL)
_SMALL = range(-(2**31), 2**31)
"""Integers that are inputs of a compiled function; other integers are constants."""


class Mastered:
    """The state of a parameter of half precision: its value at full precision, `master`, and the state beside it.

    `optimizer.states[id]["moment_1"]` works as without a master.
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
    """The state without its master, if there is one."""
    return state.state if isinstance(state, Mastered) else state


class SavedObject(NamedTuple):
    """The record of a module or object in a state, as loaded from a file; `init` gives the object to load it into."""

    name: str
    """The name of its class."""
    record: Record

    def into_record(self) -> Record:
        """The saved record."""
        return self.record


class ModuleParts:
    """The structure of a module in a state, without its tensors: equal for modules of equal structure."""

    __slots__ = ("ids", "template")

    def __init__(self, module: Module) -> None:
        aux = aux_of(module.structure())
        self.template: Template = aux.template
        self.ids: tuple[ParamId, ...] = aux.ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ModuleParts) and self.template is other.template

    def __hash__(self) -> int:
        return hash(self.template)

    def build(self, values: Iterable[Any]) -> Module:
        """A module of this structure around these tensors."""
        params: list[Param] = []
        marks = zip(self.template.marks, self.ids, values, strict=True)
        for (_, trained, trainable, full_precision), id, value in marks:
            param = Param(value, trained=trained, id=id, full_precision=full_precision)
            param.trainable = trainable
            params.append(param)
        return build(self.template.skeleton, params)


def flatten(state: State, leaves: list[Any], *, saving: bool = False) -> Skeleton:
    """Append the leaves of a state, tensors and numbers, and return its skeleton; `saving` modules are leaves, too."""
    cls = cast("type[Any]", type(state))
    if cls is Tensor or isinstance(state, LazyTensor):
        leaves.append(state)
        return ("leaf", state.kind if isinstance(state, LazyTensor) else state.kind.name)
    if state is None or cls is bool or cls is str:
        return ("plain", state)
    if cls is int:
        if state not in _SMALL:
            return constant(state)
        leaves.append(state)
        return _INT
    if cls is float:
        leaves.append(state)
        return _REAL
    if cls is dict and RAW_KEYS.issuperset(map(type, state)):
        return ("dict", tuple(state), tuple([flatten(part, leaves, saving=saving) for part in state.values()]))
    if isinstance(state, Mastered):
        return (
            "mastered",
            flatten(state.master, leaves, saving=saving),
            flatten(state.state, leaves, saving=saving),
        )
    if isinstance(state, SavedObject):
        leaves.append(state)
        return ("leaf", OBJECT, state.name)
    container = container_of_class(cls)
    if container is not None and container in _CONTAINERS:
        items = list(container.items(state))
        parts = tuple([flatten(part, leaves, saving=saving) for _, part in items])
        if container is DICT:
            return ("mapping", tuple([key_of(key) for key, _ in items]), parts, cls is OrderedDict)
        if container is DEQUE:
            return ("deque", parts, state.maxlen)
        return ("named", cls, parts) if container is NAMED_TUPLE else (container.name, parts)
    return _flatten_rare(state, cls, leaves, saving)


def _flatten_rare(state: Any, cls: type[Any], leaves: list[Any], saving: bool) -> Skeleton:
    if isinstance(state, Module) and not saving:
        params = state.params()
        leaves += [param.val().detach() for param in params]
        return ("module", ModuleParts(state), tuple([("leaf", param.kind.name) for param in params]))
    if saves_itself(cls) or isinstance(state, Module):
        leaves.append(state)
        return ("leaf", OBJECT, cls.__qualname__)
    if isinstance(state, np.ndarray):
        array = cast("np.ndarray[Any, Any]", state)
        leaves.append(array)
        return ("leaf", ARRAY, array.dtype.str, array.shape)
    if isinstance(state, np.generic) and (scalar := cast("np.generic[Any]", state)).dtype.kind in "iuf":
        number: Any = scalar.item()
        if isinstance(number, float) or (isinstance(number, int) and number in _SMALL):
            leaves.append(number)
            return ("leaf", REAL if isinstance(number, float) else INTEGER, scalar.dtype.name)
    if isinstance(state, (Enum, np.generic, bytes, bytearray, complex, set, frozenset, int, str)):
        return constant(cast("Any", state))
    if isinstance(state, float):
        leaves.append(float(state))
        return _REAL
    if _is_dataclass(state):
        names = _fields_of(state)
        return (
            "dataclass",
            cls,
            names,
            tuple([flatten(getattr(state, name), leaves, saving=saving) for name in names]),
        )
    if getattr(state, "ndim", None) == 0:  # the tracer of a number in a compiled function
        leaves.append(state)
        return _REAL if "float" in str(state.dtype) else _INT
    raise OptimizerError(
        "optimizer state may hold tensors, NumPy arrays, numbers, strings, bytes, enums, None, modules, objects with "
        "into_record and load_record, and dicts, lists, tuples, sets and dataclasses of these, got "
        f"{cls.__name__}"
    )


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields_of(value: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*field_names(value), *getattr(value, "__dict__", {})]))


def unflatten(skeleton: Any, leaves: Iterator[Any]) -> State:
    """The state with this skeleton around these leaves."""
    match skeleton[0]:
        case "leaf":
            leaf = next(leaves)
            return leaf if len(skeleton) == 2 else _scalar(skeleton, leaf)
        case "dict":
            return {key: unflatten(part, leaves) for key, part in zip(skeleton[1], skeleton[2], strict=True)}
        case "plain":
            return skeleton[1]
        case "mastered":
            return Mastered(unflatten(skeleton[1], leaves), unflatten(skeleton[2], leaves))
        case "list":
            return [unflatten(part, leaves) for part in skeleton[1]]
        case "tuple":
            return tuple([unflatten(part, leaves) for part in skeleton[1]])
        case _:
            return _unflatten_rare(skeleton, leaves)


def _scalar(skeleton: Any, leaf: Any) -> Any:
    """A NumPy number if the skeleton says so; other leaves unchanged."""
    is_numpy_number = skeleton[1] in (INTEGER, REAL) and isinstance(leaf, (int, float))
    return np.dtype(skeleton[2]).type(leaf) if is_numpy_number else leaf


def _unflatten_rare(skeleton: Any, leaves: Iterator[Any]) -> State:
    match skeleton[0]:
        case "mapping":
            parts: Any = [(from_key(key), unflatten(part, leaves)) for key, part in _pairs(skeleton)]
            return OrderedDict(parts) if skeleton[3] else dict(parts)
        case "named":
            return NAMED_TUPLE.make(skeleton[1], (), [unflatten(part, leaves) for part in skeleton[2]])
        case "deque":
            return deque([unflatten(part, leaves) for part in skeleton[1]], skeleton[2])
        case "dataclass":
            return DATACLASS.make(skeleton[1], skeleton[2], [unflatten(part, leaves) for part in skeleton[3]])
        case "module":
            return skeleton[1].build([next(leaves) for _ in skeleton[2]])
        case "constant":
            return from_constant(skeleton)
        case _:
            raise ValueError(f"unknown part {skeleton[0]!r}")


def _pairs(skeleton: Any, index: int = 1) -> Iterator[tuple[Any, Any]]:
    return zip(skeleton[index], skeleton[index + 1], strict=True)


def paths(skeleton: Any) -> Iterator[tuple[str, str]]:
    """The path of every leaf, and its type: the kind of a tensor, "integer", "real", "array" or "object"."""
    return ((path, kind) for path, kind, *_ in leaves_of(skeleton))


def leaves_of(skeleton: Any, prefix: str = "") -> Iterator[tuple[Any, ...]]:
    """As `paths`, with the other data in the skeleton about each leaf."""
    match skeleton[0]:
        case "leaf":
            yield prefix.lstrip("."), *skeleton[1:]
            return
        case "dict" | "mapping":
            named_parts = zip(_names(skeleton[1]), skeleton[2], strict=True)
        case "list" | "tuple" | "deque":
            named_parts = enumerate(skeleton[1])
        case "named":
            named_parts = enumerate(skeleton[2])
        case "dataclass":
            named_parts = _pairs(skeleton, 2)
        case "module":
            named_parts = zip(skeleton[1].template.paths, skeleton[2], strict=True)
        case "mastered":
            named_parts = zip(("master", "state"), skeleton[1:], strict=True)
        case _:
            return
    for name, part in named_parts:
        yield from leaves_of(part, f"{prefix}.{name}")


def _names(keys: tuple[Any, ...]) -> list[str]:
    """The names of keys in paths: their text, or their number if the text is not a name or not unique."""
    names = [str(key) if not isinstance(key, tuple) else "" for key in keys]
    return [
        name if all(name.split(".")) and names.count(name) == 1 else f"[{index}]" for index, name in enumerate(names)
    ]


def with_plain_numbers(skeleton: Any) -> Skeleton:
    """The skeleton with Python numbers in place of NumPy's, because a program cannot tell them apart."""
    if not isinstance(skeleton, tuple):
        return skeleton
    parts = cast("tuple[Any, ...]", skeleton)
    if parts[:1] == ("leaf",):
        return parts[:2] if parts[1] in (INTEGER, REAL) else parts
    return tuple([with_plain_numbers(part) for part in parts])


def fits(kind: str, leaf: Any) -> bool:
    """Is this leaf, from a record, of the type that the skeleton says?"""
    if kind in KINDS:
        return isinstance(leaf, LazyTensor) and leaf.kind == kind
    expected = int if kind == INTEGER else float
    return isinstance(leaf, expected) and not isinstance(leaf, bool)


def mismatch(fresh: State, state: State) -> str | None:
    """The first difference (entries, kinds, shapes) between a state and a fresh one; None if there is none.

    States may grow, so a list may be longer. If the fresh state is None, any state fits.
    """
    if fresh is None:
        return None
    if isinstance(fresh, dict):
        expected = cast("dict[Any, Any]", fresh)
        if not isinstance(state, dict) or set(expected) != set(cast("dict[Any, Any]", state)):
            return f"expected {', '.join(map(str, expected))}, found {_described(state)}"
        return next(
            (f"{key}: {problem}" for key, part in expected.items() if (problem := mismatch(part, state[key]))), None
        )
    if isinstance(fresh, Tensor):
        if not isinstance(state, (Tensor, LazyTensor)) or _kind_and_shape(state) != _kind_and_shape(fresh):
            return f"expected {_described(fresh)}, found {_described(state)}"
        return None
    if isinstance(fresh, (list, tuple)) and not isinstance(state, (list, tuple)):
        return f"expected a {type(cast('object', fresh)).__name__}, found {_described(state)}"
    return _dataclass_mismatch(fresh, state) if _is_dataclass(fresh) else None


def _dataclass_mismatch(fresh: Any, state: Any) -> str | None:
    if type(state) is not type(fresh):
        return f"expected a {type(fresh).__name__}, found {_described(state)}"
    differences = ((name, mismatch(getattr(fresh, name), getattr(state, name, None))) for name in _fields_of(fresh))
    return next((f"{name}: {difference}" for name, difference in differences if difference), None)


def _kind_and_shape(leaf: Any) -> tuple[str, tuple[int, ...]]:
    return leaf.kind if isinstance(leaf, LazyTensor) else leaf.kind.name, leaf.shape


def _described(state: State) -> str:
    if isinstance(state, (Tensor, LazyTensor)):
        kind, shape = _kind_and_shape(state)
        return f"{kind.capitalize()} of shape {shape}"
    if isinstance(state, dict):
        return ", ".join(map(str, cast("dict[Any, Any]", state))) or "nothing"
    return type(state).__name__


def map_tensors(state: State, fn: Callable[[Any], Any]) -> State:
    """The state with `fn(tensor)` in place of every tensor."""
    leaves: list[Any] = []
    skeleton = flatten(state, leaves)
    return unflatten(skeleton, iter([fn(x) if isinstance(x, (Tensor, LazyTensor)) else x for x in leaves]))


def load_modules(fresh: State, state: State) -> State:
    """A state from a record, with its modules and objects loaded into those of a fresh state.

    Raises `OptimizerError` if the fresh state has no module or object at the same path.
    """
    if isinstance(state, SavedObject):
        if not (isinstance(fresh, Module) or saves_itself(cast("Any", type(fresh)))):
            raise OptimizerError(
                f"the record holds a {state.name}, but `init` of the optimizer gives {type(fresh).__name__}, which "
                f"cannot load its record; let init return a {state.name}"
            )
        fresh.load_record(state.record)
        return fresh
    if isinstance(state, Mastered):
        return Mastered(state.master, load_modules(fresh, state.state))
    if isinstance(state, dict):
        begun = cast("dict[Any, Any]", fresh if isinstance(fresh, dict) else {})
        parts = [(key, load_modules(begun.get(key), part)) for key, part in cast("dict[Any, Any]", state).items()]
        return OrderedDict(parts) if isinstance(state, OrderedDict) else dict(parts)
    if isinstance(state, (list, tuple, deque)):
        return _load_modules_in_order(fresh, cast("Any", state))
    if _is_dataclass(state):
        names = _fields_of(state)
        parts = [load_modules(getattr(fresh, name, None), getattr(state, name)) for name in names]
        return DATACLASS.make(cast("Any", type(state)), names, parts)
    return state


def _load_modules_in_order(fresh: Any, state: Any) -> Any:
    fresh_parts: list[Any] = list(cast("Any", fresh)) if isinstance(fresh, (list, tuple, deque)) else []
    fresh_parts += [None] * max(0, len(state) - len(fresh_parts))
    loaded = [load_modules(fresh_part, part) for fresh_part, part in zip(fresh_parts, state, strict=False)]
    if isinstance(state, deque):
        return deque(loaded, state.maxlen)
    if isinstance(state, list):
        return loaded
    # Files of earlier versions do not say that a tuple is a named tuple.
    as_fresh = type(state) is tuple and isinstance(fresh, tuple) and len(fresh_parts) == len(loaded)
    return NAMED_TUPLE.make(cast("Any", type(cast("object", fresh if as_fresh else state))), (), loaded)
