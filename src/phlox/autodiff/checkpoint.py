"""Gradient checkpointing of a function: its values are dropped, and recomputed in the backward pass.

Griewank and Walther, "Revolve", 2000; Chen, Xu, Zhang, Guestrin, "Training deep nets with sublinear memory cost", 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from phlox.autodiff.backward import backpropagate
from phlox.autodiff.collectives import TapeOps
from phlox.autodiff.tape import Cotangents, Node, next_id
from phlox.autodiff.taping import new_node, split_results
from phlox.backend.contract.types import Array

Again: TypeAlias = Callable[[Array | None], Sequence[Array]]
"""Runs the function; given an array, in such a way that a compiler cannot merge it with an earlier run."""


def checkpoint(backend: TapeOps, run: Again) -> Sequence[Array]:
    """The result of `run(None)`, with its tape replaced by one node that runs the function again."""
    start = next_id()
    results = run(None)
    # Values from outside and leaves have no history that could be dropped.
    nodes = [backend.node_of(x) for x in results]
    tracked = [i for i, node in enumerate(nodes) if node is not None and node.vjp is not None and node.id >= start]
    outside = _entry_nodes([results[place].node for place in tracked], start)
    if not outside:
        return results
    until = frozenset(node.id for node in outside)
    add = backend.box.add

    def vjp(node: Node, shares: Any, cotangents: Cotangents) -> None:
        again = run(next(iter(shares.values())))
        roots = [again[tracked[place]].node for place in shares]
        # Gradients that the nodes outside have already go in, so that sums are made by the backend they belong to.
        inside: Cotangents = {number: cotangents.pop(number) for number in until if number in cotangents}
        for root, share in zip(roots, shares.values(), strict=True):
            inside[root.id] = add(inside[root.id], share) if root.id in inside else share
        backpropagate(roots, inside, until=until)
        cotangents.update({number: inside[number] for number in until if number in inside})

    whole = new_node(tuple(outside), vjp, None)
    boxes = split_results(backend.box, tuple(results[place].value for place in tracked), whole)
    forgotten = list(results)
    for place, x in zip(tracked, boxes, strict=True):
        forgotten[place] = x
    return forgotten


def _entry_nodes(roots: Sequence[Node], start: int) -> list[Node]:
    """Where the tape between `start` and `roots` begins: nodes older than `start`, and leaves."""
    seen: set[int] = set()
    stack, found = list(roots), list[Node]()
    while stack:
        node = stack.pop()
        if node.id in seen:
            continue
        seen.add(node.id)
        if node.id < start or node.vjp is None:
            found.append(node)
        else:
            stack.extend(parent for parent in node.parents if parent is not None)
    return found
