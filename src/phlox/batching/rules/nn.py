"""Composites of neural networks: if the operands allow it, the batch is folded into an independent first axis.

Otherwise (each example has its own weights) the contract's definition is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phlox.backend.contract.nn.attention import AttentionOps, Mask, Weighting
from phlox.backend.contract.nn.linear import DenseOps
from phlox.backend.contract.nn.loss import LossOps
from phlox.backend.contract.nn.norm import NormOps
from phlox.backend.contract.nn.packed import PackedOps
from phlox.backend.contract.nn.recurrent import RecurrentOps
from phlox.backend.contract.types import Array, Shape, Widths
from phlox.batching.build import FoldedRule, GeneralRule, Rule, fold, unfold
from phlox.batching.mapped import MappedOps


def _all_share(M: MappedOps, *weights: Array | None) -> bool:
    """Do all examples share these operands?"""
    return all(type(weight) is not M.box for weight in weights)


# --- over the last axis, with weights that all examples share


def _rowwise(name: str, definition: Callable[..., Array], weights: int) -> Rule:
    def rule(M: MappedOps, x: Array, *operands: Any) -> Array:
        if type(x) is M.box and _all_share(M, *operands[:weights]):
            return M.boxed(getattr(M.inner, name)(x.value, *operands))
        return definition(M, x, *operands)

    return GeneralRule(1 + weights, rule)


# --- examples folded into the rows


def _group_norm(M: MappedOps, x: Array, gamma: Array | None, beta: Array | None, groups: int, epsilon: float) -> Array:
    if not _all_share(M, gamma, beta):
        return NormOps.group_norm(M, x, gamma, beta, groups, epsilon)
    size = M.size([x])
    return unfold(M, M.inner.group_norm(fold(M, x, size), gamma, beta, groups, epsilon), size)


def _cross_entropy(
    M: MappedOps, logits: Array, targets: Array, weight: Array | None, smoothing: float, ignored: int | None
) -> Array:
    if not _all_share(M, weight):
        return LossOps.cross_entropy(M, logits, targets, weight, smoothing, ignored)
    size = M.size([logits, targets])
    losses = M.inner.cross_entropy(fold(M, logits, size), fold(M, targets, size), weight, smoothing, ignored)
    return unfold(M, losses, size)


def _attention(
    M: MappedOps, query: Array, key: Array, value: Array, bias: Mask, allowed: Mask, kept: Mask, weighting: Weighting
) -> Array:
    if all(type(x) is not M.box for x in (query, key, value)):
        return AttentionOps.attention(M, query, key, value, bias, allowed, kept, weighting)
    size = M.size([query, key, value])
    batch = M.shape(query)[0]

    def folded(x: Array | None) -> Array | None:
        """The operand, broadcast to the scores [batch, heads, n, m] unless all examples share it."""
        if x is None or (type(x) is not M.box and (len(M.shape(x)) < 4 or M.shape(x)[0] == 1)):
            return x
        sizes = M.shape(x)
        full = (batch, *(1,) * (3 - len(sizes)), *sizes) if len(sizes) < 4 else (batch, *sizes[1:])
        return fold(M, M.broadcast_to(x, full), size)

    q, k, v = (fold(M, x, size) for x in (query, key, value))
    y = M.inner.attention(q, k, v, folded(bias), folded(allowed), folded(kept), weighting)
    return unfold(M, y, size)


# --- convolution: if each example has its own weights, each example becomes a group of channels


def _join(M: MappedOps, x: Array, size: int) -> Array:
    """[n, channels, ...] of all examples as [n, size * channels, ...]."""
    value = M.moved(M.spread(x, size), 0, 1)
    n, _, channels, *rest = M.inner.shape(value)
    return M.inner.reshape(value, (n, size * channels, *rest))


def _split(M: MappedOps, value: Array, size: int) -> Array:
    """The inverse of `_join`."""
    n, channels, *rest = M.inner.shape(value)
    return M.boxed(M.moved(M.inner.reshape(value, (n, size, channels // size, *rest)), 1, 0))


def _conv(
    M: MappedOps,
    x: Array,
    weight: Array,
    bias: Array | None,
    stride: Shape,
    padding: Widths,
    dilation: Shape,
    groups: int,
) -> Array:
    size = M.size([x, weight, bias])
    options = (stride, padding, dilation)
    if _all_share(M, weight, bias):
        return unfold(M, M.inner.conv(fold(M, x, size), weight, bias, *options, groups), size)
    if _all_share(M, x, weight):
        y = M.inner.conv(x, weight, None, *options, groups)
    else:
        result = M.inner.conv(_join(M, x, size), fold(M, weight, size), None, *options, size * groups)
        y = _split(M, result, size)
    if bias is None:
        return y
    return M.float_add(y, M.reshape(bias, (M.shape(bias)[0], *(1 for _ in stride))))


def _conv_dx(
    M: MappedOps, g: Array, weight: Array, shape: Shape, stride: Shape, padding: Widths, dilation: Shape, groups: int
) -> Array:
    size = M.size([g, weight])
    n, channels, *sizes = shape
    options = (stride, padding, dilation)
    if _all_share(M, weight):
        return unfold(M, M.inner.conv_dx(fold(M, g, size), weight, (size * n, *shape[1:]), *options, groups), size)
    joint = (n, size * channels, *sizes)
    return _split(M, M.inner.conv_dx(_join(M, g, size), fold(M, weight, size), joint, *options, size * groups), size)


def _conv_dw(
    M: MappedOps, x: Array, g: Array, shape: Shape, stride: Shape, padding: Widths, dilation: Shape, groups: int
) -> Array:
    size = M.size([x, g])
    joint = (size * shape[0], *shape[1:])
    result = M.inner.conv_dw(_join(M, x, size), _join(M, g, size), joint, stride, padding, dilation, size * groups)
    return unfold(M, result, size)


def _col2im(M: MappedOps, columns: Array, shape: Shape, *options: Any) -> Array:
    size = M.size([columns])
    return unfold(M, M.inner.col2im(fold(M, columns, size), (size * shape[0], *shape[1:]), *options), size)


# --- mixtures of experts: if each example has its own weights, these are further experts


def _all_experts(M: MappedOps, experts: Array, size: int, n: int) -> Array:
    """The experts of the rows of all examples, numbered from n * i on in the i-th example."""
    numbers = M.spread(experts, size)
    first = M.inner.int_arange(0, size * n, n, M.device_of(experts))
    numbers = M.inner.int_add(numbers, M.inner.expand_dims(first, (1,)))
    return M.inner.reshape(numbers, (size * M.shape(experts)[0],))


def _expert_linear(M: MappedOps, x: Array, weight: Array, experts: Array) -> Array:
    size = M.size([x, weight, experts])
    if _all_share(M, weight):
        return unfold(M, M.inner.expert_linear(fold(M, x, size), weight, fold(M, experts, size)), size)
    numbers = _all_experts(M, experts, size, M.shape(weight)[0])
    return unfold(M, M.inner.expert_linear(fold(M, x, size), fold(M, weight, size), numbers), size)


def _expert_linear_dw(M: MappedOps, x: Array, g: Array, experts: Array, n: int) -> Array:
    size = M.size([x, g, experts])
    numbers = _all_experts(M, experts, size, n)
    return unfold(M, M.inner.expert_linear_dw(fold(M, x, size), fold(M, g, size), numbers, size * n), size)


# --- recurrent layers: the sequences of all examples are one larger batch


def _recurrent(name: str, definition: Callable[..., Any], states: int, weights: int) -> Rule:
    """The rule of an operation whose operands are x, `states` states, `weights` weights, and the mask."""
    last = 1 + states + weights

    def rule(M: MappedOps, *arguments: Any) -> tuple[Array, ...]:
        x, alive, options = arguments[0], arguments[last], arguments[last + 1 :]
        weight_operands = arguments[1 + states : last]
        if any(type(weight) is M.box for weight in weight_operands):
            return definition(M, *arguments)
        size = M.size([*arguments[: 1 + states], alive])
        start = [fold(M, state, size) for state in arguments[1 : 1 + states]]
        mask = None if alive is None else _join_rows(M, alive, size)
        y, *final_states = getattr(M.inner, name)(_join_rows(M, x, size), *start, *weight_operands, mask, *options)
        return _split_rows(M, y, size), *(unfold(M, state, size) for state in final_states)

    return GeneralRule(last + 1, rule)


def _join_rows(M: MappedOps, x: Array, size: int) -> Array:
    """[time, batch, width] of all examples as [time, size * batch, width]."""
    value = M.moved(M.spread(x, size), 0, 1)
    time, _, batch, width = M.inner.shape(value)
    return M.inner.reshape(value, (time, size * batch, width))


def _split_rows(M: MappedOps, value: Array, size: int) -> Array:
    """The inverse of `_join_rows`."""
    time, rows, width = M.inner.shape(value)
    return M.boxed(M.moved(M.inner.reshape(value, (time, size, rows // max(size, 1), width)), 1, 0))


_OF_EACH_EXAMPLE = (
    "im2col", "max_pool", "avg_pool", "adaptive_max_pool", "adaptive_avg_pool", "adaptive_sum_pool", "interpolate",
)  # fmt: skip

NN: dict[str, Rule] = {
    "linear": _rowwise("linear", DenseOps.linear, 2),
    "packed_linear": _rowwise("packed_linear", PackedOps.packed_linear, 4),
    "expert_linear": GeneralRule(3, _expert_linear),
    "expert_linear_dw": GeneralRule(3, _expert_linear_dw),
    "layer_norm": _rowwise("layer_norm", NormOps.layer_norm, 2),
    "rms_norm": _rowwise("rms_norm", NormOps.rms_norm, 1),
    "group_norm": GeneralRule(3, _group_norm),
    "cross_entropy": GeneralRule(3, _cross_entropy),
    "attention": GeneralRule(6, _attention),
    "conv": GeneralRule(3, _conv),
    "conv_dx": GeneralRule(2, _conv_dx),
    "conv_dw": GeneralRule(2, _conv_dw),
    "col2im": GeneralRule(1, _col2im),
    "lstm": _recurrent("lstm", RecurrentOps.lstm, 2, 3),
    "gru": _recurrent("gru", RecurrentOps.gru, 1, 4),
    "rnn": _recurrent("rnn", RecurrentOps.rnn, 1, 3),
    "grid_sample": FoldedRule(2),
    **dict.fromkeys(_OF_EACH_EXAMPLE, FoldedRule(1)),
}
