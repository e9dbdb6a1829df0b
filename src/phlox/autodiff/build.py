"""From a derivative rule to an operation that records itself.

Three shapes of rule serve everything. `Unary` and `Binary` are elementwise and small: they are what a chain of little
operations spends its time in, so they are built as one flat function each. `General` is any operation whose first
`operands` arguments are arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from phlox.autodiff.tape import Found, Node, Tracked, next_id
from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Shape

UnaryDerivative: TypeAlias = Callable[[Backend, Array, Array, Array], Array]
"""`(B, g, x, y)`: the gradient towards x of y = f(x), in operations of the backend B."""

BinaryDerivative: TypeAlias = Callable[[Backend, Array, Array, Array, Array], Array]
"""`(B, g, x, y, z)`: the gradient towards one operand of z = f(x, y)."""

Result: TypeAlias = tuple[Array, Any]
Needed: TypeAlias = tuple[bool, ...]
Gradients: TypeAlias = tuple[Array | None, ...]

# The unions spell out how many arguments there may be, from which a type checker knows those of a lambda.
Forward: TypeAlias = (
    Callable[[Backend, Any], Result]
    | Callable[[Backend, Any, Any], Result]
    | Callable[[Backend, Any, Any, Any], Result]
    | Callable[[Backend, Any, Any, Any, Any], Result]
    | Callable[..., Result]
)
"""`(B, *operands, *options)`: the result, and what its derivative needs."""

Backward: TypeAlias = (
    Callable[[Backend, Any, Array, Needed], Gradients]
    | Callable[[Backend, Any, Array, Needed, Any], Gradients]
    | Callable[[Backend, Any, Array, Needed, Any, Any], Gradients]
    | Callable[[Backend, Any, Array, Needed, Any, Any, Any], Gradients]
    | Callable[..., Gradients]
)
"""`(B, saved, g, needed, *options)`: one gradient an operand; those not `needed` are ignored."""

_new = object.__new__


@dataclass(frozen=True, slots=True)
class Unary:
    """y = f(x). `saves` names what the derivative reads: "x", "y", both or neither."""

    saves: str
    derivative: UnaryDerivative


@dataclass(frozen=True, slots=True)
class D:
    """The derivative of z = f(x, y) towards one operand. `saves` names what it reads among "x", "y" and "z"."""

    saves: str
    derivative: BinaryDerivative


@dataclass(frozen=True, slots=True)
class Binary:
    """z = f(x, y), broadcasting; either operand may be a number."""

    lhs: D
    rhs: D


@dataclass(frozen=True, slots=True)
class General:
    """Any operation whose first `operands` arguments are arrays (or None), and whose others are options.

    See `Forward` and `Backward`.
    """

    operands: int
    forward: Forward
    backward: Backward


Rule: TypeAlias = Unary | Binary | General


def build(inner: Backend, box: type[Tracked], name: str, rule: Rule) -> Callable[..., Any]:
    """The operation `name` of `inner` as one that records itself when an operand is tracked, that is, a `box`."""
    match rule:
        case Unary():
            return _unary(box, getattr(inner, name), rule)
        case Binary():
            return _binary(inner, box, getattr(inner, name), rule)
        case General():
            return _general(inner, box, getattr(inner, name), rule)


def _unary(box: type[Tracked], function: Callable[[Array], Array], rule: Unary) -> Callable[[Array], Array]:
    saves_x, saves_y = "x" in rule.saves, "y" in rule.saves
    derivative = rule.derivative

    def push(backend: Backend, node: Node, g: Array, found: Found) -> None:
        x, y = node.saved
        dx = derivative(backend, g, x, y)
        parent = node.parents[0].id  # pyright: ignore[reportOptionalMemberAccess]
        found[parent] = backend.float_add(found[parent], dx) if parent in found else dx

    def operation(x: Array) -> Array:
        if type(x) is not box:
            return function(x)
        value = x.value
        y = function(value)
        node = _new(Node)
        node.id = next_id()
        node.parents = (x.node,)
        node.push = push
        node.saved = (value if saves_x else None, y if saves_y else None)
        result = _new(box)
        result.value = y
        result.node = node
        return result

    return operation


def sum_to(backend: Backend, g: Array, shape: Shape) -> Array:
    """Undo broadcasting: sum a gradient over the axes along which an operand of `shape` was repeated."""
    have = backend.shape(g)
    if have == shape:
        return g
    added = len(have) - len(shape)
    axes = tuple(axis for axis, size in enumerate(have) if axis < added or (shape[axis - added] == 1 and size != 1))
    return backend.reshape(backend.float_sum(g, axes, False), shape)


def _binary(
    inner: Backend, box: type[Tracked], function: Callable[[Array, Any], Array], rule: Binary
) -> Callable[[Array, Any], Array]:
    lhs, rhs = rule.lhs.derivative, rule.rhs.derivative
    saves, saves_lhs, saves_rhs = set(rule.lhs.saves + rule.rhs.saves), rule.lhs.saves, rule.rhs.saves
    both_x, both_y, both_z = (letter in saves for letter in "xyz")
    lhs_x, lhs_y, lhs_z = (letter in saves_lhs for letter in "xyz")
    rhs_x, rhs_y, rhs_z = (letter in saves_rhs for letter in "xyz")
    shape = inner.shape

    def push_lhs(backend: Backend, node: Node, g: Array, found: Found) -> None:
        x, y, z, size, _ = node.saved
        d = lhs(backend, g, x, y, z)
        if size is not None:
            d = sum_to(backend, d, size)
        parent = node.parents[0].id  # pyright: ignore[reportOptionalMemberAccess]
        found[parent] = backend.float_add(found[parent], d) if parent in found else d

    def push_rhs(backend: Backend, node: Node, g: Array, found: Found) -> None:
        x, y, z, _, size = node.saved
        d = rhs(backend, g, x, y, z)
        if size is not None:
            d = sum_to(backend, d, size)
        parent = node.parents[-1].id  # pyright: ignore[reportOptionalMemberAccess]
        found[parent] = backend.float_add(found[parent], d) if parent in found else d

    def push_both(backend: Backend, node: Node, g: Array, found: Found) -> None:
        push_lhs(backend, node, g, found)
        push_rhs(backend, node, g, found)

    def operation(x: Array, y: Any) -> Array:
        if type(x) is box:
            a = x.value
            node = _new(Node)
            if type(y) is box:
                b = y.value
                z = function(a, b)
                node.parents = (x.node, y.node)
                node.push = push_both
                shape_a, shape_b = shape(a), shape(b)
                kept = (a if both_x else None, b if both_y else None, z if both_z else None)
                node.saved = (*kept, None, None) if shape_a == shape_b else (*kept, shape_a, shape_b)
            else:
                z = function(a, y)
                node.parents = (x.node,)
                node.push = push_lhs
                size = None if type(y) is float or type(y) is int else shape(a)
                node.saved = (a if lhs_x else None, y if lhs_y else None, z if lhs_z else None, size, None)
        elif type(y) is box:
            b = y.value
            z = function(x, b)
            node = _new(Node)
            node.parents = (y.node,)
            node.push = push_rhs
            size = None if type(x) is float or type(x) is int else shape(b)
            node.saved = (x if rhs_x else None, b if rhs_y else None, z if rhs_z else None, None, size)
        else:
            return function(x, y)
        node.id = next_id()
        result = _new(box)
        result.value = z
        result.node = node
        return result

    return operation


def record(
    box: type[Tracked],
    operands: tuple[Array, ...],
    run: Callable[..., tuple[Array, Any]],
    differentiate: Callable[[Backend, Any, Array, tuple[bool, ...]], tuple[Array | None, ...]],
) -> Array:
    """Run on the values of `operands`, of which one at least is tracked, and record how to differentiate it."""
    values = [x.value if type(x) is box else x for x in operands]
    y, saved = run(*values)
    needed = tuple(type(x) is box for x in operands)

    def push(backend: Backend, node: Node, g: Array, found: Found) -> None:
        for parent, d in zip(node.parents, differentiate(backend, node.saved, g, needed), strict=True):
            if parent is not None and d is not None:
                found[parent.id] = backend.float_add(found[parent.id], d) if parent.id in found else d

    node = _new(Node)
    node.id = next_id()
    node.parents = tuple(x.node if type(x) is box else None for x in operands)
    node.push = push
    node.saved = saved
    result = _new(box)
    result.value = y
    result.node = node
    return result


def _run(forward: Callable[..., Result], inner: Backend, options: tuple[Any, ...], *values: Any) -> Result:
    return forward(inner, *values, *options)


def _general(inner: Backend, box: type[Tracked], function: Callable[..., Array], rule: General) -> Callable[..., Array]:
    count = rule.operands
    forward: Callable[..., Result] = rule.forward
    backward: Callable[..., Gradients] = rule.backward

    def operation(*arguments: Any) -> Array:
        operands = arguments[:count]
        if not any(type(x) is box for x in operands):
            return function(*arguments)
        options = arguments[count:]
        return record(
            box,
            operands,
            partial(_run, forward, inner, options),
            lambda backend, saved, g, needed: backward(backend, saved, g, needed, *options),
        )

    return operation
