"""PyTrees: the classes that are nodes, and the table of containers that every walk over values uses.

Only an engine's own files import the engine; so classes are registered here, and an engine reads the registrations when
it is imported.

The arguments and results of functions, the states of optimizers and the fields of modules are containers (lists,
tuples, dicts, dataclasses) around leaves. Each walk defines its leaves, and which containers it walks through. A
`Container` defines the parts of a container, the path of a part, and how to build the container around other parts.
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
    """Writing the structure of a node to the file of an exported program, and reading it."""

    to_bytes: Callable[[Any], bytes]
    from_bytes: Callable[[bytes], Any]
    shell: Callable[[Any, Iterable[Any]], Any]
    """From (structure, leaves), for a structure that was read: a node with both."""


class PyTreeNode(NamedTuple):
    """Flattening and unflattening of a class."""

    cls: type[Any]
    flatten: Callable[[Any], tuple[Iterable[Any], Any]]
    """To (leaves, structure); the structure is hashable and comparable."""
    unflatten: Callable[[Any, Iterable[Any]], Any]
    """From (structure, leaves); leaves may be tracers of any type."""
    flatten_with_keys: Callable[[Any], tuple[Iterable[tuple[tuple[str, Any], Any]], Any]] | None = None
    """To (((kind, key), leaf), ...) and the structure; the kinds are `FIELD`, `INDEX` and `ITEM`."""
    serializer: StructureSerializer | None = None
    """For writing the structure to a file."""


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
    """The registered node of a class; `LookupError` for other classes."""
    for node in reversed(_nodes):
        if issubclass(cls, node.cls):
            return node
    raise LookupError(f"{cls.__name__} is no PyTree node")


def register_with_imported_engines() -> None:
    """Register with an engine that the user has imported, even if no backend of Phlox has needed it yet."""
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
    """JAX's innermost active transformation in this thread, as a weak reference; None if there is none."""
    return _asked[0]()


keeping: set[int] = set()
"""The threads in which JAX now flattens a result, to build the results of all later calls with its structure."""


def is_differentiating() -> bool:
    """Does `jax.grad` or a relative now flatten the arguments for which it differentiates?"""
    return _asked[1]()


def ask(*questions: Callable[[], Any]) -> None:
    """Set the functions that `transformation` and `is_differentiating` call; JAX's own files do so when imported."""
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
    """The text that a key adds to the path of its part."""
    build: Callable[[Any, list[Any]], Any]
    """From (container, parts): a container like it, around other parts in the order of its items."""
    make: Callable[[type[Any], Sequence[Any], list[Any]], Any]
    """From (class, keys, parts), without a container: it runs no code of the class, which a file may have named."""


def _is_named_tuple(cls: type[Any]) -> bool:
    return issubclass(cls, tuple) and hasattr(cast("Any", cls), "_fields")


def _make_list(cls: type[Any], keys: Sequence[Any], parts: list[Any]) -> Any:
    if cls is list:
        return parts
    container = list.__new__(cls)
    container.extend(parts)
    return container


def _make_tuple(cls: type[Any], keys: Sequence[Any], parts: list[Any]) -> Any:
    make: Any = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return make(cls, parts)


def _build_dict(like: dict[Any, Any], parts: list[Any]) -> Any:
    items = zip(like, parts, strict=True)
    if type(like) is dict:
        return dict(items)
    twin = copy.copy(like)  # keeps a default factory or an order
    twin.update(items)
    return twin


def field_names(value: Any) -> list[str]:
    """The fields of a dataclass that are set; a slot or a default that was never set has no value."""
    return [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]


def _build_dataclass(like: Any, parts: list[Any]) -> Any:
    twin = copy.copy(like)  # `__post_init__` does not run again
    for name, part in zip(field_names(like), parts, strict=True):
        object.__setattr__(twin, name, part)
    return twin


def _make_dataclass(cls: type[Any], keys: Sequence[Any], parts: list[Any]) -> Any:
    value = object.__new__(cls)
    for name, part in zip(keys, parts, strict=True):
        object.__setattr__(value, name, part)
    return value


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
    """Add a kind of container, which comes before the registered ones."""
    _containers.insert(0, container)
    container_of_class.cache_clear()


@lru_cache(maxsize=4096)
def container_of_class(cls: type[Any]) -> Container | None:
    """The kind of container of a class's instances; None if they are no containers."""
    return next((container for container in _containers if container.matches(cls)), None)


def shell_of(container: Container, value: Any, count: int) -> Any:
    """A container like `value` with None for its parts, for `build`."""
    empty = [None] * count
    if isinstance(value, (list, tuple)):
        return container.make(cast("type[Any]", type(cast("object", value))), (), empty)
    return container.build(value, empty)


Build: TypeAlias = Callable[[Iterator[Any]], Any]
"""From leaves, in their order, to a value."""


def take_apart(value: Any, leaf: Callable[[Any, str], Build | None], path: str = "") -> Build:
    """The function that builds a value again around other leaves.

    `leaf(part, path)` returns this function for a leaf, and collects the leaf; None for a container to walk through.
    """
    build = leaf(value, path)
    if build is not None:
        return build
    container = container_of_class(cast("type[Any]", type(value)))
    assert container is not None
    items = list(container.items(value))
    builds = [take_apart(part, leaf, path + container.label(key)) for key, part in items]
    shell = shell_of(container, value, len(items))
    return lambda leaves: container.build(shell, [build_part(leaves) for build_part in builds])
