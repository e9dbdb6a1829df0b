"""The backward pass: over the nodes of a tape, from the newest to the oldest."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from phlox.autodiff.tape import Cotangents, Node, Tracked, spent
from phlox.backend.contract.collectives import Later


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
            node.vjp = spent
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
