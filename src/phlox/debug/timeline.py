"""Assigns each step of the backward pass to a call of a layer."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TypeAlias

from phlox.autodiff.tape import Node, Vjp, is_poisoned, is_spent, next_id
from phlox.module.calls import Call
from phlox.transform.tree import AnyTensor

Wrap: TypeAlias = Callable[[Vjp, Call | None], Vjp]
"""`(vjp, call)`: the replacement of a step of the backward pass that belongs to this call."""


class Timeline:
    """The begins and ends of calls, as ids from the counter that numbers the nodes of the tape."""

    def __init__(self) -> None:
        self._events: list[tuple[int, Call | None]] = []

    def entered(self, call: Call) -> None:
        """A call begins."""
        self._events.append((next_id(), call))

    def left(self, call: Call) -> None:
        """A call ends."""
        self._events.append((next_id(), call.within))

    def wrap(self, root: AnyTensor, wrap: Wrap) -> None:
        """Replace every step of the backward pass from a tensor by `wrap(vjp, call)`."""
        first: Node | None = root.backend.node_of(root.primitive)
        if first is None:
            return
        ids = [node_id for node_id, _ in self._events]
        seen, stack = {first.id}, [first]
        while stack:
            node = stack.pop()
            if node.vjp is not None and not is_spent(node) and not is_poisoned(node):
                index = bisect_right(ids, node.id)
                node.vjp = wrap(node.vjp, self._events[index - 1][1] if index else None)
            for parent in node.parents:
                if parent is not None and parent.id not in seen:
                    seen.add(parent.id)
                    stack.append(parent)


def around(call: Call) -> list[Call]:
    """A call and the calls around it, the innermost first."""
    calls: list[Call] = []
    inner: Call | None = call
    while inner is not None:
        calls.append(inner)
        inner = inner.within
    return calls
