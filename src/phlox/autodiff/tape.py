"""The tape: nodes, and the values that carry them. The backward pass is in `phlox.autodiff.backward`.

A tracked value is a value of the inner backend with the node that made it. Nodes hold only what their derivative needs,
so a value that no derivative needs is freed as soon as the user drops it. There is no global state: a tape is the nodes
that can be reached from a value.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, ClassVar, TypeAlias

from phlox.backend.contract.types import Array
from phlox.errors import AutodiffError

Cotangents: TypeAlias = dict[int, Array]
"""The gradients computed so far, by the id of the node."""

Vjp: TypeAlias = Callable[["Node", Array, Cotangents], None]
"""`(node, gradient, cotangents)`: add the gradients of the node's parents to `cotangents`."""

next_id = count().__next__


class Node:
    """One operation of the tape; `saved` is dropped after use.

    `vjp` is None for a leaf, whose `saved` is the `settle` of its box.
    """

    __slots__ = ("id", "parents", "saved", "vjp")

    id: int
    parents: tuple[Node | None, ...]
    vjp: Vjp | None
    saved: Any


class Tracked:
    """A value of the inner backend with its history.

    Every decorated backend has its own subclass, so that nested tapes tell their values apart.
    """

    __slots__ = ("node", "value")

    value: Array
    node: Node
    add: ClassVar[Callable[[Array, Array], Array]]
    """Adds two contributions to a gradient; at half precision the sum is f32 until it is settled."""
    settle: ClassVar[Callable[[Array], Array] | None] = None
    """Rounds a sum made by `add` to the inner backend's element type; None where it has that type already."""
    settle_of: ClassVar[Callable[[Array], Callable[[Array], Array] | None] | None] = None
    """Returns the `settle` of a leaf; None where all leaves have the same."""
    some_settle: ClassVar[bool] = False
    """Does any subclass have a `settle`?"""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return self.value.shape


def spent(node: Node, g: Array, cotangents: Cotangents) -> None:
    """The `vjp` of a node whose saved values are freed."""
    raise AutodiffError(
        "backward has already run through this graph, which freed the values that the graph had saved; "
        "call backward(retain_graph=True) the first time to run it twice"
    )


def _refuse(node: Node, g: Array, cotangents: Cotangents) -> None:
    raise AutodiffError(node.saved)


def poisoned(box: type[Tracked], value: Array, reason: str) -> Tracked:
    """A value without its history: a gradient that reaches it raises `AutodiffError` with the message `reason`."""
    result = leaf(box, value)
    result.node.vjp = _refuse
    result.node.saved = reason
    return result


def is_poisoned(node: Node) -> bool:
    """Is this the node of a `poisoned` value?"""
    return node.vjp is _refuse


def is_spent(node: Node) -> bool:
    """Has the backward pass freed this node already?"""
    return node.vjp is spent


def leaf(box: type[Tracked], value: Array) -> Tracked:
    """A leaf of the tape: a value whose gradient the user asks for."""
    node = object.__new__(Node)
    node.id = next_id()
    node.parents = ()
    node.vjp = None
    node.saved = box.settle if box.settle_of is None else box.settle_of(value)
    result = object.__new__(box)
    result.value = value
    result.node = node
    return result
