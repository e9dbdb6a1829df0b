"""Putting operations on the tape: a node, and the values that carry it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from phlox.autodiff.tape import Cotangents, Node, Tracked, Vjp, next_id
from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients, Needed

Run: TypeAlias = Callable[..., tuple[Any, Any]]
"""`(*values)`: the result (or the tuple of them), and what its derivative needs."""

Differentiate: TypeAlias = Callable[[Backend, Any, Any, Needed], Gradients]
"""`(backend, saved, g, needed)`: one gradient an operand; g is a tuple where the results are several."""

_new = object.__new__


def link(parents: tuple[Node | None, ...], push: Vjp, saved: Any) -> Node:
    """A new node."""
    node = _new(Node)
    node.id = next_id()
    node.parents = parents
    node.push = push
    node.saved = saved
    return node


def boxed(box: type[Tracked], value: Array, node: Node) -> Tracked:
    """A value with its history."""
    result = _new(box)
    result.value = value
    result.node = node
    return result


def settled(push: Vjp, box: type[Tracked]) -> Vjp:
    """What a node does with its gradient once that is settled; see `Tracked`."""
    settle = box.settle
    if settle is None:
        return push

    def settled_push(node: Node, g: Any, found: Cotangents) -> None:
        # A node of several results has a gradient for each, by place.
        shares = cast("dict[int, Array]", g)
        push(node, {n: settle(share) for n, share in shares.items()} if type(g) is dict else settle(g), found)

    return settled_push


def note(
    inner: Backend,
    box: type[Tracked],
    operands: tuple[Array, ...],
    saved: Any,
    differentiate: Differentiate,
    result: type[Tracked] | None = None,
) -> Node:
    """A node whose parents are the operands' and whose gradient `differentiate` hands on to them.

    `result` is the class of its result where that is of another backend: so are the gradients that come to it.
    """
    add = box.add
    needed = tuple(type(x) is box for x in operands)

    def push(node: Node, g: Any, found: Cotangents) -> None:
        for parent, d in zip(node.parents, differentiate(inner, node.saved, g, needed), strict=True):
            if parent is not None and d is not None:
                found[parent.id] = add(found[parent.id], d) if parent.id in found else d

    return link(tuple(x.node if type(x) is box else None for x in operands), settled(push, result or box), saved)


def record(
    inner: Backend, box: type[Tracked], operands: tuple[Array, ...], run: Run, differentiate: Differentiate
) -> Array:
    """Run on the values of `operands`, of which one at least is tracked, and record how to differentiate it."""
    y, saved = run(*(x.value if type(x) is box else x for x in operands))
    return boxed(box, y, note(inner, box, operands, saved, differentiate))


def record_several(
    inner: Backend, box: type[Tracked], operands: tuple[Array, ...], run: Run, differentiate: Differentiate
) -> tuple[Array, ...]:
    """As `record`, for a tuple of results; a gradient that nobody asked for reaches `differentiate` as None."""
    results, saved = run(*(x.value if type(x) is box else x for x in operands))
    count = len(results)

    def gather(backend: Backend, saved: Any, shares: dict[int, Array], needed: Needed) -> Gradients:
        return differentiate(backend, saved, tuple(shares.get(place) for place in range(count)), needed)

    return parts(box, results, note(inner, box, operands, saved, gather))


def parts(box: type[Tracked], values: tuple[Array, ...], whole: Node) -> tuple[Array, ...]:
    """The results of a node that has several: its gradient is a dict of theirs, by place."""
    # Each has a node of its own, made after that of all of them and so walked back before it.
    return tuple(boxed(box, value, link((whole,), _share, place)) for place, value in enumerate(values))


def _share(node: Node, g: Array, found: Cotangents) -> None:
    whole = node.parents[0]
    assert whole is not None
    shares: Any = found.setdefault(whole.id, {})
    shares[node.saved] = g
