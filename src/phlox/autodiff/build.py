"""Building an operation that records itself on the tape from a derivative rule.

There are three forms of rules. `Unary` and `Binary` are for elementwise operations: chains of small operations spend
their time there, so each is built as one flat function. `General` is for any operation whose first `operands` arguments
are arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from phlox.autodiff.tape import Cotangents, Node, Tracked, next_id
from phlox.autodiff.taping import settled, tape_several
from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients, Needed, Shape

UnaryDerivative: TypeAlias = Callable[[Backend, Array, Array, Array], Array]
"""`(B, g, x, y)`: the gradient towards x of y = f(x), in operations of the backend B."""

BinaryDerivative: TypeAlias = Callable[[Backend, Array, Array, Array, Array], Array]
"""`(B, g, x, y, z)`: the gradient towards one operand of z = f(x, y)."""

Result: TypeAlias = tuple[Array, Any]

# The unions list the possible numbers of arguments, so that a type checker can infer the parameters of a lambda.
Forward: TypeAlias = (
    Callable[[Backend, Any], Result]
    | Callable[[Backend, Any, Any], Result]
    | Callable[[Backend, Any, Any, Any], Result]
    | Callable[[Backend, Any, Any, Any, Any], Result]
    | Callable[..., Result]
)
"""`(B, *operands, *options)` returns the result, and the saved values for its derivative."""

Backward: TypeAlias = (
    Callable[[Backend, Any, Array, Needed], Gradients]
    | Callable[[Backend, Any, Array, Needed, Any], Gradients]
    | Callable[[Backend, Any, Array, Needed, Any, Any], Gradients]
    | Callable[[Backend, Any, Array, Needed, Any, Any, Any], Gradients]
    | Callable[..., Gradients]
)
"""`(B, saved, g, needed, *options)`: one gradient per operand; gradients that are not `needed` are ignored."""

_new = object.__new__


@dataclass(frozen=True, slots=True)
class Unary:
    """y = f(x). `saves` names what the derivative reads: "x", "y", both or neither."""

    saves: str
    derivative: UnaryDerivative


@dataclass(frozen=True, slots=True)
class Partial:
    """The derivative of z = f(x, y) with respect to one operand. `saves` names what it reads of "x", "y" and "z"."""

    saves: str
    derivative: BinaryDerivative


@dataclass(frozen=True, slots=True)
class Binary:
    """z = f(x, y), broadcasting; either operand may be a Python scalar."""

    lhs: Partial
    rhs: Partial


@dataclass(frozen=True, slots=True)
class General:
    """Any operation whose first `operands` arguments are arrays (or None), and whose other arguments are options.

    See `Forward` and `Backward`.
    """

    operands: int
    forward: Forward
    backward: Backward


@dataclass(frozen=True, slots=True)
class MultiOutputRule:
    """An operation with several results, all of them floats; as `General`, except for two functions.

    `forward` returns a tuple of results, and the saved values. `backward(B, saved, gs, needed, *options)` gets one
    gradient per result, or None for a result without a gradient.
    """

    operands: int
    forward: Callable[..., tuple[tuple[Array, ...], Any]]
    backward: Callable[..., Gradients]


Rule: TypeAlias = Unary | Binary | General | MultiOutputRule


def build(inner: Backend, box: type[Tracked], name: str, rule: Rule) -> Callable[..., Any]:
    """The operation `name` of `inner`, recorded on the tape when an operand is tracked, that is, a `box`."""
    match rule:
        case Unary():
            return _unary(inner, box, getattr(inner, name), rule)
        case Binary():
            return _binary(inner, box, getattr(inner, name), rule)
        case General():
            return _general(inner, box, getattr(inner, name), rule)
        case MultiOutputRule():
            return _multi_output(inner, box, getattr(inner, name), rule)


def _unary(
    inner: Backend, box: type[Tracked], function: Callable[[Array], Array], rule: Unary
) -> Callable[[Array], Array]:
    add = box.add
    saves_x, saves_y = "x" in rule.saves, "y" in rule.saves
    derivative = rule.derivative

    def vjp(node: Node, g: Array, cotangents: Cotangents) -> None:
        x, y = node.saved
        dx = derivative(inner, g, x, y)
        parent = node.parents[0].id  # pyright: ignore[reportOptionalMemberAccess]
        cotangents[parent] = add(cotangents[parent], dx) if parent in cotangents else dx

    to_parents = settled(vjp, box)

    def operation(x: Array) -> Array:
        if type(x) is not box:
            return function(x)
        value = x.value
        y = function(value)
        node = _new(Node)
        node.id = next_id()
        node.parents = (x.node,)
        node.vjp = to_parents
        node.saved = (value if saves_x else None, y if saves_y else None)
        result = _new(box)
        result.value = y
        result.node = node
        return result

    return operation


def sum_to(backend: Backend, g: Array, shape: Shape) -> Array:
    """Undo broadcasting: sum a gradient over the axes along which an operand of `shape` was repeated."""
    g_shape = backend.shape(g)
    if g_shape == shape:
        return g
    added = len(g_shape) - len(shape)
    axes = tuple(axis for axis, size in enumerate(g_shape) if axis < added or (shape[axis - added] == 1 and size != 1))
    return backend.reshape(backend.float_sum(g, axes, False), shape)


def _binary(
    inner: Backend, box: type[Tracked], function: Callable[[Array, Any], Array], rule: Binary
) -> Callable[[Array, Any], Array]:
    lhs, rhs = rule.lhs.derivative, rule.rhs.derivative
    saves, saves_lhs, saves_rhs = set(rule.lhs.saves + rule.rhs.saves), rule.lhs.saves, rule.rhs.saves
    both_x, both_y, both_z = (letter in saves for letter in "xyz")
    lhs_x, lhs_y, lhs_z = (letter in saves_lhs for letter in "xyz")
    rhs_x, rhs_y, rhs_z = (letter in saves_rhs for letter in "xyz")
    shape, add = inner.shape, box.add

    def vjp_lhs(node: Node, g: Array, cotangents: Cotangents) -> None:
        x, y, z, size, _ = node.saved
        d = lhs(inner, g, x, y, z)
        if size is not None:
            d = sum_to(inner, d, size)
        parent = node.parents[0].id  # pyright: ignore[reportOptionalMemberAccess]
        cotangents[parent] = add(cotangents[parent], d) if parent in cotangents else d

    def vjp_rhs(node: Node, g: Array, cotangents: Cotangents) -> None:
        x, y, z, _, size = node.saved
        d = rhs(inner, g, x, y, z)
        if size is not None:
            d = sum_to(inner, d, size)
        parent = node.parents[-1].id  # pyright: ignore[reportOptionalMemberAccess]
        cotangents[parent] = add(cotangents[parent], d) if parent in cotangents else d

    def vjp_both(node: Node, g: Array, cotangents: Cotangents) -> None:
        vjp_lhs(node, g, cotangents)
        vjp_rhs(node, g, cotangents)

    to_lhs, to_rhs, to_both = settled(vjp_lhs, box), settled(vjp_rhs, box), settled(vjp_both, box)

    def operation(x: Array, y: Any) -> Array:
        if type(x) is box:
            a = x.value
            node = _new(Node)
            if type(y) is box:
                b = y.value
                z = function(a, b)
                node.parents = (x.node, y.node)
                node.vjp = to_both
                shape_a, shape_b = shape(a), shape(b)
                kept = (a if both_x else None, b if both_y else None, z if both_z else None)
                node.saved = (*kept, None, None) if shape_a == shape_b else (*kept, shape_a, shape_b)
            else:
                z = function(a, y)
                node.parents = (x.node,)
                node.vjp = to_lhs
                size = None if type(y) is float or type(y) is int else shape(a)
                node.saved = (a if lhs_x else None, y if lhs_y else None, z if lhs_z else None, size, None)
        elif type(y) is box:
            b = y.value
            z = function(x, b)
            node = _new(Node)
            node.parents = (y.node,)
            node.vjp = to_rhs
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


def _general(inner: Backend, box: type[Tracked], function: Callable[..., Array], rule: General) -> Callable[..., Array]:
    if rule.operands == 1:
        return _general_of_one(inner, box, function, rule)
    count, add = rule.operands, box.add
    forward: Callable[..., Result] = rule.forward
    backward: Callable[..., Gradients] = rule.backward

    def vjp(node: Node, g: Array, cotangents: Cotangents) -> None:
        saved, needed, options = node.saved
        for parent, d in zip(node.parents, backward(inner, saved, g, needed, *options), strict=True):
            if parent is not None and d is not None:
                cotangents[parent.id] = add(cotangents[parent.id], d) if parent.id in cotangents else d

    to_parents = settled(vjp, box)

    def operation(*arguments: Any) -> Array:
        operands, options = arguments[:count], arguments[count:]
        parents: list[Node | None] = []
        values: list[Any] = []
        for x in operands:
            if type(x) is box:
                parents.append(x.node)
                values.append(x.value)
            else:
                parents.append(None)
                values.append(x)
        if not any(parents):
            return function(*arguments)
        result = _new(box)
        result.value, saved = forward(inner, *values, *options)
        result.node = node = _new(Node)
        node.id = next_id()
        node.parents = tuple(parents)
        node.vjp = to_parents
        node.saved = saved, tuple([parent is not None for parent in parents]), options
        return result

    return operation


def _general_of_one(
    inner: Backend, box: type[Tracked], function: Callable[..., Array], rule: General
) -> Callable[..., Array]:
    add = box.add
    forward: Callable[..., Result] = rule.forward
    backward: Callable[..., Gradients] = rule.backward

    def vjp(node: Node, g: Array, cotangents: Cotangents) -> None:
        saved, options = node.saved
        (d,) = backward(inner, saved, g, (True,), *options)
        if d is not None:
            parent = node.parents[0].id  # pyright: ignore[reportOptionalMemberAccess]
            cotangents[parent] = add(cotangents[parent], d) if parent in cotangents else d

    to_parent = settled(vjp, box)

    def operation(x: Array, *options: Any) -> Array:
        if type(x) is not box:
            return function(x, *options)
        result = _new(box)
        result.value, saved = forward(inner, x.value, *options)
        result.node = node = _new(Node)
        node.id = next_id()
        node.parents = (x.node,)
        node.vjp = to_parent
        node.saved = saved, options
        return result

    return operation


def _multi_output(
    inner: Backend, box: type[Tracked], function: Callable[..., tuple[Array, ...]], rule: MultiOutputRule
) -> Callable[..., tuple[Array, ...]]:
    count, forward, backward = rule.operands, rule.forward, rule.backward

    def operation(*arguments: Any) -> tuple[Array, ...]:
        operands = arguments[:count]
        if not any(type(x) is box for x in operands):
            return function(*arguments)
        options = arguments[count:]
        return tape_several(
            inner,
            box,
            operands,
            lambda *values: forward(inner, *values, *options),
            lambda backend, saved, gs, needed: backward(backend, saved, gs, needed, *options),
        )

    return operation


def as_general(function: Callable[..., Array], rule: Unary | Binary | General) -> General:
    """Convert a rule to a `General` rule."""
    if isinstance(rule, General):
        return rule
    if isinstance(rule, Unary):
        return General(1, *_general_unary(function, rule))
    return General(2, *_general_binary(function, rule))


def _general_unary(function: Callable[..., Array], rule: Unary) -> tuple[Any, Any]:
    def forward(B: Backend, x: Array) -> tuple[Array, Any]:
        y = function(x)
        return y, (x if "x" in rule.saves else None, y if "y" in rule.saves else None)

    def backward(B: Backend, saved: Any, g: Array, needed: Needed) -> Gradients:
        return (rule.derivative(B, g, *saved),)

    return forward, backward


def _general_binary(function: Callable[..., Array], rule: Binary) -> tuple[Any, Any]:
    saves = rule.lhs.saves + rule.rhs.saves

    def forward(B: Backend, x: Any, y: Any) -> tuple[Array, Any]:
        z = function(x, y)
        values = tuple(v if letter in saves else None for v, letter in ((x, "x"), (y, "y"), (z, "z")))
        shapes = tuple(() if isinstance(v, (int, float)) else B.shape(v) for v in (x, y))
        return z, (values, *shapes)

    def backward(B: Backend, saved: Any, g: Array, needed: Needed) -> Gradients:
        (x, y, z), *shapes = saved
        sides = zip((rule.lhs, rule.rhs), shapes, needed, strict=True)
        return tuple(sum_to(B, d.derivative(B, g, x, y, z), shape) if need else None for d, shape, need in sides)

    return forward, backward
