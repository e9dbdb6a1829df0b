# pyright: standard
"""Rows for accumulation: sums of thousands, means far from zero, squares beyond the largest f16; see `accumulation`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import phlox as px
from phlox.testing.conformance import running
from phlox.testing.conformance.accumulation import Accumulation

f = px.functional

# --- samples: exact in every dtype where that matters, so that only the accumulation can be wrong


def _many(*shape: int) -> np.ndarray[Any, Any]:
    """Values near one, whose sums grow."""
    return 1.0 + (np.arange(int(np.prod(shape))).reshape(shape) * 7 % 5 - 2) / 8.0


def _far(*shape: int, mean: float = 100.0) -> np.ndarray[Any, Any]:
    """Values with a mean much larger than their spread."""
    return mean + (np.arange(int(np.prod(shape))).reshape(shape) * 13 % 11 - 5) / 2.0


def _large(*shape: int, scale: float = 300.0) -> np.ndarray[Any, Any]:
    """Values of both signs whose squares, and sums of squares, exceed the largest f16."""
    size = int(np.prod(shape))
    return np.round(np.cos(np.arange(size) * 2.0 + 0.5) * scale).reshape(shape)


def _small(*shape: int) -> np.ndarray[Any, Any]:
    """Values of both signs between -1 and 1."""
    return np.round(np.sin(np.arange(int(np.prod(shape))) * 3.0 + 0.25) * 64.0).reshape(shape) / 64.0


def _waves(*shape: int) -> np.ndarray[Any, Any]:
    """Values correlated with the cotangent, so that the sum of their products grows."""
    return running.cotangent(shape)


def _zeros(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.int32)


def _few(count: int, classes: int) -> np.ndarray[Any, Any]:
    """Indices with many repeats."""
    return np.asarray(np.arange(count) * np.arange(count) % classes, np.int32)


N = 3000
"""The number of terms: a sequential sum of so many ones would stop at 256 (bf16) or 2048 (f16)."""
_TALL, _WIDE, _LONG = (N, 3), (3, N), 200_000
_LABELS = _few(N, 4)
_TRUTH = np.asarray(np.arange(N) % 3 > 0, np.float64)


def _row(name: str, call: Callable[..., Any], *sample: Any, **options: Any) -> Accumulation:
    return Accumulation(name, call, sample, **options)


def _both(name: str, call: Callable[..., Any], **options: Any) -> list[Accumulation]:
    """Rows for columns and for rows."""
    return [
        _row(f"{name} over axis {axis}", lambda x, a=axis: call(x, a), _many(*shape), **options)
        for axis, shape in ((0, _TALL), (1, _WIDE))
    ]


def _loss(name: str, call: Callable[..., Any], x: Any, *others: Any, **options: Any) -> list[Accumulation]:
    """Rows for the sum and the mean."""
    return [_row(f"{name} {r}", lambda *a, h=r: call(*a, reduction=h), x, *others, **options) for r in ("mean", "sum")]


REDUCTIONS = [
    *_both("sum", lambda x, a: x.sum(a)),
    *_both("mean", lambda x, a: x.mean(a)),
    *_both("cumsum", lambda x, a: x.cumsum(a), factor=4),
    _row("sum of a middle axis", lambda x: x.sum(1), _many(2, N, 3)),
    _row("sum over two axes", lambda x: x.sum((0, 2)), _many(60, 3, 50)),
    _row("mean of large numbers", lambda x: x.mean(), np.full((N,), 3000.0)),
    _row("mean of a long axis", lambda x: x.mean(), np.full((_LONG,), 0.1)),
    _row("mean of long columns", lambda x: x.mean(0), np.full((_LONG, 2), 0.1)),
    _row("mean of long views", lambda x: x.T.mean(1), np.full((_LONG, 2), 0.1)),
    _row("std of constant columns", lambda x: x.std(0) + 1.0, np.full((_LONG, 2), 100.125), constant=(0,)),
    *_both("var", lambda x, a: x.var(a), factor=4),
    _row("var of columns far from zero", lambda x: x.var(0), _far(*_TALL), factor=4),
    _row("std of rows far from zero", lambda x: x.std(1, correction=1), _far(*_WIDE), factor=4),
    _row("var of large numbers", lambda x: x.var(1) * 1e-3, _large(4, 100), factor=4),
    _row("std of large numbers", lambda x: x.std(), _large(400), factor=4),
    _row("logsumexp", lambda x: x.logsumexp(), _far(N)),
    _row("logsumexp of columns", lambda x: x.logsumexp(0), _large(*_TALL)),
    _row("logcumsumexp", lambda x: x.logcumsumexp(0), _small(300), factor=8),
    _row("cumsum of a long axis", lambda x: x.cumsum(0)[-1:], np.full((_LONG,), 0.1), constant=(0,)),
    _row("cumprod", lambda x: x.cumprod(0), np.full((500,), 1.0078125), factor=8),
    _row("prod", lambda x: x.prod(), np.full((500,), 1.0078125), factor=2),
    _row("norm", lambda x: x.norm(), _large(400)),
    _row("norm of many", lambda x: x.norm(), _many(N)),
    _row("norm of a long vector", lambda x: x.norm(), np.full((_LONG * 2,), 0.1), constant=(0,)),
    _row("norms of long columns", lambda x: x.norm(axis=0), np.full((_LONG, 2), 0.1)),
    _row("1-norm of columns", lambda x: x.norm(1.0, 0), _many(*_TALL)),
    _row("3-norm", lambda x: x.norm(3.0), _large(400), factor=2),
    _row("0-norm", lambda x: x.norm(0.0, 1), _many(2, N), constant=(0,)),
    _row("vector_norm", lambda x: px.linalg.vector_norm(x), _large(20, 20)),
    _row("matrix_norm", lambda x: px.linalg.matrix_norm(x), _large(20, 20)),
    _row("trace", lambda x: x.trace(), _many(600, 600), constant=(0,)),
    _row("quantile between large numbers", lambda x: x.quantile(0.5), np.array([-60000.0, 60000.0])),
    _row("median of large numbers", lambda x: x.median(), np.array([60000.0, 50000.0])),
    _row("max with many ties", lambda x: x.max(), np.ones(N)),
    _row("var_mean", lambda x: px.concat(x.var_mean(1)), _far(*_WIDE), factor=4),
]  # fmt: skip

PRODUCTS = [
    _row("dot", lambda x, y: x.dot(y), _many(N), _many(N)),
    _row("dot of long vectors", lambda x, y: x.dot(y), np.full((_LONG,), 0.1), np.full((_LONG,), 0.125),
        constant=(0, 1)),
    _row("vecdot of long vectors", lambda x, y: px.vecdot(x, y), np.full((2, _LONG), 0.1), np.full((2, _LONG), 0.125),
        constant=(0, 1)),
    _row("matmul", lambda x, y: x @ y, _many(3, N), _many(N, 2)),
    _row("matmul of many rows", lambda x, y: x @ y, _many(N, 2), _many(2, 3), ones=True),
    _row("matmul of stacks", lambda x, y: x @ y, _many(N, 2, 2), _many(2, 3), ones=True),
    _row("matmul of a broadcast stack", lambda x, y: x @ y, _many(1, 2, 2), _many(N, 2, 3), ones=True),
    _row("matmul of what cancels", lambda x, y: x @ y, _large(3, 2000) * 1.0, np.ones((2000, 2)), factor=2),
    _row("linear", lambda x, w, b: f.linear(x, w, b), _many(N, 3), _many(3, 2), _many(2), ones=True),
    _row("packed_linear",
        lambda x: f.packed_linear(x, px.full((2, N // 8), 0x11111111, device=x.device), coding="uint4"), _many(3, N)),
    _row("linear of sequences", lambda x, w, b: f.linear(x, w, b), _many(50, 60, 3), _many(3, 2), _many(2), ones=True),
    _row("linear of very many rows", lambda x, w, b: f.linear(x, w, b) * 0.25, np.full((_LONG, 1), 0.1),
        np.full((1, 2), 0.5), np.zeros(2),
        constant=(0, 1), ones=True),
    _row("bias of very many rows", lambda x, b: (x + b) * 0.125, np.zeros((_LONG, 2)), np.zeros(2), constant=(0,)),
    _row("linear of many features", lambda x, w: f.linear(x, w), _many(2, N), _many(N, 2)),
    _row("linear of one feature", lambda x, w, b: f.linear(x, w, b), _many(N, 1), _many(1, 1), _many(1), ones=True),
    _row("bilinear", lambda x, y, w: f.bilinear(x, y, w), _many(N, 2), _many(N, 2), _many(2, 2, 2), ones=True,
        factor=4),
    _row("einsum", lambda x, y: px.einsum("ni,nj->ij", x, y), _many(N, 2), _many(N, 3)),
    _row("einsum of three", lambda x, y, z: px.einsum("n,n,n->", x, y, z), _many(1000), _many(1000), _many(1000),
        factor=4),
    _row("einsum that sums", lambda x: px.einsum("nij->j", x), _many(300, 10, 2)),
    _row("tensordot", lambda x, y: px.tensordot(x, y, 2), _many(60, 50), _many(60, 50)),
    _row("outer", lambda x, y: x.outer(y), _many(N), _many(2), ones=True),
    _row("matrix_power", lambda x: px.linalg.matrix_power(x * (1.0 / 64.0), 3), _many(64, 64), factor=8),
    _row("multi_dot", lambda x, y, z: px.linalg.multi_dot([x, y, z]) * 1e-3, _many(2, 400), _many(400, 3), _many(3, 2),
        factor=8),
]  # fmt: skip

BROADCASTING = [
    _row("x + row", lambda x, b: x + b, _many(*_TALL), _many(3), ones=True),
    _row("x * column", lambda x, b: x * b, _many(*_WIDE), _many(3, 1), ones=True),
    _row("x - number", lambda x, b: x - b, _many(N), _many(), ones=True),
    _row("x / row", lambda x, b: x / b, _many(*_TALL), _many(3), ones=True),
    _row("x ** row", lambda x, b: x**b, _many(*_TALL), _many(3), ones=True, factor=4),
    _row("maximum with row", lambda x, b: x.maximum(b), _many(*_TALL), np.full((3,), 1.125), ones=True),
    _row("where with row", lambda x, b: px.where(x > 1.0, x, b), _many(*_TALL), _many(3), ones=True),
    _row("clip at row", lambda x, b: x.clip(b, None), _many(*_TALL), np.full((3,), 1.125), ones=True),
    _row("broadcast_to", lambda b: b.broadcast_to((N, 3)), _many(3), ones=True),
    _row("repeat", lambda b: b.repeat(N, axis=0), _many(3), ones=True),
    _row("tile", lambda b: b.tile(N), _many(3), ones=True),
    _row("pad by edge", lambda b: b.pad(((500, 500),), mode="edge"), _many(3), ones=True),
    _row("pad by wrap", lambda b: b.pad(((1500, 1500),), mode="wrap"), _many(3), ones=True),
    _row("meshgrid", lambda a, b: px.meshgrid(a, b)[1], _many(N), _many(2), ones=True),
    _row("concat of one", lambda x: px.concat([x] * 600), _many(2), ones=True),
    _row("used again and again", lambda x: px.stack([x * 1.0 for _ in range(600)]).sum(0), np.array([1.0, 0.5]),
        ones=True),
    _row("prelu", lambda x, a: f.prelu(x, a), -_many(N, 2), _many(2) / 4.0, ones=True),
    _row("lerp of large numbers", lambda x, y, w: x.lerp(y, w), np.array([60000.0]), np.array([-60000.0]),
        np.array([0.25]),
        constant=(2,)),
    _row("lerp by row", lambda x, y, w: x.lerp(y, w), _small(*_TALL), _many(*_TALL), np.array([0.25, 0.5, 0.75]),
        ones=True,
        factor=2),
    _row("hypot of large numbers", lambda x, y: x.hypot(y), _large(50), _large(50) + 1.0, factor=2),
]  # fmt: skip

INDEXING = [
    _row("x[i]", lambda x, i: x[i], _many(3, 2), _few(N, 3), ones=True),
    _row("x[i] of numbers", lambda x, i: x[i], _many(3), _few(N, 3), ones=True),
    _row("x[:, i]", lambda x, i: x[:, i], _many(2, 3), _few(N, 3), ones=True),
    _row("x[i, j]", lambda x, i, j: x[i, j], _many(3, 3, 2), _few(N, 3), _few(N, 2), ones=True),
    _row("take", lambda x, i: x.take(i), _many(3, 2), _few(N, 3), ones=True),
    _row("take along a middle axis", lambda x, i: x.take(i, 1), _many(2, 3, 2), _few(N, 3), ones=True),
    _row("take of a table of indices", lambda x, i: x.take(i), _many(3, 2), _few(N, 3).reshape(50, 60), ones=True),
    _row("take_along_axis", lambda x, i: x.take_along_axis(i, 0), _many(3, 2), np.stack([_few(N, 3), _zeros(N)], 1),
        ones=True),
    _row("gather", lambda x, i: x.gather(0, i), _many(3, 2), np.stack([_few(N, 3), _zeros(N)], 1), ones=True),
    _row("embedding", lambda w, i: f.embedding(w, i), _many(4, 3), _few(N, 4), ones=True),
    _row("embedding of sequences", lambda w, i: f.embedding(w, i), _many(4, 64), _few(N, 4).reshape(60, 50), ones=True),
    _row("at[i].add", lambda x, v, i: x.at[i].add(v), _many(3, 2), _many(N, 2), _few(N, 3)),
    _row("at[i].add of numbers", lambda x, v, i: x.at[i].add(v), _many(3), _many(N), _few(N, 3)),
    _row("at[i].add of one", lambda x, v, i: x.at[i].add(v), _many(3, 2), _many(2), _few(N, 3), ones=True),
    _row("at[i].sub", lambda x, v, i: x.at[i].sub(v), _many(3, 2), _many(N, 2), _few(N, 3)),
    _row("at[i].mul", lambda x, v, i: x.at[i].mul(v), _many(3), np.full((600,), 1.0078125), _few(600, 3), factor=8),
    _row("at[:, i].add", lambda x, v, i: x.at[:, i].add(v), _many(2, 3), _many(2, N), _few(N, 3)),
    _row("at[i].set of one", lambda x, v, i: x.at[i].set(v), _many(N, 2), _many(2), np.arange(N, dtype=np.int32),
        ones=True),
    _row("scatter add", lambda x, v, i: x.scatter(0, i, v, "add"), _many(3, 2), _many(N, 2),
        np.stack([_few(N, 3)] * 2, 1)),
    _row("at[i].max with ties", lambda x, v, i: x.at[i].max(v), np.ones(3), np.ones(N), _few(N, 3)),
    _row("bincount with weights", lambda w, i: i.bincount(w), _many(N), _few(N, 3)),
    _row("masked_fill by number", lambda x, v: x.masked_fill(x > 1.0, v), _many(N), _many(), ones=True),
    _row("unfold of windows", lambda x: x.unfold(0, 600, 1), _many(1000), ones=True),
    _row("sort of many", lambda x: x.sort().cumsum(0), _many(500), ones=True, factor=4),
]  # fmt: skip

WINDOWS = [
    _row("conv1d", lambda x, w, b: f.conv1d(x, w, b), _many(2, 150, 12), _many(3, 150, 4), _many(3), factor=2,
        ones=True),
    _row("conv1d of many", lambda x, w, b: f.conv1d(x, w, b), _many(10, 1, 302), _many(2, 1, 3), _many(2), factor=2,
        ones=True),
    _row("conv2d of many", lambda x, w, b: f.conv2d(x, w, b, padding=1), _many(20, 2, 12, 12), _many(2, 2, 3, 3),
        _many(2),
        factor=2, ones=True),
    _row("conv2d by depth", lambda x, w, b: f.conv2d(x, w, b, groups=2), _many(20, 2, 14, 14), _many(2, 1, 3, 3),
        _many(2),
        factor=2, ones=True),
    _row("conv_transpose1d", lambda x, w, b: f.conv_transpose1d(x, w, b), _many(2, 400, 6), _many(400, 1, 3), _many(1),
        factor=2, ones=True),
    _row("conv_transpose2d", lambda x, w, b: f.conv_transpose2d(x, w, b), _many(10, 2, 10, 10), _many(2, 2, 3, 3),
        _many(2),
        factor=2, ones=True),
    _row("functional.unfold", lambda x: f.unfold(x, (20, 20)), _many(1, 1, 26, 26), ones=True),
    _row("functional.fold", lambda x: f.fold(x, (26, 26), (20, 20)), _many(1, 400, 49)),
    _row("avg_pool1d", lambda x: f.avg_pool1d(x, 500, stride=1), _many(1, 1, 900), ones=True),
    _row("avg_pool2d", lambda x: f.avg_pool2d(x, 20), _many(1, 2, 60, 60)),
    _row("avg_pool2d of large numbers", lambda x: f.avg_pool2d(x, 20), np.full((1, 1, 40, 40), 3000.0)),
    _row("avg_pool2d with padding", lambda x: f.avg_pool2d(x, 20, padding=((3, 7), (0, 5)), stride=3),
        _many(1, 1, 60, 60)),
    _row("avg_pool3d", lambda x: f.avg_pool3d(x, 10, stride=5), _many(1, 1, 20, 20, 20)),
    _row("max_pool2d", lambda x: f.max_pool2d(x, 20, stride=1), np.eye(40)[None, None] + 1.0, ones=True),
    _row("adaptive_avg_pool1d", lambda x: f.adaptive_avg_pool1d(x, 7), _many(1, 1, N)),
    _row("adaptive_avg_pool2d", lambda x: f.adaptive_avg_pool2d(x, 1), _many(1, 2, 60, 60)),
    _row("adaptive_avg_pool2d of large numbers", lambda x: f.adaptive_avg_pool2d(x, (1, 3)),
        np.full((1, 1, 40, 40), 3000.0)),
    _row("adaptive_max_pool1d", lambda x: f.adaptive_max_pool1d(x, 3), _many(1, 1, N)),
    _row("interpolate area", lambda x: f.interpolate(x, 7, mode="area"), _many(1, 1, N)),
    _row("interpolate area of large numbers", lambda x: f.interpolate(x, 2, mode="area"),
        np.full((1, 1, 40), 50000.0)),
    _row("interpolate nearest", lambda x: f.interpolate(x, N, mode="nearest"), _many(1, 1, 3), ones=True),
    _row("interpolate linear", lambda x: f.interpolate(x, (N, 2), mode="linear"), _many(1, 1, 3, 3), factor=2,
        ones=True),
    _row("interpolate linear of large numbers", lambda x: f.interpolate(x, 7, mode="linear"),
        _large(1, 1, 5, scale=60000.0)),
    _row("interpolate cubic", lambda x: f.interpolate(x, 1000, mode="cubic"), _many(1, 1, 5), factor=2, ones=True),
    _row("interpolate antialiased", lambda x: f.interpolate(x, 5, mode="linear", antialias=True), _many(1, 1, 2000),
        factor=2),
    _row("grid_sample", lambda x, g: f.grid_sample(x, g), _many(1, 2, 4, 4), np.zeros((1, 50, 60, 2)), constant=(1,),
        ones=True),
    _row("pixel_shuffle", lambda x: f.pixel_shuffle(x, 2), _many(1, 4, 3, 3), ones=True),
    _row("local_response_norm", lambda x: f.local_response_norm(x, 50, alpha=1.0), _large(1, 60, 3), factor=4),
]  # fmt: skip

_GAMMA, _BETA = np.array([1.0, 0.5, 2.0]), np.array([0.5, 0.0, -1.0])

NORMS = [
    _row("layer_norm far from zero", lambda x: f.layer_norm(x), _far(4, 300), factor=4),
    _row("layer_norm of large numbers", lambda x: f.layer_norm(x), _large(4, 300), factor=4),
    _row("layer_norm of many rows", lambda x, g, b: f.layer_norm(x, g, b), _small(N, 3) + np.arange(3.0), _GAMMA,
        _BETA, ones=True,
        factor=4),
    _row("rms_norm of large numbers", lambda x: f.rms_norm(x), _large(4, 300), factor=4),
    _row("rms_norm of many rows", lambda x, g: f.rms_norm(x, g), _small(N, 3) + np.arange(3.0), _GAMMA, ones=True,
        factor=4),
    _row("group_norm far from zero", lambda x: f.group_norm(x, 2), _far(2, 4, 100), factor=4),
    _row("group_norm of large numbers", lambda x: f.group_norm(x, 1), _large(2, 4, 100), factor=4),
    _row("group_norm of many", lambda x, g, b: f.group_norm(x, 1, g, b), _many(50, 3, 60), _GAMMA, _BETA, ones=True,
        factor=4),
    _row("group_norm with bias alone", lambda x, b: f.group_norm(x, 1, None, b), _many(50, 3, 60), _BETA, ones=True,
        constant=(0,)),
    _row("group_norm with scale alone", lambda x, g: f.group_norm(x, 1, g), _many(50, 3, 60), _GAMMA, ones=True,
        factor=4),
    _row("instance_norm of large numbers", lambda x: f.instance_norm(x), _large(2, 3, 100), factor=4),
    _row("instance_norm of many", lambda x, g, b: f.instance_norm(x, g, b), _waves(50, 3, 60), _GAMMA, _BETA,
        constant=(0,), factor=4),
    _row("instance_norm with bias alone", lambda x, b: f.instance_norm(x, None, b), _many(50, 3, 60), _BETA, ones=True,
        constant=(0,)),
    _row("batch_norm_train far from zero", lambda x: f.batch_norm_train(x).y, _far(600, 3), factor=4),
    _row("batch_norm_train of large numbers", lambda x: f.batch_norm_train(x).y, _large(40, 3, 4), factor=4),
    _row("batch_norm_train of many", lambda x, g, b: f.batch_norm_train(x, g, b).y, _waves(60, 3, 50), _GAMMA, _BETA,
        constant=(0,), factor=4),
    _row("batch_norm_train statistics", lambda x: px.concat(list(f.batch_norm_train(x)[1:])), _far(60, 3, 50),
        factor=4),
    _row("batch_norm far from zero", lambda x, m, v, g, b: f.batch_norm(x, m, v, g, b), _far(600, 3),
        np.full((3,), 100.0),
        np.full((3,), 2.5), _GAMMA, _BETA, ones=True, factor=4),
    _row("normalize of large numbers", lambda x: f.normalize(x), _large(3, 400), factor=4),
    _row("normalize of columns", lambda x: f.normalize(x, axis=0), _many(*_TALL), factor=4),
    _row("softmax", lambda x: x.softmax(0), _large(300, 2, scale=3.0), factor=4),
    _row("softmax of many", lambda x: x.softmax(), _small(2, N), factor=4),
    _row("softmax of large numbers", lambda x: x.softmax(), np.array([[60000.0, 59968.0, -60000.0]]), constant=(0,)),
    _row("log_softmax of many", lambda x: x.log_softmax(), _small(2, N), factor=4),
    _row("log_softmax of many columns", lambda x: x.log_softmax(0), _small(N, 2), factor=4),
    _row("softmin", lambda x: x.softmin(), _small(2, N), factor=4),
]  # fmt: skip

_MARGIN = np.where(_TRUTH > 0.0, 1.0, -1.0)

LOSSES = [
    *_loss("mse_loss", f.mse_loss, _small(N) * 2.0, _many(N), factor=2),
    _row("mse_loss of large numbers", lambda x, y: f.mse_loss(x, y), np.array([300.0, 1.0, 2.0, 0.0]), np.zeros(4),
        factor=2),
    *_loss("l1_loss", f.l1_loss, _small(N), _many(N) + 1.0, factor=2),
    *_loss("huber_loss", f.huber_loss, _small(N) * 4.0, _many(N), factor=2),
    *_loss("smooth_l1_loss", f.smooth_l1_loss, _small(N) * 4.0, _many(N), factor=2),
    *_loss("kl_div", f.kl_div, -_many(N) * 2.0, _many(N) / 4.0, factor=4),
    *_loss("kl_div of logarithms", lambda x, y, reduction: f.kl_div(x, y, log_target=True, reduction=reduction),
        -_many(N), -_many(N) / 2.0,
        factor=4),
    *_loss("poisson_nll_loss", f.poisson_nll_loss, _small(N), _many(N) * 4.0, factor=4),
    *_loss("gaussian_nll_loss", f.gaussian_nll_loss, _small(N), _many(N) + 4.0, _many(N), factor=4),
    *_loss("binary_cross_entropy", f.binary_cross_entropy, _many(N) / 4.0, _TRUTH, constant=(1,), factor=4),
    *_loss("binary_cross_entropy_with_logits", f.binary_cross_entropy_with_logits, _small(N) * 4.0, _TRUTH,
        constant=(1,), factor=4),
    *_loss("cross_entropy", f.cross_entropy, _small(N, 4) * 4.0, _LABELS, factor=4),
    *_loss("cross_entropy of many classes", f.cross_entropy, _small(3, N), np.array([0, 5, 2999], np.int32), factor=4),
    *_loss("cross_entropy with weights", lambda x, y, w, reduction: f.cross_entropy(x, y, weight=w,
        reduction=reduction), _small(N, 4), _LABELS,
        np.array([0.25, 2.0, 4.0, 8.0]), constant=(2,), factor=4),
    _row("cross_entropy with large weights", lambda x, y, w: f.cross_entropy(x, y, weight=w), _small(N, 4), _LABELS,
        np.array([20.0, 40.0, 60.0, 80.0]), constant=(2,), factor=4),
    *_loss("cross_entropy ignoring", lambda x, y, reduction: f.cross_entropy(x, y, ignore_index=1,
        reduction=reduction), _small(N, 4), _LABELS,
        factor=4),
    *_loss("cross_entropy smoothed", lambda x, y, reduction: f.cross_entropy(x, y, label_smoothing=0.1,
        reduction=reduction), _small(N, 4),
        _LABELS, factor=4),
    *_loss("cross_entropy of probabilities", f.cross_entropy, _small(N, 4), _many(N, 4) / 4.0, constant=(1,), factor=4),
    *_loss("nll_loss", f.nll_loss, -_many(N, 4), _LABELS, factor=4),
    *_loss("nll_loss with weights", lambda x, y, w, reduction: f.nll_loss(x, y, weight=w, reduction=reduction),
        -_many(N, 4), _LABELS,
        np.array([0.25, 2.0, 4.0, 8.0]), constant=(2,), factor=4),
    _row("nll_loss with large weights", lambda x, y, w: f.nll_loss(x, y, weight=w), -_many(N, 4), _LABELS,
        np.array([20.0, 40.0, 60.0, 80.0]), constant=(2,), factor=4),
    _row("cross_entropy of very many", lambda x, y: f.cross_entropy(x, y, ignore_index=7), _small(70_000, 2),
        _few(70_000, 2), factor=4),
    *_loss("hinge_embedding_loss", f.hinge_embedding_loss, _many(N), _MARGIN, constant=(1,), factor=2),
    *_loss("margin_ranking_loss", lambda x, y, t, reduction: f.margin_ranking_loss(x, y, t, margin=0.5,
        reduction=reduction), _small(N),
        _many(N), _MARGIN, constant=(2,), factor=2),
    *_loss("triplet_margin_loss", f.triplet_margin_loss, _large(3, 100, scale=60.0), _large(3, 100, scale=30.0),
        _large(3, 100, scale=50.0),
        factor=4),
    _row("cosine_similarity of large numbers", lambda x, y: f.cosine_similarity(x, y), _large(3, 400),
        _large(3, 400) + 50.0, factor=8),
    _row("cosine_similarity of many", lambda x, y: f.cosine_similarity(x, y), _many(3, N), _many(3, N) + _small(3, N),
        factor=4),
    _row("cosine_similarity broadcast", lambda x, y: f.cosine_similarity(x, y), _many(N, 3), _many(3), factor=4,
        ones=True),
    _row("cosine_similarity broadcast along the axis", lambda x, y: f.cosine_similarity(x, y), _many(3, 4),
        _many(3, 1) + 1.0, constant=(1,), factor=4),
    _row("cosine_similarity of zeros", lambda x, y: f.cosine_similarity(x, y), np.zeros((2, 3)), _many(2, 3),
        constant=(0,)),
    _row("ctc_loss", lambda x, y, n, m: f.ctc_loss(x, y, n, m, reduction="sum"), _small(80, 2, 4) - 2.0,
        _few(16, 3).reshape(2, 8) + 1,
        np.array([80, 70], np.int32), np.array([8, 6], np.int32), factor=8),
]  # fmt: skip


def _attention_sample(heads: int, groups: int, n: int, scale: float) -> tuple[Any, ...]:
    # Integer values, so that float32 holds the logits exactly.
    query, key = (np.round(_small(1, count, n, 64) * 2.0) + scale for count in (heads, groups))
    return query, key, _small(1, groups, n, 8)


_ALLOWED = (np.arange(40)[:, None] * 3 + np.arange(40)) % 4 > 0

ATTENTION = [
    _row("attention with large logits", lambda q, k, v: f.attention(q, k, v), *_attention_sample(2, 2, 40, 100.0),
        factor=8),
    _row("attention, causal, with large logits", lambda q, k, v: f.attention(q, k, v, causal=True),
        *_attention_sample(2, 2, 40, 100.0),
        factor=8),
    _row("attention, masked, with large logits", lambda q, k, v, m: f.attention(q, k, v, mask=m),
        *_attention_sample(2, 2, 40, 100.0),
        _ALLOWED, factor=8),
    _row("attention, biased, with large logits", lambda q, k, v, m: f.attention(q, k, v, mask=m),
        *_attention_sample(2, 2, 40, 100.0),
        _large(40, 40, scale=4.0), factor=8),
    _row("attention in groups with large logits", lambda q, k, v: f.attention(q, k, v),
        *_attention_sample(4, 2, 40, 100.0), factor=8),
    _row("attention in chunks with large logits", lambda q, k, v: f.attention(q, k, v, causal=True),
        *_attention_sample(2, 1, 150, 100.0),
        factor=8),
    _row("attention to many", lambda q, k, v: f.attention(q, k, v), _small(1, 1, 2, 8), _small(1, 1, N, 8),
        _many(1, 1, N, 4),
        constant=(0, 1), factor=8),
    _row("attention from many", lambda q, k, v: f.attention(q, k, v), _small(1, 1, N, 8) + 1.0, _small(1, 1, 2, 8),
        _many(1, 1, 2, 4),
        factor=8, ones=True),
    _row("attention bias of many", lambda q, k, v, b: f.attention(q, k, v, mask=b), _small(60, 1, 50, 8),
        _small(60, 1, 2, 8),
        _small(60, 1, 2, 4), _small(1, 2), factor=8),
]  # fmt: skip


def _recurrent(name: str, gates: int, states: int) -> Accumulation:
    width = 3

    def call(x: Any, w: Any, u: Any, b: Any) -> Any:
        start = [px.zeros((1, width), device=x.device)] * states
        return getattr(f, name)(x, *start, w, u, b)[0]

    shapes = ((1, 600, 2), (2, gates * width), (width, gates * width), (gates * width,))
    return _row(f"{name} over many steps", call, *(_small(*shape) for shape in shapes), factor=16, ones=True)


def _loop(w: Any, x: Any) -> Any:
    """A weight that every step of a loop uses."""
    return px.scan(lambda carry, one: (carry * 0.5 + w * one, carry), px.zeros((2,), device=x.device), x)[1]


SEQUENCES = [
    _recurrent("lstm", 4, 2), _recurrent("gru", 3, 1), _recurrent("rnn", 1, 1),
    _row("scan", _loop, np.array([1.0, 0.5]), _many(600, 2), ones=True, factor=8),
    _row("convolve", lambda x, y: px.signal.convolve(x, y), _many(600), _many(600), factor=8),
    _row("correlate", lambda x, y: px.signal.correlate(x, y), _many(600), _many(600), factor=8),
    _row("rfft", lambda x: px.signal.rfft(x).real, _many(1000), factor=8),
    _row("stft", lambda x: px.signal.stft(x, 128).power().mean(), _small(1000), factor=8),
    _row("overlap_add", lambda x: px.signal.overlap_add(x, 1), _many(600, 300), factor=2),
    _row("frame", lambda x: px.signal.frame(x, 600, 1), _many(1000), ones=True),
    _row("matrix_exp", lambda x: px.linalg.matrix_exp(x * 0.125), _small(6, 6), factor=8),
    _row("solve", lambda a, b: px.linalg.solve(a, b), np.eye(4) * 4.0 + _small(4, 4), _many(4, 600), factor=8,
        ones=True),
]  # fmt: skip

ROWS: list[Accumulation] = [
    *REDUCTIONS, *PRODUCTS, *BROADCASTING, *INDEXING, *WINDOWS, *NORMS, *LOSSES, *ATTENTION, *SEQUENCES,
]  # fmt: skip
