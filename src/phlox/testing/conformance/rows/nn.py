# ruff: noqa: E501
# pyright: standard
"""Matrix products and neural network operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import phlox as px
from phlox import functional as f
from phlox.testing.conformance.row import INF, SPECIAL, Row, exact, ints, normal, sp, tf, torch

MATMUL = [
    Row("matmul", lambda x, y: x @ y, np.matmul,
        ((normal(3, 4), normal(4, 2)), (normal(2, 3, 4), normal(2, 4, 5)), (normal(2, 3, 4), normal(4, 5)),
         (normal(3, 4), normal(2, 4, 5)), (normal(2, 1, 3, 4), normal(5, 4, 2)), (normal(4), normal(4)),
         (normal(4), normal(4, 3)), (normal(3, 4), normal(4)), (normal(2, 3, 4), normal(4)), (normal(4), normal(2, 4, 3)),
         (normal(0, 4), normal(4, 2)), (normal(3, 0), normal(0, 2)), (normal(1, 1), normal(1, 1)))),
    Row("px.matmul", lambda x, y: px.matmul(x, y.mT), lambda x, y: x @ y.T, ((normal(3, 4), normal(2, 4)),)),
    Row("x.matmul", lambda x, y: x.mT.matmul(y), lambda x, y: x.T @ y, ((normal(4, 3), normal(4, 2)),)),
    Row("x @ x.T", lambda x: x @ x.T, lambda x: x @ x.T, ((normal(3, 4),),)),
]  # fmt: skip

_LINEAR = (
    (normal(3, 4), normal(4, 2), normal(2)),
    (normal(2, 3, 4), normal(4, 2), normal(2)),
    (normal(4), normal(4, 2), normal(2)),
    (normal(0, 4), normal(4, 2), normal(2)),
    (normal(2, 0, 4), normal(4, 2), normal(2)),
)

_LOGITS = (
    (normal(3, 4),),
    (normal(4),),
    (normal(2, 3, 4),),
    (exact([[1000.0, 1000.5], [-1000.0, 0.0]]),),
    (normal(0, 4),),
    (normal(3, 1),),
)
_MASKED = exact([[1.0, -INF, 0.5], [-INF, 0.0, -INF]])


def _softmaxes(name: str, reference: Callable[..., Any]) -> list[Row]:
    def t(x: Any, axis: int) -> Any:
        return getattr(torch, name)(x, axis)

    return [
        Row(name, lambda x: getattr(x, name)(), lambda x: reference(x, axis=-1), _LOGITS, torch=lambda x: t(x, -1)),
        Row(f"{name} of axis 0", lambda x: getattr(x, name)(0), lambda x: reference(x, axis=0), (_LOGITS[0], _LOGITS[2])),
        Row(f"{name} of axis 1", lambda x: getattr(x, name)(axis=1), lambda x: reference(x, axis=1), (_LOGITS[2],)),
        Row(f"{name} masked", lambda x: getattr(x, name)(), lambda x: reference(x, axis=-1), ((_MASKED,),),
            torch=lambda x: t(x, -1), second=False),
        Row(f"{name} of nothing", lambda x: getattr(x, name)(), lambda x: x, ((normal(2, 0),),)),
    ]  # fmt: skip


def _rotated(x: Any, positions: Any = None, base: float = 10000.0, interleaved: bool = False) -> Any:
    """By complex multiplication."""
    n, d = x.shape[-2:]
    positions = np.arange(n) if positions is None else positions
    turn = np.exp(1j * positions[..., None] * base ** (-2.0 * np.arange(d // 2) / max(d, 1)))
    pairs = (
        np.stack([x[..., : d // 2], x[..., d // 2 :]], -1) if not interleaved else x.reshape(*x.shape[:-1], d // 2, 2)
    )
    found = (pairs[..., 0] + 1j * pairs[..., 1]) * turn
    parts = [found.real, found.imag]
    return np.concatenate(parts, -1) if not interleaved else np.stack(parts, -1).reshape(x.shape)


def _bilinear(x: Any, y: Any, w: Any, b: Any = 0.0) -> Any:
    return np.einsum("...i,oij,...j->...o", x, w, y) + b


MORE = [
    Row("bilinear", lambda x, y, w, b: f.bilinear(x, y, w, b), _bilinear,
        ((normal(3, 4), normal(3, 2), normal(5, 4, 2), normal(5)), (normal(2, 3, 4), normal(2, 3, 2), normal(5, 4, 2), normal(5)),
         (normal(4), normal(2), normal(5, 4, 2), normal(5)), (normal(0, 4), normal(0, 2), normal(5, 4, 2), normal(5))), factor=2),
    Row("bilinear without bias", lambda x, y, w: f.bilinear(x, y, w), _bilinear, ((normal(3, 4), normal(3, 2), normal(5, 4, 2)),), factor=2),
    *(
        Row(f"embedding, padding {at}", lambda w, i, at=at: f.embedding(w, i, padding_index=at), lambda w, i: w[i],
            ((normal(4, 3), ints(2, 5, low=0, high=4)),), torch=lambda w, i: tf.embedding(i.long(), w, padding_idx=3))
        for at in (3, -1)
    ),
    Row("rotary_embedding", lambda x: f.rotary_embedding(x), _rotated, ((normal(2, 3, 4),), (normal(3, 2),), (normal(0, 3, 4),)), factor=4),
    Row("rotary_embedding interleaved", lambda x: f.rotary_embedding(x, interleaved=True), lambda x: _rotated(x, interleaved=True),
        ((normal(2, 3, 4),),), factor=4),
    Row("rotary_embedding positions", lambda x, at: f.rotary_embedding(x, at, base=100.0), lambda x, at: _rotated(x, at, 100.0),
        ((normal(2, 3, 4), ints(2, 3, low=0, high=9)), (normal(2, 3, 4), ints(3, low=0, high=9))), factor=4),
    Row("pixel_shuffle", lambda x: f.pixel_shuffle(x, 2),
        lambda x: x.reshape(2, 3, 2, 2, 2, 5).transpose(0, 1, 4, 2, 5, 3).reshape(2, 3, 4, 10), ((normal(2, 12, 2, 5),),)),
    Row("pixel_shuffle of one image", lambda x: f.pixel_shuffle(x, 3), lambda x: x.reshape(1, 3, 3, 1, 2).transpose(0, 3, 1, 4, 2).reshape(1, 3, 6),
        ((normal(9, 1, 2),),)),
    Row("pixel_unshuffle", lambda x: f.pixel_unshuffle(x, 2),
        lambda x: x.reshape(2, 3, 2, 2, 5, 2).transpose(0, 1, 3, 5, 2, 4).reshape(2, 12, 2, 5), ((normal(2, 3, 4, 10),),)),
    Row("pixel_unshuffle of pixel_shuffle", lambda x: f.pixel_unshuffle(f.pixel_shuffle(x, 2), 2), lambda x: x, ((normal(3, 8, 2, 3),),)),
]  # fmt: skip

DENSE = [
    Row("linear", lambda x, w, b: f.linear(x, w, b), lambda x, w, b: x @ w + b, _LINEAR),
    Row("linear without bias", lambda x, w: f.linear(x, w), lambda x, w: x @ w, tuple(s[:2] for s in _LINEAR)),
    *(
        Row(f"linear, constant {constant}", lambda x, w, b: f.linear(x, w, b), lambda x, w, b: x @ w + b, _LINEAR[:2],
            constant=constant)
        for constant in ((0,), (1,), (2,), (0, 1))
    ),
    *_softmaxes("softmax", lambda x, axis: sp.softmax(x, axis)),
    *_softmaxes("log_softmax", lambda x, axis: sp.log_softmax(x, axis)),
    *(
        Row(f"gelu {approximate}", lambda x, a=approximate: x.gelu(approximate=a), reference,
            ((normal(3, 4),), (normal(),), (normal(0),), (exact([-8.0, -3.0, 0.0, 3.0, 8.0]),)), ((SPECIAL[:-3],),), factor=2)
        for approximate, reference in (
            (False, lambda x: x * sp.ndtr(x)),
            (True, lambda x: 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))),
        )
    ),
]  # fmt: skip


ROWS: list[Row] = [*MATMUL, *DENSE, *MORE]
