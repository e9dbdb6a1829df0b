"""Recording operations on the tape: making nodes, and tracked values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from phlox.autodiff.tape import Cotangents, Node, Tracked, Vjp, next_id
from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients, Needed

Run: TypeAlias = Callable[..., tuple[Any, Any]]
"""`(*values)` returns the result (or a tuple of results), and the saved values for its derivative."""

Differentiate: TypeAlias = Callable[[Backend, Any, Any, Needed], Gradients]
"""`(backend, saved, g, needed)`: one gradient per operand; g is a tuple if there are several results."""

_new = object.__new__


def new_node(parents: tuple[Node | None, ...], vjp: Vjp, saved: Any) -> Node:
    """A new node."""
    node = _new(Node)
    node.id = next_id()
    node.parents = parents
    node.vjp = vjp
    node.saved = saved
    return node


def boxed(box: type[Tracked], value: Array, node: Node) -> Tracked:
    """A tracked value: the array and the node that made it."""
    result = _new(box)
    result.value = value
    result.node = node
    return result


def settled(vjp: Vjp, box: type[Tracked]) -> Vjp:
    """The vjp of a node whose gradient has to be settled first; see `Tracked`."""
    settle = box.settle
    if settle is None:
        return vjp

    def settled_vjp(node: Node, g: Any, cotangents: Cotangents) -> None:
        # The gradient of a node with several results is a dict, by position.
        shares = cast("dict[int, Array]", g)
        vjp(node, {n: settle(share) for n, share in shares.items()} if type(g) is dict else settle(g), cotangents)

    return settled_vjp


def operation_node(
    inner: Backend,
    box: type[Tracked],
    operands: tuple[Array, ...],
    saved: Any,
    differentiate: Differentiate,
    result: type[Tracked] | None = None,
) -> Node:
    """The node of an operation: its parents are the operands' nodes, and `differentiate` gives their gradients.

    `result` is the box of the result, if the result (and therefore its gradient) is on another backend.
    """
    add = box.add
    needed = tuple(type(x) is box for x in operands)

    def vjp(node: Node, g: Any, cotangents: Cotangents) -> None:
        for parent, d in zip(node.parents, differentiate(inner, node.saved, g, needed), strict=True):
            if parent is not None and d is not None:
                cotangents[parent.id] = add(cotangents[parent.id], d) if parent.id in cotangents else d

    return new_node(tuple(x.node if type(x) is box else None for x in operands), settled(vjp, result or box), saved)


def tape(
    inner: Backend, box: type[Tracked], operands: tuple[Array, ...], run: Run, differentiate: Differentiate
) -> Array:
    """`run(*operands)` on the tape; at least one operand is tracked."""
    y, saved = run(*(x.value if type(x) is box else x for x in operands))
    return boxed(box, y, operation_node(inner, box, operands, saved, differentiate))


def tape_several(
    inner: Backend, box: type[Tracked], operands: tuple[Array, ...], run: Run, differentiate: Differentiate
) -> tuple[Array, ...]:
    """As `tape`, for a tuple of results; `differentiate` gets None for a result without a gradient."""
    results, saved = run(*(x.value if type(x) is box else x for x in operands))
    count = len(results)

    def gather(backend: Backend, saved: Any, shares: dict[int, Array], needed: Needed) -> Gradients:
        return differentiate(backend, saved, tuple(shares.get(position) for position in range(count)), needed)

    return split_results(box, results, operation_node(inner, box, operands, saved, gather))


def split_results(box: type[Tracked], values: tuple[Array, ...], whole: Node) -> tuple[Array, ...]:
    """The results of a node with several results; its gradient is a dict of their gradients, by position."""
    # Each result has a node of its own. It is created after the shared node, so the backward pass visits it first.
    return tuple(boxed(box, value, new_node((whole,), _add_share, position)) for position, value in enumerate(values))


def _add_share(node: Node, g: Array, cotangents: Cotangents) -> None:
    whole = node.parents[0]
    assert whole is not None
    shares: Any = cotangents.setdefault(whole.id, {})
    shares[node.saved] = g
