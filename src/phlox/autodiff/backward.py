"""The backward pass, which visits the nodes of a tape from the newest to the oldest."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from phlox.autodiff.tape import Cotangents, Node, Tracked, spent
from phlox.backend.contract.collectives import Later


def backpropagate(
    roots: Sequence[Node], cotangents: Cotangents, *, retain: bool = False, until: Collection[int] = frozenset()
) -> Cotangents:
    """Run the backward pass: `cotangents` holds the gradients of `roots`, and gets those of all leaves.

    The nodes whose ids are in `until` count as leaves; their gradients are not settled.
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
    for node_id in until:
        seen.pop(node_id, None)
    leaves = _Leaves(seen, cotangents) if Tracked.some_settle else None
    # Ids count upward as nodes are created, so the id of a node is greater than the ids of its parents.
    for node_id in sorted(seen, reverse=True):
        node = seen[node_id]
        vjp = node.vjp
        if vjp is None:
            continue
        g = cotangents.pop(node_id, None)
        if g is not None:
            vjp(node, g, cotangents)
        if not retain:
            node.vjp = spent
            node.saved = None
        if leaves is not None:
            leaves.mark_visited(node)
    if leaves is not None:
        leaves.finish()
    return cotangents


class _Leaves:
    """Settles the gradient of each leaf as soon as the backward pass can add nothing more to it."""

    def __init__(self, nodes: dict[int, Node], cotangents: Cotangents) -> None:
        self._cotangents = cotangents
        self._waiting = {number: node for number, node in nodes.items() if node.vjp is None and node.saved is not None}
        self._uses = dict.fromkeys(self._waiting, 0)
        self._pending: list[int] = []
        self._free_elements = _IN_FLIGHT
        if self._waiting:
            for node in nodes.values():
                for parent in node.parents:
                    if parent is not None and parent.id in self._uses:
                        self._uses[parent.id] += 1

    def mark_visited(self, node: Node) -> None:
        """Note that the pass has visited this node."""
        uses = self._uses
        for parent in node.parents:
            if parent is not None and parent.id in uses:
                uses[parent.id] -= 1
                if not uses[parent.id]:
                    self._settle(parent)

    def finish(self) -> None:
        """Settle the remaining leaves, and wait for the gradients that are still being communicated."""
        for node in list(self._waiting.values()):
            self._settle(node)
        while self._pending:
            self._finish_oldest()

    def _settle(self, node: Node) -> None:
        del self._waiting[node.id]
        g = self._cotangents.get(node.id)
        if g is None:
            return
        g = self._cotangents[node.id] = node.saved(g)
        if type(g) is Later:
            self._pending.append(node.id)
            self._free_elements -= g.size
            while self._free_elements < 0:
                self._finish_oldest()

    def _finish_oldest(self) -> None:
        node_id = self._pending.pop(0)
        gradient = self._cotangents[node_id]
        self._free_elements += gradient.size
        self._cotangents[node_id] = gradient.finish()


_IN_FLIGHT = 1 << 24
"""The elements of gradients that may be in communication, and in memory; beyond, the pass waits for the oldest."""
