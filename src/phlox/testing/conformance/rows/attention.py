# ruff: noqa: E501
# pyright: standard
"""Attention and recurrent layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import phlox as px
from phlox import functional as f
from phlox.testing.conformance.row import INF, Row, bools, exact, normal, other, tf


def _attention(
    q: Any, k: Any, v: Any, mask: Any = None, bias: Any = None, causal: bool = False, scale: Any = None, kept: Any = None, dropout: float = 0.0
) -> Any:  # fmt: skip
    """By the definition, head by head."""
    if q.ndim == 2:
        mask, bias = (None if x is None else x[None] for x in (mask, bias))
        return _attention(q[None], k[None], v[None], mask, bias, causal, scale)[0]
    heads, n, d = q.shape[-3:]
    m, share = k.shape[-2], heads // max(k.shape[-3], 1)
    scale = 1 / np.sqrt(max(d, 1)) if scale is None else scale
    y = np.zeros((*q.shape[:-1], v.shape[-1]))
    whole = (*q.shape[:-1], m)
    mask, bias, kept = (None if x is None else np.broadcast_to(x, whole) for x in (mask, bias, kept))
    for at in np.ndindex(*q.shape[:-2]):
        group = (*at[:-1], at[-1] // share)
        s = q[at] @ k[group].T * scale
        if bias is not None:
            s = s + bias[at]
        if mask is not None:
            s = np.where(mask[at], s, -INF) if mask.dtype == bool else s + mask[at]
        if causal:
            s = np.where(np.tri(n, m, dtype=bool), s, -INF)
        highest = s.max(-1, keepdims=True, initial=-INF)
        e = np.exp(s - np.where(np.isinf(highest), 0.0, highest))
        total = e.sum(-1, keepdims=True)
        p = e / np.where(total == 0, 1.0, total)
        if kept is not None:
            p = np.where(kept[at], p / (1 - dropout), 0.0)
        y[at] = p @ v[group]
    return y


_QKV = (normal(2, 2, 3, 4), normal(2, 2, 5, 4), normal(2, 2, 5, 3))
_GROUPED = (normal(2, 4, 3, 2), normal(2, 2, 4, 2), normal(2, 2, 4, 3))
_SEEN = np.array([[True, True, False, True, False], [False] * 5, [True] * 5])
_ADDED = exact(np.where(_SEEN, normal(3, 5), -INF))

ATTENTION = [
    Row("attention", lambda q, k, v: f.attention(q, k, v), _attention,
        (_QKV, (normal(3, 4), other(3, 4), normal(3, 2)), (normal(2, 3, 4), normal(2, 5, 4), normal(2, 5, 3)),
         (normal(2, 1, 2, 3, 2), normal(2, 1, 2, 4, 2), normal(2, 1, 2, 4, 3)), _GROUPED,
         (normal(0, 2, 3, 4), normal(0, 2, 5, 4), normal(0, 2, 5, 3)), (normal(2, 0, 4), normal(2, 5, 4), normal(2, 5, 3)),
         (normal(2, 3, 4), normal(2, 0, 4), normal(2, 0, 3)), (normal(2, 3, 1) * 100, normal(2, 5, 1), normal(2, 5, 3))),
        torch=lambda q, k, v: tf.scaled_dot_product_attention(q, k, v, enable_gqa=True) if q.ndim > 2 and k.shape[-2] else
        tf.scaled_dot_product_attention(q, k, v) if k.shape[-2] else (q.sum() + k.sum() + v.sum()) * 0 + q.new_zeros(2, 3, 3), factor=4),
    Row("attention, grouped", lambda q, k, v: f.attention(q, k, v, causal=True), lambda q, k, v: _attention(q, k, v, causal=True),
        (_GROUPED, (normal(4, 3, 2), normal(1, 4, 2), normal(1, 4, 3))), factor=4),
    *(
        Row(f"attention causal {n} {m}", lambda q, k, v: f.attention(q, k, v, causal=True),
            lambda q, k, v: _attention(q, k, v, causal=True), ((normal(2, n, 4), normal(2, m, 4), normal(2, m, 3)),),
            torch=lambda q, k, v: tf.scaled_dot_product_attention(q, k, v, is_causal=True), factor=4)
        for n, m in ((3, 5), (5, 3), (4, 4))
    ),
    Row("attention scale", lambda q, k, v: f.attention(q, k, v, scale=2.0), lambda q, k, v: _attention(q, k, v, scale=2.0), (_QKV,), factor=4),
    *(
        Row(f"attention mask {title}", lambda q, k, v, mask: f.attention(q, k, v, mask=mask), _attention,
            ((*_QKV, mask),), factor=4)
        for title, mask in (
            ("of all", bools(2, 2, 3, 5)), ("of queries and keys", _SEEN), ("of examples", bools(2, 1, 1, 5)), ("of heads", bools(2, 1, 1)),
            ("of nothing", np.zeros((1, 1), np.bool_)),
        )
    ),
    Row("attention mask of many", lambda q, k, v, mask: f.attention(q, k, v, mask=mask), _attention,
        ((normal(2, 2, 2, 3, 2), normal(2, 2, 2, 4, 2), normal(2, 2, 2, 4, 3), bools(2, 1, 1, 3, 4)),
         (normal(2, 2, 2, 3, 2), normal(2, 2, 2, 4, 2), normal(2, 2, 2, 4, 3), bools(2, 2, 2, 1, 4)),
         (normal(3, 4), other(3, 4), normal(3, 2), bools(3, 3))), factor=4),
    Row("attention mask, causal", lambda q, k, v, mask: f.attention(q, k, v, mask=mask, causal=True),
        lambda q, k, v, mask: _attention(q, k, v, mask, causal=True), ((*_QKV, _SEEN),), factor=4),
    Row("attention bias", lambda q, k, v, bias: f.attention(q, k, v, mask=bias), lambda q, k, v, bias: _attention(q, k, v, None, bias),
        ((*_QKV, normal(2, 2, 3, 5)), (*_QKV, normal(3, 5)), (*_QKV, normal(2, 1, 1)), (*_QKV, normal(1, 5)),
         (*_GROUPED, normal(4, 3, 4))), factor=4),
    Row("attention, infinite bias", lambda q, k, v, bias: f.attention(q, k, v, mask=bias),
        lambda q, k, v, bias: _attention(q, k, v, None, bias), ((*_QKV, _ADDED),), constant=(3,), factor=4),
    Row("attention mask and bias", lambda q, k, v, mask, bias: f.attention(q, k, v, mask=mask, bias=bias), _attention,
        ((*_QKV, _SEEN, normal(3, 5)),), factor=4),
    Row("attention bias twice", lambda q, k, v, mask, bias: f.attention(q, k, v, mask=mask, bias=bias), _attention,
        ((*_QKV, other(3, 5), normal(3, 5)),), factor=4),
    Row("attention dropout", lambda q, k, v, kept: f.attention(q, k, v, causal=True, kept=kept, dropout=0.25),
        lambda q, k, v, kept: _attention(q, k, v, causal=True, kept=kept, dropout=0.25),
        ((*_QKV, bools(2, 2, 3, 5)), (*_GROUPED, bools(2, 4, 3, 4))), factor=4),
    *(
        Row(f"attention, constant {constant}", lambda q, k, v, b: f.attention(q, k, v, mask=b), lambda q, k, v, b: _attention(q, k, v, None, b),
            ((*_QKV, normal(3, 5)),), constant=constant, factor=4)
        for constant in ((0,), (1,), (2,), (3,), (0, 1, 3), (1, 2, 3))
    ),
]  # fmt: skip


_Step = Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _steps(step: _Step, x: Any, states: tuple[Any, ...], mask: Any, reverse: bool) -> tuple[Any, ...]:
    y = np.zeros((*x.shape[:2], states[0].shape[1]))
    times = range(x.shape[1])
    for t in reversed(times) if reverse else times:
        after = step(x[:, t], states)
        alive = np.ones(len(x), bool) if mask is None else mask[:, t]
        states = tuple(np.where(alive[:, None], new, old) for new, old in zip(after, states, strict=True))
        y[:, t] = np.where(alive[:, None], states[0], 0.0)
    return y, *states


def _lstm(
    x: Any, h: Any, c: Any, w: Any, u: Any, b: Any = None, mask: Any = None, reverse: bool = False
) -> tuple[Any, ...]:
    def step(x: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
        h, c = states
        i, f, g, o = np.split(x @ w + h @ u + (0 if b is None else b), 4, -1)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        return _sigmoid(o) * np.tanh(c), c

    return _steps(step, x, (h, c), mask, reverse)


def _gru(
    x: Any, h: Any, w: Any, u: Any, b: Any = None, bn: Any = None, mask: Any = None, reverse: bool = False
) -> tuple[Any, ...]:
    def step(x: Any, states: tuple[Any, ...]) -> tuple[Any, ...]:
        (h,) = states
        r, z, n = np.split(x @ w + (0 if b is None else b), 3, -1)
        hr, hz, hn = np.split(h @ u, 3, -1)
        n = np.tanh(n + _sigmoid(r + hr) * (hn + (0 if bn is None else bn)))
        z = _sigmoid(z + hz)
        return ((1 - z) * n + z * h,)

    return _steps(step, x, (h,), mask, reverse)


def _rnn(activation: Any) -> Callable[..., tuple[Any, ...]]:
    def run(x: Any, h: Any, w: Any, u: Any, b: Any = None, mask: Any = None, reverse: bool = False) -> tuple[Any, ...]:
        return _steps(
            lambda x, states: (activation(x @ w + states[0] @ u + (0 if b is None else b)),), x, (h,), mask, reverse
        )

    return run


def _flat(results: Any) -> Any:
    """All results concatenated, so that all have a gradient."""
    return px.concat([part.reshape((-1,)) for part in results])


def _rows(
    name: str, call: Any, reference: Any, states: int, gates: int, biases: tuple[int, ...], **options: Any
) -> list[Row]:
    batch, time, features, width = 2, 4, 3, 2
    start = (normal(batch, width), other(batch, width))[:states]
    weights = (normal(features, gates * width), other(width, gates * width))
    x = normal(batch, time, features)
    bias = tuple(normal(size) for size in biases)
    mask = np.arange(time) < np.array([[3], [0]])
    return [
        Row(name, lambda *a: _flat(call(*a)), lambda *a: np.concatenate([part.reshape(-1) for part in reference(*a)]),
            ((x, *start, *weights, *bias), (x, *start, *weights), (x[:, :1], *start, *weights, *bias), (x[:0], *(state[:0] for state in start), *weights, *bias)), factor=4, **options),
        Row(f"{name} of results", lambda *a: call(*a).y, lambda *a: reference(*a)[0], ((x, *start, *weights, *bias),), factor=4, **options),
        Row(f"{name} of the last state", lambda *a: call(*a)[-1], lambda *a: reference(*a)[-1], ((x, *start, *weights, *bias),), factor=4, **options),
        *(
            Row(f"{name}, constant {constant}", lambda *a: call(*a).y, lambda *a: reference(*a)[0], ((x, *start, *weights, *bias),), constant=constant, factor=4, **options)
            for constant in ((0, *range(1, 1 + states)), tuple(range(1 + states, 3 + states + len(bias))))
        ),
        *(
            Row(f"{name}, {title}", lambda *a, reverse=reverse: _flat(call(*a[:-1], mask=a[-1], reverse=reverse)),
                lambda *a, reverse=reverse: np.concatenate([part.reshape(-1) for part in reference(*a[:-1], mask=a[-1], reverse=reverse)]),
                ((x, *start, *weights, *bias, mask), (x, *start, *weights, *bias, bools(batch, time))), factor=4, **options)
            for title, reverse in (("masked", False), ("masked, reversed", True))
        ),
        Row(f"{name}, reversed", lambda *a: _flat(call(*a, reverse=True)),
            lambda *a: np.concatenate([part.reshape(-1) for part in reference(*a, reverse=True)]), ((x, *start, *weights, *bias),), factor=4, **options),
    ]  # fmt: skip


RECURRENT = [
    *_rows("lstm", lambda *a, **k: f.lstm(*a, **k), _lstm, 2, 4, (8,)),
    *_rows("gru", lambda *a, **k: f.gru(*a, **k), _gru, 1, 3, (6, 2)),
    *_rows("rnn", lambda *a, **k: f.rnn(*a, **k), _rnn(np.tanh), 1, 1, (2,)),
    *_rows("rnn relu", lambda *a, **k: f.rnn(*a, **k, activation="relu"), _rnn(lambda z: np.maximum(z, 0)), 1, 1, (2,)),
]


ROWS: list[Row] = [*ATTENTION, *RECURRENT]
