"""Classes that are PyTree nodes, noted here for the engines that know PyTrees.

Nothing outside an engine's own files imports it; so classes are announced here, and an engine that is loaded picks them
up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, NamedTuple


class StructureSerializer(NamedTuple):
    """How the structure of a node goes into the file of an exported program, and comes back."""

    to_bytes: Callable[[Any], bytes]
    from_bytes: Callable[[bytes], Any]
    shell: Callable[[Any, Iterable[Any]], Any]
    """From (structure, leaves), for a structure that has come back: a node that has both."""


class PyTreeNode(NamedTuple):
    """How a class is taken apart and put together."""

    cls: type[Any]
    flatten: Callable[[Any], tuple[Iterable[Any], Any]]
    """To (leaves, structure); the structure is hashable and comparable."""
    unflatten: Callable[[Any, Iterable[Any]], Any]
    """From (structure, leaves); leaves may be tracers of any type."""
    flatten_with_keys: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any]] | None = None
    """To ((key, leaf), ...) and the structure, the keys being strings or numbers."""
    serializer: StructureSerializer | None = None
    """How the structure is written into a file."""
    integers: Callable[[Any], Iterable[str]] | None = None
    """Of a structure, the names of leaves that have no derivative."""


_nodes: list[PyTreeNode] = []
_listeners: list[Callable[[PyTreeNode], None]] = []


def register_node(node: PyTreeNode) -> None:
    """Announce a class as a PyTree node; its subclasses are announced by themselves."""
    _nodes.append(node)
    for listener in _listeners:
        listener(node)


def register_with_imported_engines() -> None:
    """Announce to an engine that the user has imported, though no backend of Phlox has needed it yet."""
    if not _listeners and sys.modules.get("jax") is not None:
        import_module("phlox.backend.jax")


def add_listener(listener: Callable[[PyTreeNode], None]) -> None:
    """Tell an engine of all classes announced so far and from now on."""
    for node in _nodes:
        listener(node)
    _listeners.append(listener)
