"""Recurrent layers: by Phlox's own functions if the node has the usual options, otherwise step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phlox.errors import RangeError
from phlox.interop.onnx.node import Node
from phlox.interop.onnx.registry import operators
from phlox.tensor import Tensor, arange, concat, functional, matmul, stack, where, zeros

X = Tensor[Any, Any, Any]
Activation = Callable[[X], X]

Written = Activation | Callable[[X, float], X] | Callable[[X, float, float], X]

_ACTIVATIONS: dict[str, tuple[Written, tuple[float, ...]]] = {
    "relu": (lambda x: x.relu(), ()),
    "tanh": (lambda x: x.tanh(), ()),
    "sigmoid": (lambda x: x.sigmoid(), ()),
    "softsign": (lambda x: x.softsign(), ()),
    "softplus": (lambda x: x.softplus(), ()),
    "affine": (lambda x, a, b: x * a + b, (1.0, 0.0)),
    "leakyrelu": (lambda x, a: x.leaky_relu(a), (0.01,)),
    "elu": (lambda x, a: x.elu(a), (1.0,)),
    "thresholdedrelu": (lambda x, a: where(x > a, x, 0.0), (1.0,)),
    "scaledtanh": (lambda x, a, b: (x * b).tanh() * a, (1.0, 1.0)),
    "hardsigmoid": (lambda x, a, b: (x * a + b).clip(0.0, 1.0), (0.2, 0.5)),
}
"""The functions, and the defaults of the alpha and the beta that they take."""
_USUAL = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""The positions of Phlox's gates among those of ONNX: i o f c as i f g o, and z r h as r z n."""


@dataclass(slots=True)
class Direction:
    """The operands of one direction; x is [batch, time, features]."""

    node: Node
    x: X
    weight: X
    """[gates * width, features]"""
    recurrent: X
    """[gates * width, width]"""
    bias: X | None
    """[2 * gates * width]"""
    hidden: X
    cell: X | None
    peephole: X | None
    mask: X | None
    """[batch, time]"""
    reverse: bool
    names: list[str]
    functions: list[Activation]

    def clipped(self, x: X) -> X:
        """The operand of an activation."""
        limit = self.node.get("clip")
        return x if limit is None else x.clip(-limit, limit)


def _gates(x: X, kind: str, axis: int = 0) -> X:
    """The gates in Phlox's order."""
    parts = x.split(x.shape[axis] // _GATES[kind], axis)
    return concat([parts[position] for position in _ORDER[kind]], axis) if len(parts) > 1 else x


def _is_usual(layer: Direction) -> bool:
    kind, node = layer.node.operator, layer.node
    if node.get("clip") is not None or node.get("input_forget", 0) or layer.peephole is not None:
        return False
    if kind == "GRU" and not node.get("linear_before_reset", 0):
        return False
    return layer.names == _USUAL[kind] or (kind == "RNN" and layer.names == ["relu"])


def _by_phlox(layer: Direction) -> tuple[X, X, X | None]:
    kind = layer.node.operator
    weight, recurrent = (_gates(part, kind).mT for part in (layer.weight, layer.recurrent))
    options: dict[str, Any] = {"mask": layer.mask, "reverse": layer.reverse}
    count = layer.weight.shape[0]
    bias = None if layer.bias is None else layer.bias[:count] + layer.bias[count:]
    if kind == "LSTM":
        assert layer.cell is not None
        bias = None if bias is None else _gates(bias, kind)
        return functional.lstm(layer.x, layer.hidden, layer.cell, weight, recurrent, bias, **options)
    if kind == "GRU":
        inner = None
        if layer.bias is not None:
            width = count // 3
            first, second = (_gates(part, kind) for part in (layer.bias[:count], layer.bias[count:]))
            inner = second[2 * width :]
            bias = concat([first[: 2 * width] + second[: 2 * width], first[2 * width :]], 0)
        y, hidden = functional.gru(layer.x, layer.hidden, weight, recurrent, bias, inner, **options)
        return y, hidden, None
    activation: Any = layer.names[0]
    y, hidden = functional.rnn(layer.x, layer.hidden, weight, recurrent, bias, activation=activation, **options)
    return y, hidden, None


def _in_steps(layer: Direction) -> tuple[X, X, X | None]:
    """One step after the other, as ONNX defines them."""
    step = {"LSTM": _lstm_step, "GRU": _gru_step, "RNN": _rnn_step}[layer.node.operator]
    h, c = layer.hidden, layer.cell
    outputs: list[X] = []
    times = range(layer.x.shape[1])
    for time in reversed(times) if layer.reverse else times:
        new_h, new_c = step(layer, layer.x[:, time], h, c)
        shown = new_h
        if layer.mask is not None:
            is_present = layer.mask[:, time].expand_dims(-1)
            shown = where(is_present, new_h, 0.0)
            new_h = where(is_present, new_h, h)
            new_c = None if new_c is None or c is None else where(is_present, new_c, c)
        h, c = new_h, new_c
        outputs.append(shown)
    return stack(outputs[::-1] if layer.reverse else outputs, 1), h, c


Step = tuple[X, "X | None"]


def _halves(bias: X | None, count: int) -> tuple[X | float, X | float]:
    return (0.0, 0.0) if bias is None else (bias[:count], bias[count:])


def _lstm_step(layer: Direction, x: X, h: X, c: X | None) -> Step:
    assert c is not None
    f, g, last = layer.functions
    first, second = _halves(layer.bias, layer.weight.shape[0])
    width = h.shape[-1]
    i, o, forget, new = (matmul(x, layer.weight.mT) + matmul(h, layer.recurrent.mT) + first + second).split(width, -1)
    if layer.peephole is not None:
        i, forget = i + layer.peephole[:width] * c, forget + layer.peephole[2 * width :] * c
    i = f(layer.clipped(i))
    forget = 1.0 - i if layer.node.get("input_forget", 0) else f(layer.clipped(forget))
    c = forget * c + i * g(layer.clipped(new))
    if layer.peephole is not None:
        o = o + layer.peephole[width : 2 * width] * c
    return f(layer.clipped(o)) * last(c), c


def _gru_step(layer: Direction, x: X, h: X, c: X | None) -> Step:
    f, g = layer.functions
    width = h.shape[-1]
    inputs, bias = _halves(layer.bias, 3 * width)
    z, r, new = (matmul(x, layer.weight.mT) + inputs).split(width, -1)
    both = matmul(h, layer.recurrent[: 2 * width].mT)
    inner: Any = 0.0
    if isinstance(bias, Tensor):
        both, inner = both + bias[: 2 * width], bias[2 * width :]
    z, r = f(layer.clipped(z + both[:, :width])), f(layer.clipped(r + both[:, width:]))
    last = layer.recurrent[2 * width :].mT
    if layer.node.get("linear_before_reset", 0):
        new = new + r * (matmul(h, last) + inner)
    else:
        new = new + matmul(r * h, last) + inner
    return (1.0 - z) * g(layer.clipped(new)) + z * h, None


def _rnn_step(layer: Direction, x: X, h: X, c: X | None) -> Step:
    first, second = _halves(layer.bias, layer.weight.shape[0])
    return layer.functions[0](
        layer.clipped(matmul(x, layer.weight.mT) + matmul(h, layer.recurrent.mT) + first + second)
    ), None


def _activations(node: Node, count: int) -> tuple[list[str], list[Activation]]:
    names = [name.lower() for name in node.get("activations") or [*_USUAL[node.operator]] * count]
    unknown = [name for name in names if name not in _ACTIVATIONS]
    if unknown:
        raise RangeError(f"{node.operator}: the activation {unknown[0]!r} is not known")
    alphas, betas = (list(node.get(f"activation_{which}") or ()) for which in ("alpha", "beta"))
    functions: list[Activation] = []
    for name in names:
        function, defaults = _ACTIVATIONS[name]
        pairs = zip((alphas, betas), defaults, strict=False)
        functions.append(_with(function, [options.pop(0) if options else default for options, default in pairs]))
    return names, functions


def _with(function: Any, options: list[float]) -> Activation:
    return lambda x: function(x, *options)


def _recurrent(
    node: Node,
    x: X,
    weight: X,
    recurrent: X,
    bias: X | None = None,
    lengths: X | None = None,
    hidden: X | None = None,
    cell: X | None = None,
    peephole: X | None = None,
) -> tuple[X, ...]:
    kind, batch_first = node.operator, bool(node.get("layout", 0))
    x = x if batch_first else x.swapaxes(0, 1)
    count, width = recurrent.shape[0], recurrent.shape[-1]
    if batch_first:
        hidden, cell = (None if state is None else state.swapaxes(0, 1) for state in (hidden, cell))
    names, functions = _activations(node, count)
    each = len(_USUAL[kind])
    mask = None
    if lengths is not None:
        mask = arange(x.shape[1], device=x.device) < lengths.expand_dims(-1)
    results: list[tuple[X, X, X | None]] = []
    for index in range(count):
        start = zeros((x.shape[0], width), device=x.device)
        part = slice(index * each, (index + 1) * each)
        layer = Direction(
            node, x, weight[index], recurrent[index], None if bias is None else bias[index],
            start if hidden is None else hidden[index],
            None if kind != "LSTM" else start if cell is None else cell[index],
            None if peephole is None else peephole[index], mask,
            index == 1 or node.get("direction", "forward") == "reverse", names[part], functions[part],
        )  # fmt: skip
        results.append(_by_phlox(layer) if _is_usual(layer) else _in_steps(layer))
    # [batch, time, directions, width] or [batch, directions, time, width]
    y = stack([result[0] for result in results], 2 if batch_first else 1)
    y = y if batch_first else y.permute_dims((2, 1, 0, 3))
    axis = 1 if batch_first else 0
    last = stack([result[1] for result in results], axis)
    if kind != "LSTM":
        return y, last
    return y, last, stack([result[2] for result in results if result[2] is not None], axis)


operators(dict.fromkeys(_GATES, _recurrent))
