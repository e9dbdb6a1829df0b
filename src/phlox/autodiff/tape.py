"""The tape: nodes, and the backward pass over them.

A tracked value is a value of the inner backend with the node that made it. Nodes hold only what their derivative needs,
so a value that no derivative needs is freed as soon as the user drops it. There is no global state: a tape is the nodes
that can be reached from a value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import Any, ClassVar, TypeAlias

from phlox.backend.contract.collectives import Later
from phlox.backend.contract.types import Array
from phlox.errors import AutodiffError

Cotangents: TypeAlias = dict[int, Array]
"""Gradients found so far, by node."""

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
    """Gives a leaf's own `settle`; None where all have the same."""
    some_settle: ClassVar[bool] = False
    """Has any of the subclasses a `settle`?"""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return self.value.shape


def _spent(node: Node, g: Array, cotangents: Cotangents) -> None:
    raise AutodiffError(
        "backward has run through this graph already, which freed what the graph had saved; "
        "call backward(retain_graph=True) the first time to run it twice"
    )


def _refuse(node: Node, g: Array, cotangents: Cotangents) -> None:
    raise AutodiffError(node.saved)


def poisoned(box: type[Tracked], value: Array, why: str) -> Tracked:
    """A value without its history: a gradient that reaches it raises `AutodiffError` with the message `why`."""
    result = leaf(box, value)
    result.node.vjp = _refuse
    result.node.saved = why
    return result


def is_poisoned(node: Node) -> bool:
    """Is this the node of a `poisoned` value?"""
    return node.vjp is _refuse


def is_spent(node: Node) -> bool:
    """Has the backward pass freed this node already?"""
    return node.vjp is _spent


def leaf(box: type[Tracked], value: Array) -> Tracked:
    """A leaf of the tape: a value whose gradient is wanted."""
    node = object.__new__(Node)
    node.id = next_id()
    node.parents = ()
    node.vjp = None
    node.saved = box.settle if box.settle_of is None else box.settle_of(value)
    result = object.__new__(box)
    result.value = value
    result.node = node
    return result


def backpropagate(
    roots: Sequence[Node], cotangents: Cotangents, *, retain: bool = False, until: Collection[int] = frozenset()
) -> Cotangents:
    """The backward pass: add the gradients of all leaves to `cotangents`, which holds those of `roots`.

    The nodes numbered in `until` count as leaves; their gradients are not settled.
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
    leaves = _Leaves(seen, cotangents) if Tracked.some_settle else None
    # Nodes are numbered as they are made, so a node's number is greater than those of its parents.
    for number in sorted(seen, reverse=True):
        node = seen[number]
        vjp = node.vjp
        if vjp is None:
            continue
        g = cotangents.pop(number, None)
        if g is not None:
            vjp(node, g, cotangents)
        if not retain:
            node.vjp = _spent
            node.saved = None
        if leaves is not None:
            leaves.leave(node)
    if leaves is not None:
        leaves.finish()
    return cotangents


class _Leaves:
    """The leaves of a backward pass whose gradients are settled: each as soon as nothing more can be added to it."""

    def __init__(self, nodes: dict[int, Node], cotangents: Cotangents) -> None:
        self._cotangents = cotangents
        self._waiting = {number: node for number, node in nodes.items() if node.vjp is None and node.saved is not None}
        self._uses = dict.fromkeys(self._waiting, 0)
        self._coming: list[int] = []
        self._room = _IN_FLIGHT
        if self._waiting:
            for node in nodes.values():
                for parent in node.parents:
                    if parent is not None and parent.id in self._uses:
                        self._uses[parent.id] += 1

    def leave(self, node: Node) -> None:
        """The pass has been at this node."""
        uses = self._uses
        for parent in node.parents:
            if parent is not None and parent.id in uses:
                uses[parent.id] -= 1
                if not uses[parent.id]:
                    self._settle(parent)

    def finish(self) -> None:
        """Settle what is left, and wait for what is coming."""
        for node in list(self._waiting.values()):
            self._settle(node)
        while self._coming:
            self._arrive()

    def _settle(self, node: Node) -> None:
        del self._waiting[node.id]
        g = self._cotangents.get(node.id)
        if g is None:
            return
        g = self._cotangents[node.id] = node.saved(g)
        if type(g) is Later:
            self._coming.append(node.id)
            self._room -= g.size
            while self._room < 0:
                self._arrive()

    def _arrive(self) -> None:
        number = self._coming.pop(0)
        later = self._cotangents[number]
        self._room += later.size
        self._cotangents[number] = later.finish()


_IN_FLIGHT = 1 << 24
"""Elements of gradients that are communicated at a time, which are in memory as a whole; more wait for the oldest."""
