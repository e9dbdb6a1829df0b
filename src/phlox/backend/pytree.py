"""PyTrees: the classes that are nodes, and the one table of containers by which every walk over values goes.

Only an engine's own files import the engine; so classes are registered here, and an engine takes them over once it is
imported.

The arguments and results of functions, the states of optimizers and the fields of modules are containers (lists,
tuples, dicts, dataclasses) around leaves. What a leaf is, and which containers are walked through, each of these says
for itself; how a container is taken apart, how a path goes on into it, and how it is built again around other parts
stands in its `Container`.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias, cast


class StructureSerializer(NamedTuple):
    """How the structure of a node is written to the file of an exported program, and read back."""

    to_bytes: Callable[[Any], bytes]
    from_bytes: Callable[[bytes], Any]
    shell: Callable[[Any, Iterable[Any]], Any]
    """From (structure, leaves), for a structure that was read back: a node with both."""


class PyTreeNode(NamedTuple):
    """How a class is flattened and unflattened."""

    cls: type[Any]
    flatten: Callable[[Any], tuple[Iterable[Any], Any]]
    """To (leaves, structure); the structure is hashable and comparable."""
    unflatten: Callable[[Any, Iterable[Any]], Any]
    """From (structure, leaves); leaves may be tracers of any type."""
    flatten_with_keys: Callable[[Any], tuple[Iterable[tuple[tuple[str, Any], Any]], Any]] | None = None
    """To (((kind, key), leaf), ...) and the structure; the kinds are those below."""
    serializer: StructureSerializer | None = None
    """How the structure is written to a file."""


FIELD, INDEX, ITEM = "field", "index", "item"
"""Kinds of keys: `.name`, `[0]`, `['key']`."""

_nodes: list[PyTreeNode] = []
_listeners: list[Callable[[PyTreeNode], None]] = []


def register_node(node: PyTreeNode) -> None:
    """Register a class as a PyTree node; its subclasses are registered by themselves."""
    _nodes.append(node)
    for listener in _listeners:
        listener(node)


def node_of(cls: type[Any]) -> PyTreeNode:
    """How a class that was registered is flattened; `LookupError` for another."""
    for node in reversed(_nodes):
        if issubclass(cls, node.cls):
            return node
    raise LookupError(f"{cls.__name__} is no PyTree node")


def register_with_imported_engines() -> None:
    """Register with an engine that the user has imported, though no backend of Phlox has needed it yet."""
    if sys.modules.get("jax") is not None and "phlox.backend.jax" not in sys.modules:
        import_module("phlox.backend.jax")


def add_listener(listener: Callable[[PyTreeNode], None]) -> None:
    """Call the listener for all classes registered so far and from now on."""
    for node in _nodes:
        listener(node)
    _listeners.append(listener)


def _nothing() -> Any:
    return None


_asked: list[Callable[[], Any]] = [_nothing, _nothing]


def transformation() -> Callable[[], Any] | None:
    """The innermost transformation of JAX's that is under way in this thread, as a weak reference; None if none is."""
    return _asked[0]()


keeping: set[int] = set()
"""The threads in which JAX takes a result apart now, to build the results of all later calls with its structure."""


def is_differentiating() -> bool:
    """Does `jax.grad` or its kin take a tree apart now, to look at what they differentiate towards?"""
    return _asked[1]()


def ask(*questions: Callable[[], Any]) -> None:
    """What these two ask from now on: JAX's own files say it, once JAX is there."""
    _asked[:] = questions


# --- containers


@dataclass(frozen=True, slots=True, eq=False)
class Container:
    """A kind of container."""

    name: str
    matches: Callable[[type[Any]], bool]
    """Is a class of this kind?"""
    items: Callable[[Any], Iterable[tuple[Any, Any]]]
    """The parts, each with its key."""
    label: Callable[[Any], str]
    """How the path goes on to the part under a key."""
    build: Callable[[Any, list[Any]], Any]
    """A container like the given one around other parts, in the order of its items."""
    make: Callable[[type[Any], Sequence[Any], list[Any]], Any]
    """From (class, keys, parts), where there is none like it: no code of a class that a file may name is run."""


def _is_named_tuple(cls: type[Any]) -> bool:
    return issubclass(cls, tuple) and hasattr(cast("Any", cls), "_fields")


def _make_list(cls: type[Any], keys: Sequence[Any], parts: list[Any]) -> Any:
    if cls is list:
        return parts
    made = list.__new__(cls)
    made.extend(parts)
    return made


def _make_tuple(cls: type[Any], keys: Sequence[Any], parts: list[Any]) -> Any:
    make: Any = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return make(cls, parts)


def _build_dict(like: dict[Any, Any], parts: list[Any]) -> Any:
    items = zip(like, parts, strict=True)
    if type(like) is dict:
        return dict(items)
    twin = copy.copy(like)  # what else it is, of a default or an order, stays
    twin.update(items)
    return twin


def field_names(value: Any) -> list[str]:
    """The fields of a dataclass that are set: of a slot or a default that never was there is nothing to hold."""
    return [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]


def _build_dataclass(like: Any, parts: list[Any]) -> Any:
    twin = copy.copy(like)  # whose `__post_init__` is not asked again
    for name, part in zip(field_names(like), parts, strict=True):
        object.__setattr__(twin, name, part)
    return twin


def _make_dataclass(cls: type[Any], keys: Sequence[Any], parts: list[Any]) -> Any:
    made = object.__new__(cls)
    for name, part in zip(keys, parts, strict=True):
        object.__setattr__(made, name, part)
    return made


def _in_brackets(key: Any) -> str:
    return f"[{key!r}]"


LIST = Container(
    "list", lambda cls: issubclass(cls, list), enumerate, _in_brackets,
    build=lambda like, parts: type(like)(parts), make=_make_list,
)  # fmt: skip
NAMED_TUPLE = Container(
    "named tuple", _is_named_tuple, enumerate, _in_brackets,
    build=lambda like, parts: type(like)(*parts), make=_make_tuple,
)  # fmt: skip
TUPLE = Container(
    "tuple", lambda cls: issubclass(cls, tuple), enumerate, _in_brackets,
    build=lambda like, parts: type(like)(parts), make=_make_tuple,
)  # fmt: skip
DEQUE = Container(
    "deque", lambda cls: issubclass(cls, deque), enumerate, _in_brackets,
    build=lambda like, parts: deque(parts, like.maxlen), make=lambda cls, keys, parts: deque(parts),
)  # fmt: skip
DICT = Container(
    "dict", lambda cls: issubclass(cls, dict), lambda value: value.items(), _in_brackets,
    build=_build_dict, make=lambda cls, keys, parts: cls(zip(keys, parts, strict=True)),
)  # fmt: skip
DATACLASS = Container(
    "dataclass", dataclasses.is_dataclass, lambda value: [(name, getattr(value, name)) for name in field_names(value)],
    lambda key: f".{key}", build=_build_dataclass, make=_make_dataclass,
)  # fmt: skip

_containers: list[Container] = [LIST, NAMED_TUPLE, TUPLE, DEQUE, DICT, DATACLASS]


def register_container(container: Container) -> None:
    """Add a kind of container, which comes before those that are there."""
    _containers.insert(0, container)
    container_of_class.cache_clear()


@lru_cache(maxsize=4096)
def container_of_class(cls: type[Any]) -> Container | None:
    """What kind of container the instances of a class are; None if they are none."""
    return next((container for container in _containers if container.matches(cls)), None)


def shell_of(container: Container, value: Any, count: int) -> Any:
    """A container like the given one that holds nothing of it, for `build`."""
    empty = [None] * count
    if isinstance(value, (list, tuple)):
        return container.make(cast("type[Any]", type(cast("object", value))), (), empty)
    return container.build(value, empty)


Build: TypeAlias = Callable[[Iterator[Any]], Any]
"""A value, put together around leaves in their order."""


def take_apart(value: Any, leaf: Callable[[Any, str], Build | None], path: str = "") -> Build:
    """How to put a value together again around other leaves.

    `leaf(part, path)` says so of what is no container to be walked through, and notes it; None for a container.
    """
    found = leaf(value, path)
    if found is not None:
        return found
    container = container_of_class(cast("type[Any]", type(value)))
    assert container is not None
    items = list(container.items(value))
    builds = [take_apart(part, leaf, path + container.label(key)) for key, part in items]
    shell = shell_of(container, value, len(items))
    return lambda leaves: container.build(shell, [build(leaves) for build in builds])
