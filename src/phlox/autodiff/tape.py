"""The tape: nodes, and the walk back over them.

A tracked value is a value of the inner backend together with the node that says where it came from. Nodes hold what
their derivative needs and nothing else, so a value that no derivative needs is freed as soon as the user drops it.
There is no global state: a tape is what can be reached from a value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import Any, ClassVar, TypeAlias

from phlox.backend.contract.types import Array
from phlox.errors import AutodiffError

Cotangents: TypeAlias = dict[int, Array]
"""Gradients found so far, by node."""

Vjp: TypeAlias = Callable[["Node", Array, Cotangents], None]
"""`(node, gradient, found)`: add to `found` what the node's gradient means for its parents."""

next_id = count().__next__


class Node:
    """One operation of the tape; `saved` is dropped once it has been used.

    `push` is None for a leaf, which has saved how its gradient is settled, if it has to be.
    """

    __slots__ = ("id", "parents", "push", "saved")

    id: int
    parents: tuple[Node | None, ...]
    push: Vjp | None
    saved: Any


class Tracked:
    """A value of the inner backend whose history is known.

    Every decorated backend has a subclass of its own, so that with tapes one above the other none takes the values of
    another for its own.
    """

    __slots__ = ("node", "value")

    value: Array
    node: Node
    add: ClassVar[Callable[[Array, Array], Array]]
    """Adds up contributions to a gradient; at half precision the sum is wide until it is settled."""
    settle: ClassVar[Callable[[Array], Array] | None] = None
    """Makes a sum by `add` an array of the inner backend's own again, where it is not anyway."""
    some_settle: ClassVar[bool] = False
    """Has any of the subclasses a `settle`?"""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return self.value.shape


def _spent(node: Node, g: Array, found: Cotangents) -> None:
    raise AutodiffError(
        "this graph has been walked back already and has freed what it saved; "
        "call backward(retain_graph=True) the first time to walk it again"
    )


def _refuse(node: Node, g: Array, found: Cotangents) -> None:
    raise AutodiffError(node.saved)


def poisoned(box: type[Tracked], value: Array, why: str) -> Tracked:
    """A value whose history is not to be had: a gradient that comes back to it is an error, which says why."""
    result = leaf(box, value)
    result.node.push = _refuse
    result.node.saved = why
    return result


def is_poisoned(node: Node) -> bool:
    """Is this the node of a `poisoned` value?"""
    return node.push is _refuse


def is_spent(node: Node) -> bool:
    """Has it been walked back already?"""
    return node.push is _spent


def leaf(box: type[Tracked], value: Array) -> Tracked:
    """A value that gradients are wanted for."""
    node = object.__new__(Node)
    node.id = next_id()
    node.parents = ()
    node.push = None
    node.saved = box.settle
    result = object.__new__(box)
    result.value = value
    result.node = node
    return result


def backpropagate(
    roots: Sequence[Node], found: Cotangents, *, retain: bool = False, until: Collection[int] = frozenset()
) -> Cotangents:
    """Complete `found`, the gradients of `roots`, by those of all leaves that they depend on.

    The nodes numbered in `until` are taken for leaves, and what is found for them need not be settled.
    """
    seen = {root.id: root for root in roots}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node.id in until:
            continue
        for parent in node.parents:
            if parent is not None and parent.id not in seen:
                seen[parent.id] = parent
                stack.append(parent)
    for number in until:
        seen.pop(number, None)
    # Numbers are given in the order of creation, so every node comes after its parents.
    for number in sorted(seen, reverse=True):
        node = seen[number]
        push = node.push
        if push is None:
            continue
        g = found.pop(number, None)
        if g is not None:
            push(node, g, found)
        if not retain:
            node.push = _spent
            node.saved = None
    if Tracked.some_settle:
        for number, g in found.items():
            node = seen.get(number)
            if node is not None and node.push is None and node.saved is not None:
                found[number] = node.saved(g)
    return found
