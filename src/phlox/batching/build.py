"""Building an operation on mapped arrays from a batching rule.

A rule says how an operation on one example runs for all examples at once, with the batch as the first axis. A few kinds
of rules are enough for most operations: elementwise ones, those along given axes, those on stacks of matrices, and
those whose first axis the batch can be folded into. `GeneralRule` is for any other operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from phlox.backend.contract.types import Array
from phlox.batching.mapped import MappedOps


@dataclass(frozen=True, slots=True)
class ElementwiseRule:
    """The first `operands` arguments, some of which may be scalars or None, broadcast."""

    operands: int


@dataclass(frozen=True, slots=True)
class AxisRule:
    """One operand; the option at this position (0 is the first option) is an axis, or several axes."""

    position: int


@dataclass(frozen=True, slots=True)
class MatrixRule:
    """Each operand has a rank in `ranks`; all its axes before the last `rank` ones are batch axes, of any number."""

    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FoldedRule:
    """The first axis of the first `operands` arguments and of the result is a batch axis already."""

    operands: int


@dataclass(frozen=True, slots=True)
class GeneralRule:
    """`(M, *arguments)`, called if one of the first `operands` arguments (or an item of a sequence) is mapped."""

    operands: int
    function: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class RandomRule:
    """`(M, *arguments)`, always called: a random draw."""

    function: Callable[..., Any]


Rule: TypeAlias = ElementwiseRule | AxisRule | MatrixRule | FoldedRule | GeneralRule | RandomRule

_new = object.__new__


def build(M: MappedOps, name: str, rule: Rule) -> Callable[..., Any]:
    """The operation `name` of `M.inner`, for mapped arrays; without a mapped array it calls the inner operation."""
    function = getattr(M.inner, name)
    match rule:
        case ElementwiseRule(1):
            return _unary(M, function)
        case ElementwiseRule(2):
            return _binary(M, function)
        case ElementwiseRule(count):
            return _elementwise(M, function, count)
        case AxisRule(position):
            return _along_axes(M, function, position)
        case MatrixRule(ranks):
            return _on_matrices(M, function, ranks)
        case FoldedRule(count):
            return _fold_batch(M, function, count)
        case GeneralRule(count, rewritten):
            return _general(M, function, count, rewritten)
        case RandomRule(rewritten):
            return lambda *arguments: rewritten(M, *arguments)


def is_scalar(x: Any) -> bool:
    """Is x a Python scalar or None, which have no shape?"""
    return x is None or isinstance(x, (int, float))


def _unary(M: MappedOps, function: Callable[..., Array]) -> Callable[..., Array]:
    box = M.box

    def operation(x: Array, *options: Any) -> Array:
        if type(x) is not box:
            return function(x, *options)
        result = _new(box)
        result.value = function(x.value, *options)
        return result

    return operation


def _binary(M: MappedOps, function: Callable[..., Array]) -> Callable[..., Array]:
    box, shape, raised = M.box, M.inner.shape, M.raised

    def operation(x: Array, y: Any, *options: Any) -> Array:
        if type(x) is box:
            a = x.value
            if type(y) is box:
                b = y.value
                rank, other = len(shape(a)), len(shape(b))
                if rank != other:
                    a, b = raised(a, max(rank, other)), raised(b, max(rank, other))
            else:
                b = y
                if not is_scalar(b):
                    a = raised(a, len(shape(b)) + 1)
        elif type(y) is box:
            a, b = x, y.value
            if not is_scalar(a):
                b = raised(b, len(shape(a)) + 1)
        else:
            return function(x, y, *options)
        result = _new(box)
        result.value = function(a, b, *options)
        return result

    return operation


def _elementwise(M: MappedOps, function: Callable[..., Array], count: int) -> Callable[..., Array]:
    box, shape = M.box, M.inner.shape

    def operation(*arguments: Any) -> Array:
        operands = arguments[:count]
        if not any(type(x) is box for x in operands):
            return function(*arguments)
        rank = max([len(shape(x.value)) if type(x) is box else len(shape(x)) + 1 for x in operands if not is_scalar(x)])
        values = [M.raised(x.value, rank) if type(x) is box else x for x in operands]
        return M.boxed(function(*values, *arguments[count:]))

    return operation


def shifted(axes: Any) -> Any:
    """One or several axes of an example, as axes of the inner array."""
    return axes + 1 if isinstance(axes, int) else tuple([axis + 1 for axis in axes])


def _along_axes(M: MappedOps, function: Callable[..., Array], position: int) -> Callable[..., Array]:
    box = M.box

    def operation(x: Array, *options: Any) -> Array:
        if type(x) is not box:
            return function(x, *options)
        moved = [shifted(option) if index == position else option for index, option in enumerate(options)]
        result = _new(box)
        result.value = function(x.value, *moved)
        return result

    return operation


def _on_matrices(M: MappedOps, function: Callable[..., Any], ranks: tuple[int, ...]) -> Callable[..., Any]:
    box, inner, count = M.box, M.inner, len(ranks)

    def operation(*arguments: Any) -> Any:
        operands = arguments[:count]
        if not any(type(x) is box for x in operands):
            return function(*arguments)
        if count == 1:
            return M.boxed_all(function(operands[0].value, *arguments[1:]))
        # The batch axes broadcast: every operand gets the hidden axis, and as many others as the longest shape has.
        depth = max([len(M.shape(x)) - rank for x, rank in zip(operands, ranks, strict=True)])
        size = M.size(operands)
        values = [M.raised(M.spread(x, size), 1 + depth + rank) for x, rank in zip(operands, ranks, strict=True)]
        stack = _broadcast([inner.shape(x)[: 1 + depth] for x in values])
        values = [
            inner.broadcast_to(x, (*stack, *inner.shape(x)[1 + depth :])) if inner.shape(x)[: 1 + depth] != stack else x
            for x in values
        ]
        return M.boxed_all(function(*values, *arguments[count:]))

    return operation


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple([next((size for size in sizes if size != 1), 1) for sizes in zip(*shapes, strict=True)])


def _fold_batch(M: MappedOps, function: Callable[..., Array], count: int) -> Callable[..., Array]:
    box = M.box

    def operation(*arguments: Any) -> Array:
        operands = arguments[:count]
        if not any(type(x) is box for x in operands):
            return function(*arguments)
        size = M.size(operands)
        result = function(*[fold(M, x, size) for x in operands], *arguments[count:])
        return unfold(M, result, size)

    return operation


def fold(M: MappedOps, x: Array, size: int) -> Array:
    """Merge the batch axis of x with the first axis of an example."""
    value = M.spread(x, size)
    n, first, *sizes = M.inner.shape(value)
    return M.inner.reshape(value, (n * first, *sizes))


def unfold(M: MappedOps, value: Array, size: int) -> Array:
    """The inverse of `fold`."""
    rows, *sizes = M.inner.shape(value)
    return M.boxed(M.inner.reshape(value, (size, rows // size if size else 0, *sizes)))


def _general(
    M: MappedOps, function: Callable[..., Any], count: int, rewritten: Callable[..., Any]
) -> Callable[..., Any]:
    box = M.box

    def operation(*arguments: Any) -> Any:
        for x in arguments[:count]:
            if type(x) is box:
                return rewritten(M, *arguments)
            if isinstance(x, (tuple, list)) and any(type(item) is box for item in cast("list[Any]", x)):
                return rewritten(M, *arguments)
        return function(*arguments)

    return operation
