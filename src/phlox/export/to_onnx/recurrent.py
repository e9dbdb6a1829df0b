"""Recurrent layers as operators; the graph puts their weights into the operators' order.

Runtimes have these operators only for f32: at other precisions a layer is a loop of its definition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from phlox.backend import Float
from phlox.backend.contract.nn.recurrent import RecurrentOps
from phlox.backend.contract.types import Array
from phlox.export.to_onnx.graph import current

if TYPE_CHECKING:
    from phlox.export.to_onnx.engine import OnnxEngine


def _operator(
    op: str, definition: Callable[..., Any], states: int, weights: int, order: tuple[int, ...], **options: Any
) -> Callable[..., Any]:
    """The rule of a layer with so many states and weights; `order` has our place of each of the operator's gates."""

    def rule(A: OnnxEngine, x: Array, *operands: Any) -> tuple[Array, ...]:
        alive, reverse, *activation = operands[states + weights :]
        if not _has_operator(A, alive):
            return definition(A, x, *operands)
        own = options | ({"activations": [name.capitalize() for name in activation]} if activation else {})
        given = _Weights(A, order, *operands[states : states + weights])
        return _layer(A, op, x, given, operands[:states], alive, reverse, **own)

    return rule


def _has_operator(A: OnnxEngine, alive: Array | None) -> bool:
    """Can the operator be used? Runtimes take f32, and lengths: all elements must come before the padding."""
    return A.float_element == "f32" and (alive is None or _is_of_lengths(alive.name))


def _is_of_lengths(name: str) -> bool:
    """Is this mask [time, batch, 1] a comparison of 0, 1, 2, ... with lengths, or a constant like that?"""
    graph = current()
    known = graph.root.constants.get(name)
    if known is not None:
        return bool((known[1:] <= known[:-1]).all())
    node = graph.makers.get(name)
    while node is not None and node.op in ("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand"):
        node = graph.makers.get(node.inputs[0])
    if node is None or node.op != "Less":
        return False
    place = node.inputs[0]
    while (maker := graph.makers.get(place)) is not None and maker.op in ("Reshape", "Unsqueeze", "Expand"):
        place = maker.inputs[0]
    numbers = graph.root.constants.get(place)
    if numbers is not None:
        return np.array_equal(numbers.ravel(), np.arange(numbers.size))
    first = None if maker is None or maker.op != "Range" else graph.root.constants.get(maker.inputs[0])
    return first is not None and not first.any()


class _Weights:
    """The three weights that an operator takes: [1, gates * width, ...], the gates in its order."""

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
            place = A.device_of(weight)
            first = A.float_full((count * width,), 0.0, place) if bias is None else bias
            second = A.float_full((count * width,), 0.0, place)
            if recurrent_bias is not None:  # of the last gate alone, which stays the last
                second = A.concat([A.float_full(((count - 1) * width,), 0.0, place), recurrent_bias], 0)
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
    """[time, batch, width] and the last states, of one direction."""
    time, batch, _ = A.shape(x)
    width = weights.width
    lengths = None
    if alive is not None:
        lengths = A.int_sum(A.bool_into_int(alive), (0, 2), False)
        lengths = lengths if A.int_element == "i32" else current().add("Cast", [lengths.name], to=6)[0]
    states = [None if getattr(one, "fill", None) == 0.0 else A.expand_dims(one, (0,)) for one in start]
    while states and states[-1] is None:
        states.pop()
    operands = [x, weights.weight, weights.recurrent, weights.bias, lengths, *states]
    while operands[-1] is None:
        operands.pop()
    options |= {"direction": "reverse"} if reverse else {}
    shapes = [((time, 1, batch, width), Float), *[((1, batch, width), Float)] * len(start)]
    y, *last = A.emit_several(op, operands, shapes, hidden_size=width, **options)
    return A.squeeze(y, (1,)), *[A.squeeze(one, (0,)) for one in last]


lstm = _operator("LSTM", RecurrentOps.lstm, 2, 3, (0, 3, 1, 2))  # gates i, o, f, g
gru = _operator("GRU", RecurrentOps.gru, 1, 4, (1, 0, 2), linear_before_reset=1)  # z, r, n; the reset after the product
rnn = _operator("RNN", RecurrentOps.rnn, 1, 3, (0,))
