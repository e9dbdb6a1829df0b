"""Classes that are PyTree nodes, noted here until the engine that has PyTrees is loaded.

Nothing outside the engine's own files imports it; so classes are announced here, and the engine picks them up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Node(NamedTuple):
    """How a class is taken apart and put together."""

    cls: type[Any]
    flatten: Callable[[Any], tuple[Iterable[Any], Any]]
    """To (leaves, structure); the structure is hashable and comparable."""
    unflatten: Callable[[Any, Iterable[Any]], Any]
    """From (structure, leaves); leaves may be placeholders of any type."""
    flatten_with_keys: Callable[[Any], tuple[Iterable[tuple[Any, Any]], Any]] | None = None
    """To ((key, leaf), ...) and the structure, the keys being strings or numbers."""


_nodes: list[Node] = []
_listeners: list[Callable[[Node], None]] = []


def register_node(node: Node) -> None:
    """Announce a class as a PyTree node; its subclasses are announced by themselves."""
    for listener in _listeners:
        listener(node)
    if not _listeners:
        _nodes.append(node)


def listen(listener: Callable[[Node], None]) -> None:
    """Tell an engine of all classes announced so far and from now on."""
    for node in _nodes:
        listener(node)
    _nodes.clear()
    _listeners.append(listener)
