"""Classes that are PyTree nodes, for the engines that know PyTrees.

Only an engine's own files import the engine; so classes are registered here, and an engine takes them over once it is
imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, NamedTuple


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
    flatten_with_keys: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any]] | None = None
    """To ((key, leaf), ...) and the structure, the keys being strings or numbers."""
    serializer: StructureSerializer | None = None
    """How the structure is written to a file."""
    integers: Callable[[Any], Iterable[str]] | None = None
    """From a structure, the names of the leaves that are integers, and so have no derivative."""


_nodes: list[PyTreeNode] = []
_listeners: list[Callable[[PyTreeNode], None]] = []


def register_node(node: PyTreeNode) -> None:
    """Register a class as a PyTree node; its subclasses are registered by themselves."""
    _nodes.append(node)
    for listener in _listeners:
        listener(node)


def register_with_imported_engines() -> None:
    """Register with an engine that the user has imported, though no backend of Phlox has needed it yet."""
    if not _listeners and sys.modules.get("jax") is not None:
        import_module("phlox.backend.jax")


def add_listener(listener: Callable[[PyTreeNode], None]) -> None:
    """Call the listener for all classes registered so far and from now on."""
    for node in _nodes:
        listener(node)
    _listeners.append(listener)
