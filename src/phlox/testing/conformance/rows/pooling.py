# ruff: noqa: E501
# pyright: standard
"""Pooling."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from phlox import functional as f
from phlox.testing.conformance.row import INF, NAN, Row, exact, normal, tf


def _pooled(
    x: Any,
    reduce: Callable[..., Any],
    window: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    counts: str = "padding",
) -> Any:
    """By the definition, window by window, with the elements that count: including "padding", or only "elements"."""
    axes = x.ndim - 2
    sides, steps, gaps = (
        np.broadcast_to(v, axes).tolist() for v in (window, window if stride is None else stride, dilation)
    )
    pads = [(p, p) if isinstance(p, int) else p for p in ([padding] * axes if isinstance(padding, int) else padding)]
    windows = []
    for n, k, s, d, (before, after) in zip(x.shape[2:], sides, steps, gaps, pads, strict=True):
        starts = range(-before, n + after, s)
        if ceil_mode:  # every window that begins before the padding behind, until one has reached the end
            whole = [at for at in starts if at + d * (k - 1) < n + after]
            starts = [
                at
                for at in starts
                if at < n and (at in whole or (at - s in whole and whole[-1] + d * (k - 1) < n + after - 1))
            ]
        else:
            starts = [at for at in starts if at + d * (k - 1) < n + after]
        low, high = (0, n) if counts == "elements" else (-before, n + after)
        windows.append(
            [[at for at in range(start, start + d * (k - 1) + 1, d) if low <= at < high] for start in starts]
        )
    y = np.zeros((*x.shape[:2], *map(len, windows)))
    for number in itertools.product(*(range(len(along)) for along in windows)):
        seen = [along[i] for along, i in zip(windows, number, strict=True)]
        values = []
        for at in itertools.product(*seen):
            inside = all(0 <= i < n for i, n in zip(at, x.shape[2:], strict=True))
            values.append(x[:, :, *at] if inside else np.zeros(x.shape[:2]))
        y[:, :, *number] = reduce(np.stack(values, -1), axis=-1)
    return y


def _max(x: Any, window: Any, **options: Any) -> Any:
    return _pooled(x, np.max, window, counts="elements", **options)


def _avg(x: Any, window: Any, count_include_pad: bool = True, **options: Any) -> Any:
    return _pooled(x, np.mean, window, counts="padding" if count_include_pad else "elements", **options)


def _adaptive(x: Any, reduce: Callable[..., Any], counts: Any) -> Any:
    for axis, (n, count) in enumerate(zip(x.shape[2:], counts, strict=True), 2):
        parts = [np.arange(i * n // count, -(-(i + 1) * n // count)) for i in range(count)]
        x = np.stack([reduce(np.take(x, part, axis), axis=axis) for part in parts], axis)
    return x


_POOLS: dict[str, tuple[tuple[Any, Any, dict[str, Any]], ...]] = {
    "1d": (
        (normal(2, 1, 5), 4, {"stride": 1, "padding": ((3, 0),)}),
        (normal(2, 3, 8), 3, {"stride": 2}),
        (normal(2, 3, 6), (2,), {}),
        (normal(0, 2, 4), 2, {}),
    ),
    "2d": (
        (normal(1, 2, 5, 4), (3, 2), {"stride": (2, 1), "padding": (1, 0)}),
        (normal(2, 3, 4, 6), 2, {}),
        (normal(1, 2, 5, 7), (2, 3), {}),
        (normal(2, 1, 4, 5), 3, {"stride": 1, "padding": 1}),
        (normal(1, 2, 5, 4), 3, {"stride": 2, "padding": ((2, 0), (0, 1))}),
        (normal(1, 2, 3, 3), 1, {}),
        (normal(1, 2, 3, 4), 1, {"stride": 2}),
        (normal(1, 2, 6, 5), 2, {"stride": 3}),
        (normal(1, 2, 6, 7), 3, {"stride": 2, "ceil_mode": True}),
        (normal(1, 2, 6, 5), 3, {"stride": 2, "padding": 1, "ceil_mode": True}),
        (normal(1, 2, 5, 7), 2, {"stride": 3, "padding": 1, "ceil_mode": True}),
        (normal(0, 2, 4, 4), 2, {}),
        (normal(2, 0, 4, 4), 3, {"padding": 1}),
    ),
    "3d": (
        (normal(1, 2, 3, 4, 5), (2, 3, 2), {"stride": (1, 2, 3), "padding": (1, 1, 0)}),
        (normal(1, 2, 4, 2, 4), 2, {}),
    ),
}  # fmt: skip

_DILATED: dict[str, tuple[tuple[Any, Any, dict[str, Any]], ...]] = {
    "1d": ((normal(1, 2, 7), 2, {"stride": 1, "dilation": 3}),),
    "2d": (
        (normal(1, 2, 5, 6), 3, {"stride": 2, "padding": 1, "dilation": 2, "ceil_mode": True}),
        (normal(1, 2, 7, 6), (2, 3), {"stride": (1, 2), "dilation": (3, 2)}),
    ),
    "3d": ((normal(1, 1, 3, 4, 3), 2, {"stride": 1, "dilation": (2, 3, 1)}),),
}

_UNCOUNTED = tuple(
    (x, k, {**o, "count_include_pad": False})
    for samples in _POOLS.values() for x, k, o in samples if "padding" in o or "ceil_mode" in o
)  # fmt: skip

_ADAPTIVE: dict[str, tuple[tuple[Any, tuple[int, ...]], ...]] = {
    "1d": ((normal(2, 3, 7), (3,)), (normal(1, 2, 3), (5,)), (normal(2, 3, 6), (3,)), (normal(1, 2, 3), (6,))),
    "2d": (
        (normal(2, 1, 5, 7), (3, 2)), (normal(1, 2, 4, 5), (2, 3)), (normal(2, 3, 4, 6), (2, 3)),
        (normal(2, 3, 3, 4), (1, 1)), (normal(0, 2, 5, 4), (2, 3)),
    ),
    "3d": ((normal(1, 2, 3, 5, 4), (2, 2, 3)),),
}  # fmt: skip

_TIES = exact([[[[1, 1, 2, 0], [1, 1, 0, 2], [0, 1, 2, 2]]]])
_LOST = exact([[[[NAN, 1, -INF, -INF], [1, 1, -INF, -INF], [0, NAN, INF, 1]]]])
_OVERLAPPING = {"stride": 1, "padding": 1}


def _of_rank(name: str, x: Any) -> Any:
    return getattr(f, f"{name}{x.ndim - 2}d")


ROWS: list[Row] = [
    *(
        Row(f"max_pool{rank}", lambda x, k, o, rank=rank: getattr(f, f"max_pool{rank}")(x, k, **o),
            lambda x, k, o: _max(x, k, **o), samples + _DILATED[rank], second=False)
        for rank, samples in _POOLS.items()
    ),
    *(
        Row(f"avg_pool{rank}", lambda x, k, o, rank=rank: getattr(f, f"avg_pool{rank}")(x, k, **o),
            lambda x, k, o: _avg(x, k, **o), samples)
        for rank, samples in _POOLS.items()
    ),
    Row("avg_pool, padding not counted", lambda x, k, o: _of_rank("avg_pool", x)(x, k, **o), lambda x, k, o: _avg(x, k, **o),
        _UNCOUNTED),
    Row("max_pool2d same", lambda x: f.max_pool2d(x, 3, stride=2, padding="same"),
        lambda x: _max(x, 3, stride=2, padding=((1, 1), (0, 1))), ((normal(1, 2, 5, 4),),), second=False),
    Row("avg_pool2d same", lambda x: f.avg_pool2d(x, 3, stride=2, padding="same", count_include_pad=False),
        lambda x: _avg(x, 3, False, stride=2, padding=((1, 1), (0, 1))), ((normal(1, 2, 5, 4),),)),
    Row("max_pool2d ties", lambda x, o: f.max_pool2d(x, 2, **o), lambda x, o: _max(x, 2, **o),
        ((_TIES, {}), (_TIES[:, :, :2], {}), (_TIES, {"stride": 1}), (_TIES, _OVERLAPPING)),
        ((_LOST, {}), (_LOST[:, :, :2], {}), (_LOST, _OVERLAPPING)),
        torch=lambda x, o: tf.max_pool2d(x, 2, **o), second=False),
    Row("max_pool2d negative, padded", lambda x: f.max_pool2d(x, 3, stride=1, padding=1),
        lambda x: _max(x, 3, stride=1, padding=1), ((exact(-np.exp(normal(1, 1, 3, 3))),),),
        torch=lambda x: tf.max_pool2d(x, 3, 1, 1), second=False),
    Row("avg_pool2d undefined", lambda x: f.avg_pool2d(x, 2, padding=1), lambda x: _avg(x, 2, padding=1), (),
        ((_LOST[..., :2],),)),
    Row("max_pool2d of squares", lambda x: f.max_pool2d(x.square(), 2), lambda x: _max(x**2, 2), ((normal(1, 1, 4, 4),),)),
    Row("max_pool1d of squares, overlapping", lambda x: f.max_pool1d(x.square(), 3, stride=1),
        lambda x: _max(x**2, 3, stride=1), ((normal(1, 1, 6),),)),
    *(
        Row(f"adaptive_avg_pool{rank}", lambda x, s, rank=rank: getattr(f, f"adaptive_avg_pool{rank}")(x, s),
            lambda x, s: _adaptive(x, np.mean, s), samples)
        for rank, samples in _ADAPTIVE.items()
    ),
    *(
        Row(f"adaptive_max_pool{rank}", lambda x, s, rank=rank: getattr(f, f"adaptive_max_pool{rank}")(x, s),
            lambda x, s: _adaptive(x, np.max, s), samples, second=False)
        for rank, samples in _ADAPTIVE.items()
    ),
    Row("adaptive_avg_pool2d, an axis as it is", lambda x: f.adaptive_avg_pool2d(x, (None, 1)),
        lambda x: x.mean(3, keepdims=True), ((normal(1, 2, 3, 4),),)),
    Row("adaptive_max_pool2d ties", lambda x: f.adaptive_max_pool2d(x, 2), lambda x: _adaptive(x, np.max, (2, 2)),
        ((_TIES,),), ((_LOST[..., :3],),), torch=lambda x: tf.adaptive_max_pool2d(x, 2), second=False),
    Row("adaptive_avg_pool2d undefined", lambda x: f.adaptive_avg_pool2d(x, 2), lambda x: _adaptive(x, np.mean, (2, 2)), (),
        ((_LOST[..., :3],),), noisy=True),
]  # fmt: skip
