# ruff: noqa: E501
"""Products of matrices, and the composites of neural networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special as sp
import torch
import torch.nn.functional as tf

import phlox as px
from phlox import functional as f
from tests.tensor.rows.row import INF, NAN, SPECIAL, Row, exact, ints, normal, other

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
    t = getattr(torch, name)
    return [
        Row(name, lambda x: getattr(x, name)(), lambda x: reference(x, axis=-1), _LOGITS, torch=lambda x: t(x, -1)),
        Row(f"{name} of axis 0", lambda x: getattr(x, name)(0), lambda x: reference(x, axis=0), (_LOGITS[0], _LOGITS[2])),
        Row(f"{name} of axis 1", lambda x: getattr(x, name)(axis=1), lambda x: reference(x, axis=1), (_LOGITS[2],)),
        Row(f"{name} masked", lambda x: getattr(x, name)(), lambda x: reference(x, axis=-1), ((_MASKED,),),
            torch=lambda x: t(x, -1), second=False),
        Row(f"{name} of nothing", lambda x: getattr(x, name)(), lambda x: x, ((normal(2, 0),),)),
    ]  # fmt: skip


def _cross_entropy(logits: Any, targets: Any) -> Any:
    return -np.take_along_axis(sp.log_softmax(logits, -1), targets[..., None], -1)[..., 0]


def _layer_norm(x: Any, gamma: Any = None, beta: Any = None, epsilon: float = 1e-5) -> Any:
    y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return (y if gamma is None else y * gamma) + (0.0 if beta is None else beta)


DENSE = [
    Row("linear", lambda x, w, b: f.linear(x, w, b), lambda x, w, b: x @ w + b, _LINEAR),
    Row("linear without bias", lambda x, w: f.linear(x, w), lambda x, w: x @ w, tuple(s[:2] for s in _LINEAR)),
    *(
        Row(f"linear, constant {constant}", lambda x, w, b: f.linear(x, w, b), lambda x, w, b: x @ w + b, _LINEAR[:2],
            constant=constant)
        for constant in ((0,), (1,), (2,), (0, 1))
    ),
    *_softmaxes("softmax", sp.softmax),
    *_softmaxes("log_softmax", sp.log_softmax),
    Row("cross_entropy", lambda x, t: f.cross_entropy(x, t), _cross_entropy,
        ((normal(3, 4), ints(3, low=0, high=4)), (normal(2, 3, 4), ints(2, 3, low=0, high=4)), (normal(4), ints(low=0, high=4)),
         (normal(0, 4), ints(0, low=0, high=4)), (exact([[1000.0, -1000.0]]), np.array([0], np.int32))),
        torch=lambda x, t: tf.cross_entropy(x.reshape(-1, x.shape[-1]), t.long().reshape(-1), reduction="none").reshape(
            t.shape
        )),
    Row("cross_entropy hopeless", lambda x, t: f.cross_entropy(x, t), _cross_entropy, (),
        ((exact([[0.0, -INF, 1.0]]), np.array([1], np.int32)),)),
    *(
        Row(f"gelu {approximate}", lambda x, a=approximate: x.gelu(approximate=a), reference,
            ((normal(3, 4),), (normal(),), (normal(0),), (exact([-8.0, -3.0, 0.0, 3.0, 8.0]),)), ((SPECIAL[:-3],),), factor=2)
        for approximate, reference in (
            (False, lambda x: x * sp.ndtr(x)),
            (True, lambda x: 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))),
        )
    ),
    Row("layer_norm", lambda x, g, b: f.layer_norm(x, g, b), _layer_norm,
        ((normal(3, 4), normal(4), other(4)), (normal(2, 3, 4), normal(4), other(4)), (normal(4), other(4), exact([1, 2, 3, 4])),
         (normal(0, 4), normal(4), other(4))), factor=4),
    Row("layer_norm plain", lambda x: f.layer_norm(x), _layer_norm, ((normal(3, 4),),), factor=4),
    Row("layer_norm gamma", lambda x, g: f.layer_norm(x, gamma=g), _layer_norm, ((normal(3, 4), normal(4)),), factor=4),
    Row("layer_norm beta", lambda x, b: f.layer_norm(x, beta=b), lambda x, b: _layer_norm(x, None, b),
        ((normal(3, 4), normal(4)),), factor=4),
    Row("layer_norm epsilon", lambda x, g, b: f.layer_norm(x, g, b, epsilon=0.5), lambda x, g, b: _layer_norm(x, g, b, 0.5),
        ((normal(3, 4), normal(4), other(4)),), constant=(1,), factor=4),
    Row("layer_norm of equals", lambda x: f.layer_norm(x), _layer_norm, ((np.ones((2, 4)),),),
        torch=lambda x: tf.layer_norm(x, x.shape[-1:]), second=False, factor=100),
]  # fmt: skip


def _conv(x: Any, w: Any, b: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Any:
    """By the definition, sum by sum."""
    (sh, sw), (ph, pw), (dh, dw) = (np.broadcast_to(v, 2) for v in (stride, padding, dilation))
    n, channels, _, _ = x.shape
    out, per_group, kh, kw = w.shape
    x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    rows = (x.shape[2] - dh * (kh - 1) - 1) // sh + 1
    columns = (x.shape[3] - dw * (kw - 1) - 1) // sw + 1
    y = np.zeros((n, out, rows, columns))
    for o in range(out):
        first = o // (out // groups) * per_group
        for r in range(rows):
            for c in range(columns):
                window = x[:, first : first + per_group, r * sh : r * sh + dh * (kh - 1) + 1 : dh]
                window = window[..., c * sw : c * sw + dw * (kw - 1) + 1 : dw]
                y[:, o, r, c] = (window * w[o]).sum((1, 2, 3))
    assert channels == per_group * groups
    return y if b is None else y + b[:, None, None]


_CONVS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "plain": ((normal(2, 3, 5, 4), normal(2, 3, 3, 2), normal(2)), {}),
    "1x1": ((normal(2, 3, 3, 3), normal(4, 3, 1, 1), normal(4)), {}),
    "stride": ((normal(1, 2, 6, 5), normal(3, 2, 3, 2), normal(3)), {"stride": (2, 3)}),
    "padding": ((normal(1, 2, 4, 3), normal(3, 2, 3, 3), normal(3)), {"padding": (1, 2)}),
    "dilation": ((normal(1, 2, 6, 7), normal(2, 2, 2, 3), normal(2)), {"dilation": (3, 2)}),
    "groups": ((normal(2, 4, 4, 4), normal(6, 2, 3, 3), normal(6)), {"groups": 2}),
    "depthwise": ((normal(1, 3, 4, 4), normal(3, 1, 2, 2), normal(3)), {"groups": 3, "padding": 1}),
    "all": ((normal(2, 4, 7, 6), normal(4, 2, 2, 3), normal(4)),
            {"stride": 2, "padding": (1, 2), "dilation": (2, 1), "groups": 2}),
    "leftover": ((normal(1, 1, 6, 6), normal(1, 1, 3, 3), normal(1)), {"stride": 2}),
    "no images": ((normal(0, 2, 4, 4), normal(3, 2, 3, 3), normal(3)), {}),
}  # fmt: skip


def _pooled(x: Any, window: Any, stride: Any, padding: Any, value: float, reduce: Callable[..., Any]) -> Any:
    (kh, kw), (sh, sw), (ph, pw) = (
        np.broadcast_to(v, 2) for v in (window, window if stride is None else stride, padding)
    )
    x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)), constant_values=value)
    rows, columns = (x.shape[2] - kh) // sh + 1, (x.shape[3] - kw) // sw + 1
    parts = [
        [reduce(x[:, :, r * sh : r * sh + kh, c * sw : c * sw + kw], axis=(2, 3)) for c in range(columns)]
        for r in range(rows)
    ]
    return np.stack([np.stack(row, -1) for row in parts], -2)


_POOLS: dict[str, tuple[Any, Any, Any, Any]] = {
    "2": (normal(2, 3, 4, 6), 2, None, 0),
    "(2, 3)": (normal(1, 2, 5, 7), (2, 3), None, 0),
    "3 stride 2": (normal(1, 2, 7, 6), 3, 2, 0),
    "3 stride 1 padding 1": (normal(2, 1, 4, 5), 3, 1, 1),
    "(3, 2) stride (2, 1) padding (1, 0)": (normal(1, 2, 5, 4), (3, 2), (2, 1), (1, 0)),
    "1": (normal(1, 2, 3, 3), 1, None, 0),
}

CONV = [
    Row(f"conv2d {name}", lambda x, w, b, o=o: f.conv2d(x, w, b, **o), lambda x, w, b, o=o: _conv(x, w, b, **o), (sample,),
        factor=4)
    for name, (sample, o) in _CONVS.items()
] + [
    Row("conv2d without bias", lambda x, w: f.conv2d(x, w, padding=1), lambda x, w: _conv(x, w, padding=1),
        ((normal(1, 2, 4, 3), normal(3, 2, 3, 3)),), factor=4),
    *(
        Row(f"conv2d, constant {constant}", lambda x, w, b: f.conv2d(x, w, b, stride=2), lambda x, w, b: _conv(x, w, b, 2),
            ((normal(1, 2, 5, 5), normal(3, 2, 3, 3), normal(3)),), constant=constant, factor=4)
        for constant in ((0,), (1,), (2,), (0, 1))
    ),
]  # fmt: skip

POOL = [
    Row(f"max_pool2d {name}", lambda x, k=k, s=s, p=p: f.max_pool2d(x, k, stride=s, padding=p),
        lambda x, k=k, s=s, p=p: _pooled(x, k, s, p, -INF, np.max), ((x,),), second=False)
    for name, (x, k, s, p) in _POOLS.items()
] + [
    Row(f"avg_pool2d {name}", lambda x, k=k, s=s, p=p: f.avg_pool2d(x, k, stride=s, padding=p),
        lambda x, k=k, s=s, p=p: _pooled(x, k, s, p, 0.0, np.mean), ((x,),))
    for name, (x, k, s, p) in _POOLS.items()
] + [
    Row("max_pool2d ties", lambda x: f.max_pool2d(x, 2), lambda x: _pooled(x, 2, None, 0, -INF, np.max),
        ((exact([[[[1, 1, 2, 0], [1, 1, 0, 2]]]]),),), torch=lambda x: tf.max_pool2d(x, 2), second=False),
    Row("max_pool2d negative, padded", lambda x: f.max_pool2d(x, 3, stride=1, padding=1),
        lambda x: _pooled(x, 3, 1, 1, -INF, np.max), ((exact(-np.exp(normal(1, 1, 3, 3))),),),
        torch=lambda x: tf.max_pool2d(x, 3, 1, 1), second=False),
    Row("max_pool2d undefined", lambda x: f.max_pool2d(x, 2), lambda x: _pooled(x, 2, None, 0, -INF, np.max),
        (), ((exact([[[[NAN, 1, -INF, -INF], [1, 1, -INF, -INF]]]]),),)),
    Row("max_pool2d of max_pool2d", lambda x: f.max_pool2d(x.square(), 2), lambda x: _pooled(x**2, 2, None, 0, -INF, np.max),
        ((normal(1, 1, 4, 4),),)),
]  # fmt: skip

ROWS: list[Row] = [*MATMUL, *DENSE, *CONV, *POOL]
