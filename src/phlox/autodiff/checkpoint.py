"""Gradient checkpointing of a function: its values are forgotten, and computed again on the way back.

Griewank and Walther, "Revolve", 2000; Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear memory cost", 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from phlox.autodiff.tape import Cotangents, Node, backpropagate, next_id
from phlox.autodiff.taping import link, parts
from phlox.backend.contract.types import Array

if TYPE_CHECKING:
    from phlox.autodiff.decorator import Autodiff

Again: TypeAlias = Callable[[Array | None], Sequence[Array]]
"""Runs the function; given an array, in such a way that a compiler cannot merge it with an earlier run."""


def checkpoint(backend: Autodiff, run: Again) -> Sequence[Array]:
    """What `run(None)` returns, its tape replaced by one node that runs the function once more."""
    start = next_id()
    results = run(None)
    # What comes from outside, and leaves, have no history to forget.
    nodes = [backend.node_of(x) for x in results]
    tracked = [i for i, node in enumerate(nodes) if node is not None and node.push is not None and node.id >= start]
    outside = _entrances([results[place].node for place in tracked], start)
    if not outside:
        return results
    until = frozenset(node.id for node in outside)
    add = backend.box.add

    def push(node: Node, shares: Any, found: Cotangents) -> None:
        again = run(next(iter(shares.values())))
        roots = [again[tracked[place]].node for place in shares]
        # What other operations have found for the nodes outside is added to where it belongs, by their own backends.
        inside: Cotangents = {number: found.pop(number) for number in until if number in found}
        for root, share in zip(roots, shares.values(), strict=True):
            inside[root.id] = add(inside[root.id], share) if root.id in inside else share
        backpropagate(roots, inside, until=until)
        found.update({number: inside[number] for number in until if number in inside})

    whole = link(tuple(outside), push, None)
    boxes = parts(backend.box, tuple(results[place].value for place in tracked), whole)
    forgotten = list(results)
    for place, x in zip(tracked, boxes, strict=True):
        forgotten[place] = x
    return forgotten


def _entrances(roots: Sequence[Node], start: int) -> list[Node]:
    """The nodes that the tape between `start` and `roots` was entered by: older ones, and leaves."""
    seen: set[int] = set()
    stack, found = list(roots), list[Node]()
    while stack:
        node = stack.pop()
        if node.id in seen:
            continue
        seen.add(node.id)
        if node.id < start or node.push is None:
            found.append(node)
        else:
            stack.extend(parent for parent in node.parents if parent is not None)
    return found
