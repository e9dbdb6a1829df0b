"""Loops along an axis as the operator Scan, whose body is a graph of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from phlox.backend import Float, Int
from phlox.backend.contract.reduction import ReductionOps
from phlox.backend.contract.types import Array
from phlox.backend.tracing.dimension import is_open
from phlox.export.lines import line_of_caller
from phlox.export.to_onnx.graph import Graph, Interface, Node, current, writing
from phlox.host.dtypes import INT_RANGES

if TYPE_CHECKING:
    from phlox.export.to_onnx.engine import OnnxEngine

Body = Callable[[tuple[Array, ...], tuple[Array, ...]], tuple[Sequence[Array], Sequence[Array]]]


def scan(
    A: OnnxEngine, body: Body, carry: Sequence[Array], xs: Sequence[Array], length: int, reverse: bool
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """`TracingOps.scan` as one Scan: its states are the carry, and its scanned inputs are the xs."""
    if carry and _is_words(carry[0]):

        def without(state: tuple[Array, ...], one: tuple[Array, ...]) -> tuple[Sequence[Array], Sequence[Array]]:
            after, found = body((carry[0], *state), one)
            return after[1:], found

        last, found = scan(A, without, carry[1:], xs, length, reverse)
        return (carry[0], *last), found
    arrays = [x for x in (*carry, *xs) if not isinstance(x, tuple)]
    place = A.device_of(arrays[0]) if arrays else A.device()
    entries = [_numbers(A, cast("tuple[Any, ...]", x), place) if isinstance(x, tuple) else x for x in xs]
    if not entries:
        entries = [A.int_arange(0, length, 1, place)]
    inner = Graph(current().opset, current())
    before = [_input(A, inner, "state", x, A.shape(x)) for x in carry]
    given = [_input(A, inner, "element", x, A.shape(x)[1:]) for x in entries]
    with writing(inner):
        after, ys = body(tuple(before), tuple(given[: len(xs)]))
        results = [*after, *ys]
        taken: set[str] = set()
        for x in results:
            name = A.name_of(x)
            if not inner.produced_here(name) or name in taken:
                name = inner.own(inner.fresh(f"{name}_result"))
                inner.nodes.append(_identity(inner, A.name_of(x), name))
            taken.add(name)
            inner.outputs.append(Interface(name, A.element_name(A.kind_of(x)), A.shape(x)))
    shapes = [(A.shape(x), A.kind_of(x)) for x in carry]
    shapes += [((length, *A.shape(y)), A.kind_of(y)) for y in ys]
    options = {"scan_input_directions": [1] * len(entries), "scan_output_directions": [1] * len(ys)} if reverse else {}
    options = {name: value for name, value in options.items() if value}
    operands = [*carry, *entries]
    found = A.emit_several("Scan", operands, shapes, body=inner, num_scan_inputs=len(entries), **options)
    return tuple(found[: len(carry)]), tuple(found[len(carry) :])


def _is_words(x: Any) -> bool:
    """Is this the state of the random stream? It is no value: a loop that is exported draws nothing."""
    return isinstance(x, np.ndarray) and cast("np.ndarray[Any, Any]", x).dtype == np.uint32


def _numbers(A: OnnxEngine, x: tuple[Any, ...], place: Any) -> Array:
    array = np.asarray(x)
    return A.inner.from_host(array, Int if array.dtype.kind == "i" else Float, place.on(A.inner))


def _input(A: OnnxEngine, inner: Graph, name: str, x: Array, shape: Sequence[int]) -> Array:
    name = inner.own(inner.fresh(name))
    kind = A.kind_of(x)
    inner.inputs.append(Interface(name, A.element_name(kind), tuple(shape)))
    return A.named(name, shape, kind)


def _identity(inner: Graph, source: str, name: str) -> Any:
    path = inner.paths[-1] if inner.paths else ""
    return Node("Identity", name, [source], [name], {}, path, line_of_caller())


def cumulative(name: str, combine: str, start: float) -> Callable[..., Array]:
    """An operation that combines each element with all before it; along an open axis, a loop from `start`."""

    def rule(A: OnnxEngine, x: Array, axis: int) -> Array:
        if not is_open(A.shape(x)[axis]):
            return getattr(ReductionOps, name)(A, x, axis)
        rank = len(A.shape(x))
        order = (axis, *[one for one in range(rank) if one != axis])
        lines = A.permute_dims(x, order)
        size, *rest = A.shape(lines)
        kind = A.kind_of(x)
        first = INT_RANGES[A.int_element][start > 0] if kind is Int and math.isinf(start) else start
        begin = getattr(A, f"{kind.name}_full")(tuple(rest), first, A.device_of(x))

        def body(carry: tuple[Array, ...], one: tuple[Array, ...]) -> tuple[Sequence[Array], Sequence[Array]]:
            total = getattr(A, combine)(carry[0], one[0])
            return [total], [total]

        _, (found,) = A.scan(body, [begin], [lines], size)
        return A.permute_dims(found, tuple([order.index(one) for one in range(rank)]))

    return rule
