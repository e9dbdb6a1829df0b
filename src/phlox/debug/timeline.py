"""To which call of a layer each step of the backward pass belongs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TypeAlias

from phlox.autodiff.tape import Node, Vjp, is_poisoned, is_spent, next_id
from phlox.module.calls import Call
from phlox.transform.tree import AnyTensor

Wrap: TypeAlias = Callable[[Vjp, Call | None], Vjp]
"""From a step of the backward pass and the call that it belongs to, to what is done in its place."""


class Timeline:
    """When calls begin and end, on the clock that numbers the nodes of the tape."""

    def __init__(self) -> None:
        self._events: list[tuple[int, Call | None]] = []

    def entered(self, call: Call) -> None:
        """A call begins."""
        self._events.append((next_id(), call))

    def left(self, call: Call) -> None:
        """A call ends."""
        self._events.append((next_id(), call.within))

    def wrap(self, root: AnyTensor, wrap: Wrap) -> None:
        """Put `wrap(vjp, call)` in place of every step of the backward pass behind a tensor."""
        first: Node | None = root.backend.node_of(root.primitive)
        if first is None:
            return
        numbers = [number for number, _ in self._events]
        seen, stack = {first.id}, [first]
        while stack:
            node = stack.pop()
            if node.vjp is not None and not is_spent(node) and not is_poisoned(node):
                place = bisect_right(numbers, node.id)
                node.vjp = wrap(node.vjp, self._events[place - 1][1] if place else None)
            for parent in node.parents:
                if parent is not None and parent.id not in seen:
                    seen.add(parent.id)
                    stack.append(parent)


def around(call: Call) -> list[Call]:
    """A call and those that it is part of, the innermost first."""
    found: list[Call] = []
    inner: Call | None = call
    while inner is not None:
        found.append(inner)
        inner = inner.within
    return found
