# ruff: noqa: E501
# pyright: standard
"""Recurrent layers, step by step in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import phlox as px
from phlox import functional as f
from phlox.testing.conformance.row import Row, bools, normal, other

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


def _flat(found: Any) -> Any:
    """All results concatenated, so that all have a gradient."""
    return px.concat([part.reshape((-1,)) for part in found])


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
            ((x, *start, *weights, *bias), (x, *start, *weights), (x[:, :1], *start, *weights, *bias), (x[:0], *(one[:0] for one in start), *weights, *bias)), factor=4, **options),
        Row(f"{name} of results", lambda *a: call(*a).y, lambda *a: reference(*a)[0], ((x, *start, *weights, *bias),), factor=4, **options),
        Row(f"{name} of the last state", lambda *a: call(*a)[-1], lambda *a: reference(*a)[-1], ((x, *start, *weights, *bias),), factor=4, **options),
        *(
            Row(f"{name}, constant {constant}", lambda *a: call(*a).y, lambda *a: reference(*a)[0], ((x, *start, *weights, *bias),), constant=constant, factor=4, **options)
            for constant in ((0, *range(1, 1 + states)), tuple(range(1 + states, 3 + states + len(bias))))
        ),
        *(
            Row(f"{name}, {what}", lambda *a, reverse=reverse: _flat(call(*a[:-1], mask=a[-1], reverse=reverse)),
                lambda *a, reverse=reverse: np.concatenate([part.reshape(-1) for part in reference(*a[:-1], mask=a[-1], reverse=reverse)]),
                ((x, *start, *weights, *bias, mask), (x, *start, *weights, *bias, bools(batch, time))), factor=4, **options)
            for what, reverse in (("masked", False), ("masked, reversed", True))
        ),
        Row(f"{name}, reversed", lambda *a: _flat(call(*a, reverse=True)),
            lambda *a: np.concatenate([part.reshape(-1) for part in reference(*a, reverse=True)]), ((x, *start, *weights, *bias),), factor=4, **options),
    ]  # fmt: skip


ROWS: list[Row] = [
    *_rows("lstm", lambda *a, **k: f.lstm(*a, **k), _lstm, 2, 4, (8,)),
    *_rows("gru", lambda *a, **k: f.gru(*a, **k), _gru, 1, 3, (6, 2)),
    *_rows("rnn", lambda *a, **k: f.rnn(*a, **k), _rnn(np.tanh), 1, 1, (2,)),
    *_rows("rnn relu", lambda *a, **k: f.rnn(*a, **k, activation="relu"), _rnn(lambda z: np.maximum(z, 0)), 1, 1, (2,)),
]
