# ruff: noqa: E501
# pyright: standard
"""Matrix products, neural network operations and normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import phlox as px
from phlox import functional as f
from phlox.testing.conformance.row import INF, SPECIAL, Row, exact, ints, normal, other, positive, sp, tf, torch

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
    turned = (pairs[..., 0] + 1j * pairs[..., 1]) * turn
    parts = [turned.real, turned.imag]
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


_EPS = 1e-5


def _normed(x: Any, axes: tuple[int, ...], gamma: Any = None, beta: Any = None, epsilon: float = _EPS) -> Any:
    y = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)
    return (y if gamma is None else y * gamma) + (0.0 if beta is None else beta)


def _layer_norm(x: Any, gamma: Any = None, beta: Any = None, epsilon: float = _EPS) -> Any:
    return _normed(x, (-1,), gamma, beta, epsilon)


def _rms_norm(x: Any, gamma: Any = 1.0, epsilon: float = 1e-6) -> Any:
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * gamma


def _by_channel(scale: Any, x: Any) -> Any:
    return scale.reshape(-1, *(1 for _ in x.shape[2:]))


def _group_norm(x: Any, groups: int, gamma: Any = None, beta: Any = None, epsilon: float = _EPS) -> Any:
    split = x.reshape(len(x), groups, x.shape[1] // groups, *x.shape[2:])
    y = _normed(split, tuple(range(2, split.ndim)), epsilon=epsilon).reshape(x.shape)
    y = y if gamma is None else y * _by_channel(gamma, x)
    return y if beta is None else y + _by_channel(beta, x)


def _batch_norm(x: Any, gamma: Any, beta: Any, epsilon: float = _EPS) -> Any:
    return _normed(x, (0, *range(2, x.ndim)), _by_channel(gamma, x), _by_channel(beta, x), epsilon)


def _local_response_norm(x: Any, size: int) -> Any:
    square = np.pad(x**2, ((0, 0), (size // 2, (size - 1) // 2), *((0, 0) for _ in x.shape[2:])))
    total = sum(square[:, i : i + x.shape[1]] for i in range(size))
    return x / (2.0 + 0.5 / size * total) ** 0.75


_SCALED = (
    (normal(3, 4), normal(4), other(4)), (normal(2, 3, 4), normal(4), other(4)), (normal(4), other(4), exact([1, 2, 3, 4])),
    (normal(0, 4), normal(4), other(4)),
)  # fmt: skip
_CHANNELS = (
    (normal(2, 4, 3), normal(4), other(4)), (normal(3, 4), normal(4), other(4)), (normal(2, 4, 2, 3), normal(4), other(4)),
    (normal(0, 4, 3), normal(4), other(4)),
)  # fmt: skip

LAYER = [
    Row("layer_norm", lambda x, g, b: f.layer_norm(x, g, b), _layer_norm, _SCALED, factor=4),
    Row("layer_norm plain", lambda x: f.layer_norm(x), _layer_norm, ((normal(3, 4),),), factor=4),
    Row("layer_norm gamma", lambda x, g: f.layer_norm(x, gamma=g), _layer_norm, ((normal(3, 4), normal(4)),), factor=4),
    Row("layer_norm beta", lambda x, b: f.layer_norm(x, beta=b), lambda x, b: _layer_norm(x, None, b),
        ((normal(3, 4), normal(4)),), factor=4),
    Row("layer_norm epsilon", lambda x, g, b: f.layer_norm(x, g, b, epsilon=0.5), lambda x, g, b: _layer_norm(x, g, b, 0.5),
        ((normal(3, 4), normal(4), other(4)),), constant=(1,), factor=4),
    Row("layer_norm of equals", lambda x: f.layer_norm(x), _layer_norm, ((np.ones((2, 4)),),),
        torch=lambda x: tf.layer_norm(x, x.shape[-1:]), second=False, factor=100),
    Row("layer_norm of nothing", lambda x: f.layer_norm(x), lambda x: x, ((normal(3, 0),),)),
    Row("layer_norm of axes", lambda x, g, b: f.layer_norm(x, g, b), lambda x, g, b: _normed(x, (-2, -1), g, b),
        ((normal(2, 3, 4), normal(3, 4), other(3, 4)), (normal(3, 4), other(3, 4), normal(3, 4))), factor=4),
    Row("layer_norm of two axes plain", lambda x: f.layer_norm(x, axes=2), lambda x: _normed(x, (-2, -1)),
        ((normal(2, 3, 4),),), factor=4),
    Row("rms_norm", lambda x, g: f.rms_norm(x, g), _rms_norm, tuple(s[:2] for s in _SCALED), factor=4),
    Row("rms_norm plain", lambda x: f.rms_norm(x, epsilon=0.1), lambda x: _rms_norm(x, epsilon=0.1), ((normal(3, 4),), (np.zeros((1, 3)),)),
        factor=4),
    Row("rms_norm of axes", lambda x, g: f.rms_norm(x, g),
        lambda x, g: _rms_norm(x.reshape(2, 12)).reshape(2, 3, 4) * g, ((normal(2, 3, 4), normal(3, 4)),), factor=4),
    Row("rms_norm constant", lambda x, g: f.rms_norm(x, g), _rms_norm, ((normal(3, 4), normal(4)),), constant=(0,), factor=4),
]  # fmt: skip

CHANNELS = [
    *(
        Row(f"group_norm {groups}", lambda x, g, b, n=groups: f.group_norm(x, n, g, b),
            lambda x, g, b, n=groups: _group_norm(x, n, g, b), _CHANNELS if groups == 2 else _CHANNELS[2:3], factor=8)
        for groups in (1, 2)
    ),
    Row("group_norm plain", lambda x: f.group_norm(x, 2, epsilon=0.1), lambda x: _group_norm(x, 2, epsilon=0.1),
        ((normal(2, 4, 3),),), factor=8),
    Row("group_norm constant", lambda x, g, b: f.group_norm(x, 2, g, b), lambda x, g, b: _group_norm(x, 2, g, b),
        _CHANNELS[:1], constant=(0, 2), factor=8),
    Row("instance_norm", lambda x, g, b: f.instance_norm(x, g, b), lambda x, g, b: _group_norm(x, 4, g, b), _CHANNELS[::2],
        factor=8),
    Row("batch_norm_train", lambda x, g, b: f.batch_norm_train(x, g, b).y, _batch_norm, _CHANNELS[:3], factor=8),
    Row("batch_norm_train plain", lambda x: f.batch_norm_train(x, epsilon=0.1).y, lambda x: _normed(x, (0, 2), epsilon=0.1),
        ((normal(2, 4, 3),), (normal(1, 2, 1),)), factor=8),
    Row("batch_norm_train mean", lambda x: f.batch_norm_train(x).mean, lambda x: x.mean((0, 2)), ((normal(2, 4, 3),),)),
    Row("batch_norm_train variance", lambda x: f.batch_norm_train(x).variance, lambda x: x.var((0, 2)), ((normal(2, 4, 3),),),
        factor=4),
    Row("batch_norm_train all", lambda x, g: px.concat([f.batch_norm_train(x, g).y.sum((0, 2)), *f.batch_norm_train(x, g)[1:]]),
        lambda x, g: np.concatenate([(_normed(x, (0, 2)) * g[:, None]).sum((0, 2)), x.mean((0, 2)), x.var((0, 2))]),
        ((normal(2, 4, 3), normal(4)),), factor=8),
    Row("batch_norm_train of nothing", lambda x: f.batch_norm_train(x).y, lambda x: x, ((normal(0, 4, 3),),)),
    Row("batch_norm", lambda x, m, v, g, b: f.batch_norm(x, m, v, g, b),
        lambda x, m, v, g, b: (x - _by_channel(m, x)) / np.sqrt(_by_channel(v, x) + _EPS) * _by_channel(g, x) + _by_channel(b, x),
        ((normal(2, 4, 3), normal(4), positive(4), other(4), exact([1, 2, 3, 4])), (normal(0, 4), normal(4), positive(4), other(4), normal(4))),
        factor=8),
    Row("batch_norm plain", lambda x, m, v: f.batch_norm(x, m, v, epsilon=0.1),
        lambda x, m, v: (x - _by_channel(m, x)) / np.sqrt(_by_channel(v, x) + 0.1), ((normal(2, 4, 2, 2), normal(4), positive(4)),),
        factor=8),
    *(
        Row(f"local_response_norm {size}", lambda x, n=size: f.local_response_norm(x, n, alpha=0.5, k=2.0),
            lambda x, n=size: _local_response_norm(x, n), ((normal(2, 4, 3),), (normal(0, 4),)))
        for size in (1, 2, 3)
    ),
    *(
        Row(f"normalize {p} {axis}", lambda x, p=p, a=axis: f.normalize(x, p, a),
            lambda x, p=p, a=axis: x / np.maximum((np.abs(x) ** p).sum(a, keepdims=True) ** (1 / p), 1e-12),
            ((normal(2, 3, 4),), (normal(2, 0, 3),)), factor=4)
        for p, axis in ((2.0, -1), (1.0, 0), (3.0, 1), (2.0, (0, 2)))
    ),
    Row("normalize zero", lambda x: f.normalize(x), lambda x: x, (), ((np.zeros((2, 3)),),)),
]  # fmt: skip


def _experts(rows: int, n: int) -> Any:
    return np.random.default_rng(rows).integers(0, n, rows).astype(np.int32)


EXPERTS: list[Row] = [
    Row("expert_linear", lambda x, w, e, b: f.expert_linear(x, w, e, b),
        lambda x, w, e, b: np.einsum("...i,...io->...o", x, w[e]) + b[e],
        ((normal(3, 4), normal(5, 4, 2), _experts(3, 5), normal(5, 2)), (normal(17, 4), normal(3, 4, 2), _experts(17, 3), normal(3, 2)),
         (normal(2, 5, 3), normal(4, 3, 2), _experts(10, 4).reshape(2, 5) * 0 + 1, normal(4, 2)), (normal(0, 3), normal(2, 3, 2), _experts(0, 2), normal(2, 2)),
         (normal(7, 2), normal(1, 2, 3), np.zeros(7, np.int32), normal(1, 3))), factor=4),
]  # fmt: skip

ROWS: list[Row] = [*EXPERTS, *MATMUL, *DENSE, *MORE, *LAYER, *CHANNELS]
