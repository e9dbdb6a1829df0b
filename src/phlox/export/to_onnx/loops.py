"""Loops along an axis as the operator Scan, whose body is a graph of its own, and recurrent layers as operators.

Runtimes have the operators of recurrent layers only for f32; at other precisions a layer is a loop of its definition.
The graph reorders the weights as the operators need them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from phlox.backend import Float, Int
from phlox.backend.contract.nn.recurrent import RecurrentOps
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

        def without(state: tuple[Array, ...], xs_of_step: tuple[Array, ...]) -> tuple[Sequence[Array], Sequence[Array]]:
            after, ys_of_step = body((carry[0], *state), xs_of_step)
            return after[1:], ys_of_step

        last, outputs = scan(A, without, carry[1:], xs, length, reverse)
        return (carry[0], *last), outputs
    arrays = [x for x in (*carry, *xs) if not isinstance(x, tuple)]
    device = A.device_of(arrays[0]) if arrays else A.device()
    entries = [_numbers(A, cast("tuple[Any, ...]", x), device) if isinstance(x, tuple) else x for x in xs]
    if not entries:
        entries = [A.int_arange(0, length, 1, device)]
    inner = Graph(current().opset, current())
    before = [_input(A, inner, "state", x, A.shape(x)) for x in carry]
    elements = [_input(A, inner, "element", x, A.shape(x)[1:]) for x in entries]
    with writing(inner):
        after, ys = body(tuple(before), tuple(elements[: len(xs)]))
        results = [*after, *ys]
        result_names: set[str] = set()
        for x in results:
            name = A.name_of(x)
            if not inner.produced_here(name) or name in result_names:
                name = inner.note_home(inner.fresh(f"{name}_result"))
                inner.nodes.append(_identity(inner, A.name_of(x), name))
            result_names.add(name)
            inner.outputs.append(Interface(name, A.element_name(A.kind_of(x)), A.shape(x)))
    shapes = [(A.shape(x), A.kind_of(x)) for x in carry]
    shapes += [((length, *A.shape(y)), A.kind_of(y)) for y in ys]
    options = {"scan_input_directions": [1] * len(entries), "scan_output_directions": [1] * len(ys)} if reverse else {}
    options = {name: value for name, value in options.items() if value}
    operands = [*carry, *entries]
    outputs = A.emit_several("Scan", operands, shapes, body=inner, num_scan_inputs=len(entries), **options)
    return tuple(outputs[: len(carry)]), tuple(outputs[len(carry) :])


def _is_words(x: Any) -> bool:
    """Is this the state of the random stream? It is not a value of the graph: an exported loop draws nothing."""
    return isinstance(x, np.ndarray) and cast("np.ndarray[Any, Any]", x).dtype == np.uint32


def _numbers(A: OnnxEngine, x: tuple[Any, ...], device: Any) -> Array:
    array = np.asarray(x)
    return A.inner.from_host(array, Int if array.dtype.kind == "i" else Float, device.on(A.inner))


def _input(A: OnnxEngine, inner: Graph, name: str, x: Array, shape: Sequence[int]) -> Array:
    name = inner.note_home(inner.fresh(name))
    kind = A.kind_of(x)
    inner.inputs.append(Interface(name, A.element_name(kind), tuple(shape)))
    return A.named(name, shape, kind)


def _identity(inner: Graph, source: str, name: str) -> Any:
    path = inner.paths[-1] if inner.paths else ""
    return Node("Identity", name, [source], [name], {}, path, line_of_caller())


def cumulative(name: str, combine: str, start: float) -> Callable[..., Array]:
    """An operation that combines each element with all elements before it; a loop from `start` along an open axis."""

    def rule(A: OnnxEngine, x: Array, axis: int) -> Array:
        if not is_open(A.shape(x)[axis]):
            return getattr(ReductionOps, name)(A, x, axis)
        rank = len(A.shape(x))
        order = (axis, *[dim for dim in range(rank) if dim != axis])
        lines = A.permute_dims(x, order)
        size, *other_sizes = A.shape(lines)
        kind = A.kind_of(x)
        first = INT_RANGES[A.int_element][start > 0] if kind is Int and math.isinf(start) else start
        begin = getattr(A, f"{kind.name}_full")(tuple(other_sizes), first, A.device_of(x))

        def body(carry: tuple[Array, ...], element: tuple[Array, ...]) -> tuple[Sequence[Array], Sequence[Array]]:
            total = getattr(A, combine)(carry[0], element[0])
            return [total], [total]

        _, (totals,) = A.scan(body, [begin], [lines], size)
        return A.permute_dims(totals, tuple([order.index(dim) for dim in range(rank)]))

    return rule


def _operator(
    op: str, definition: Callable[..., Any], states: int, weights: int, order: tuple[int, ...], **options: Any
) -> Callable[..., Any]:
    """The rule of a layer with these numbers of states and weights; `order`: our index of each gate of the operator."""

    def rule(A: OnnxEngine, x: Array, *operands: Any) -> tuple[Array, ...]:
        alive, reverse, *activation = operands[states + weights :]
        if not _has_operator(A, alive):
            return definition(A, x, *operands)
        own = options | ({"activations": [name.capitalize() for name in activation]} if activation else {})
        layer_weights = _Weights(A, order, *operands[states : states + weights])
        return _layer(A, op, x, layer_weights, operands[:states], alive, reverse, **own)

    return rule


def _has_operator(A: OnnxEngine, alive: Array | None) -> bool:
    """Can the operator be used? Runtimes take only f32, and lengths: the padding must be at the end."""
    return A.float_element == "f32" and (alive is None or _is_of_lengths(alive.name))


def _is_of_lengths(name: str) -> bool:
    """Is this mask [time, batch, 1] a comparison of 0, 1, 2, ... with lengths, or a constant of this form?"""
    graph = current()
    mask = graph.root.constants.get(name)
    if mask is not None:
        return bool((mask[1:] <= mask[:-1]).all())
    node = graph.makers.get(name)
    while node is not None and node.op in ("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand"):
        node = graph.makers.get(node.inputs[0])
    if node is None or node.op != "Less":
        return False
    operand = node.inputs[0]
    while (maker := graph.makers.get(operand)) is not None and maker.op in ("Reshape", "Unsqueeze", "Expand"):
        operand = maker.inputs[0]
    numbers = graph.root.constants.get(operand)
    if numbers is not None:
        return np.array_equal(numbers.ravel(), np.arange(numbers.size))
    first = None if maker is None or maker.op != "Range" else graph.root.constants.get(maker.inputs[0])
    return first is not None and not first.any()


class _Weights:
    """The three weights that an operator takes: [1, gates * width, ...], with the gates in the operator's order."""

    def __init__(
        self,
        A: OnnxEngine,
        order: tuple[int, ...],
        weight: Array,
        recurrent: Array,
        bias: Array | None,
        recurrent_bias: Array | None = None,
    ) -> None:
        self.width: int = A.shape(recurrent)[0]
        width, count = self.width, len(order)
        rows = np.concatenate([np.arange(gate * width, (gate + 1) * width) for gate in order])
        self._rows = None if count == 1 else current().integers(rows.tolist())
        self.weight = self._ordered(A, A.permute_dims(weight, (1, 0)))
        self.recurrent = self._ordered(A, A.permute_dims(recurrent, (1, 0)))
        self.bias: Array | None = None
        if bias is not None or recurrent_bias is not None:
            device = A.device_of(weight)
            first = A.float_full((count * width,), 0.0, device) if bias is None else bias
            second = A.float_full((count * width,), 0.0, device)
            if recurrent_bias is not None:  # it belongs to the last gate alone, which stays the last
                second = A.concat([A.float_full(((count - 1) * width,), 0.0, device), recurrent_bias], 0)
            self.bias = A.concat([self._ordered(A, first), A.expand_dims(second, (0,))], 1)

    def _ordered(self, A: OnnxEngine, x: Array) -> Array:
        y = x if self._rows is None else A.emit("Gather", [x, self._rows], A.shape(x), Float, axis=0)
        return A.expand_dims(y, (0,))


def _layer(
    A: OnnxEngine,
    op: str,
    x: Array,
    weights: _Weights,
    start: tuple[Array, ...],
    alive: Array | None,
    reverse: bool,
    **options: Any,
) -> tuple[Array, ...]:
    """The outputs [time, batch, width] and the last states of one direction."""
    time, batch, _ = A.shape(x)
    width = weights.width
    lengths = None
    if alive is not None:
        lengths = A.int_sum(A.bool_into_int(alive), (0, 2), False)
        lengths = lengths if A.int_element == "i32" else current().add("Cast", [lengths.name], to=6)[0]
    states = [None if getattr(state, "fill", None) == 0.0 else A.expand_dims(state, (0,)) for state in start]
    while states and states[-1] is None:
        states.pop()
    operands = [x, weights.weight, weights.recurrent, weights.bias, lengths, *states]
    while operands[-1] is None:
        operands.pop()
    options |= {"direction": "reverse"} if reverse else {}
    shapes = [((time, 1, batch, width), Float), *[((1, batch, width), Float)] * len(start)]
    y, *last = A.emit_several(op, operands, shapes, hidden_size=width, **options)
    return A.squeeze(y, (1,)), *[A.squeeze(state, (0,)) for state in last]


lstm = _operator("LSTM", RecurrentOps.lstm, 2, 3, (0, 3, 1, 2))  # gates i, o, f, g
gru = _operator("GRU", RecurrentOps.gru, 1, 4, (1, 0, 2), linear_before_reset=1)  # z, r, n; the reset after the product
rnn = _operator("RNN", RecurrentOps.rnn, 1, 3, (0,))
