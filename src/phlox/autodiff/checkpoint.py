"""Gradient checkpointing of a function: its intermediate values are dropped, and recomputed in the backward pass.

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

RunAgain: TypeAlias = Callable[[Array | None], Sequence[Array]]
"""Runs the function. If it gets an array, a compiler cannot merge this run with an earlier one."""


def checkpoint(backend: TapeOps, run: RunAgain) -> Sequence[Array]:
    """The result of `run(None)`, with its tape replaced by one node that runs the function again."""
    start = next_id()
    results = run(None)
    # Values from outside the function, and leaves, have no history to drop.
    nodes = [backend.node_of(x) for x in results]
    tracked = [i for i, node in enumerate(nodes) if node is not None and node.vjp is not None and node.id >= start]
    entry_nodes = _entry_nodes([results[index].node for index in tracked], start)
    if not entry_nodes:
        return results
    until = frozenset(node.id for node in entry_nodes)
    add = backend.box.add

    def vjp(node: Node, shares: Any, cotangents: Cotangents) -> None:
        rerun = run(next(iter(shares.values())))
        roots = [rerun[tracked[index]].node for index in shares]
        # The gradients that the entry nodes already have are passed in, so that their own backend adds to them.
        inside: Cotangents = {node_id: cotangents.pop(node_id) for node_id in until if node_id in cotangents}
        for root, share in zip(roots, shares.values(), strict=True):
            inside[root.id] = add(inside[root.id], share) if root.id in inside else share
        backpropagate(roots, inside, until=until)
        cotangents.update({node_id: inside[node_id] for node_id in until if node_id in inside})

    whole = new_node(tuple(entry_nodes), vjp, None)
    boxes = split_results(backend.box, tuple(results[index].value for index in tracked), whole)
    new_results = list(results)
    for index, x in zip(tracked, boxes, strict=True):
        new_results[index] = x
    return new_results


def _entry_nodes(roots: Sequence[Node], start: int) -> list[Node]:
    """The nodes where the part of the tape that leads to `roots` begins: leaves, and nodes older than `start`."""
    seen: set[int] = set()
    stack, entry_nodes = list(roots), list[Node]()
    while stack:
        node = stack.pop()
        if node.id in seen:
            continue
        seen.add(node.id)
        if node.id < start or node.vjp is None:
            entry_nodes.append(node)
        else:
            stack.extend(parent for parent in node.parents if parent is not None)
    return entry_nodes
