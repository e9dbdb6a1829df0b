# ruff: noqa: E501
# pyright: standard
# pyright: reportArgumentType=false
"""Pooling, and interpolation and sampling on grids, whose reference is PyTorch in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from phlox import functional as f
from phlox.testing.conformance.row import INF, NAN, Row, exact, normal, tf, torch, unit


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
        if ceil_mode:  # windows that begin before the padding at the end, up to the first that reaches the end
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
    for index in itertools.product(*(range(len(along)) for along in windows)):
        seen = [along[i] for along, i in zip(windows, index, strict=True)]
        values = []
        for at in itertools.product(*seen):
            inside = all(0 <= i < n for i, n in zip(at, x.shape[2:], strict=True))
            values.append(x[:, :, *at] if inside else np.zeros(x.shape[:2]))
        y[:, :, *index] = reduce(np.stack(values, -1), axis=-1)
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


POOLING = [
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


def _by_torch(fn: Any) -> Any:
    return lambda *arrays: fn(*(torch.tensor(a) for a in arrays)).numpy()


_ONE, _TWO, _THREE = normal(2, 2, 5), normal(1, 2, 4, 5), normal(1, 2, 3, 2, 4)
_SIZES: dict[str, tuple[Any, tuple[dict[str, Any], ...]]] = {
    "linear": (_ONE, ({"size": 8}, {"size": 3}, {"size": 1}, {"scale_factor": 1.7}, {"size": 9, "align_corners": True}, {"size": 1, "align_corners": True})),
    "bilinear": (_TWO, ({"size": (7, 3)}, {"scale_factor": 2.0}, {"scale_factor": (0.6, 1.3)}, {"size": (2, 9), "align_corners": True},
                        {"size": (2, 8), "antialias": True}, {"size": (3, 2), "antialias": True, "align_corners": True})),
    "trilinear": (_THREE, ({"size": (4, 3, 2)}, {"size": 3, "align_corners": True})),
    "bicubic": (_TWO, ({"size": (7, 3)}, {"scale_factor": 1.5}, {"size": (2, 9), "align_corners": True}, {"size": (2, 3), "antialias": True})),
    "nearest": (_TWO, ({"size": (7, 3)}, {"scale_factor": 2.0}, {"scale_factor": 0.5})),
    "nearest-exact": (_TWO, ({"size": (7, 3)}, {"scale_factor": 2.0}, {"scale_factor": 0.5})),
    "area": (_TWO, ({"size": (2, 3)}, {"size": (7, 2)}, {"scale_factor": 0.5})),
}  # fmt: skip


def _by_factors(x: Any, factors: tuple[float, ...], mode: str) -> Any:
    """By the formula, with the given factors, independent of the rounded sizes."""

    def kernel(d: Any) -> Any:
        d = np.abs(d)
        if mode == "bilinear":
            return np.maximum(1.0 - d, 0.0)
        a = -0.75
        far = a * (d**3 - 5 * d**2 + 8 * d - 4)
        return np.where(d <= 1, (a + 2) * d**3 - (a + 3) * d**2 + 1, np.where(d < 2, far, 0.0))

    for axis, factor in zip((2, 3), factors, strict=True):
        size = x.shape[axis]
        source = (np.arange(int(size * factor)) + 0.5) / factor - 0.5
        source = np.maximum(source, 0.0) if mode == "bilinear" else source
        positions = np.arange(-4, size + 4)
        weights = np.zeros((len(source), size))
        np.add.at(weights, (slice(None), np.clip(positions, 0, size - 1)), kernel(source[:, None] - positions))
        x = np.moveaxis(np.moveaxis(x, axis, -1) @ weights.T, -1, axis)
    return x


def _interpolated(mode: str, options: dict[str, Any]) -> Any:
    arguments = dict(options)
    if not arguments.get("align_corners"):
        arguments.pop("align_corners", None)
    return lambda x: tf.interpolate(x, mode=mode, **arguments)


INTERPOLATE = [
    Row(f"interpolate {mode} {options}", lambda x, m=mode, o=options: f.interpolate(x, mode=m, **o), _by_torch(_interpolated(mode, options)),
        (((x,), (x[:0],)) if n == 0 else ((x,),)), torch=_interpolated(mode, options), factor=4)
    for mode, (x, several) in _SIZES.items()
    for n, options in enumerate(several)
] + [
    Row(f"interpolate {mode} of {x.ndim - 2} axes", lambda x, m=mode: f.interpolate(x, 3, mode=m), _by_torch(_interpolated(mode, {"size": 3})),
        ((x,),), torch=_interpolated(mode, {"size": 3}), factor=4)
    for mode in ("nearest", "nearest-exact", "area")
    for x in (_ONE, _THREE)
] + [
    Row("interpolate cubic", lambda x: f.interpolate(x, 8, mode="cubic"),
        lambda x: tf.interpolate(torch.tensor(x)[:, :, None], size=(1, 8), mode="bicubic")[:, :, 0].numpy(), ((_ONE,),), factor=4),
    *(
        Row(f"interpolate {mode} by {factors}", lambda x, m=mode, s=factors: f.interpolate(x, scale_factor=s, mode=m),
            lambda x, m=mode, s=factors: _by_factors(x, s, m), ((normal(1, 1, 2, 6),),), factor=4)
        for mode in ("bilinear", "bicubic") for factors in ((1.3, 0.5), (2.0, 1.1), (1.3, 1.1))
    ),
    Row("interpolate to one column", lambda x: f.interpolate(x, scale_factor=(2.0, 0.5), mode="bilinear", antialias=True),
        lambda x: tf.interpolate(torch.tensor(x.swapaxes(2, 3)), scale_factor=(0.5, 2.0), mode="bilinear", antialias=True).numpy().swapaxes(2, 3),
        ((normal(1, 1, 2, 2),),), factor=4),
    *(
        Row(f"interpolate {mode} to one row, corners", lambda x, m=mode: f.interpolate(x, (1, 3), mode=m, antialias=True, align_corners=True),
            _by_torch(_interpolated(mode, {"size": (1, 3), "antialias": True, "align_corners": True})), ((normal(1, 1, 4, 3),),), factor=4)
        for mode in ("bilinear", "bicubic")
    ),
    Row("interpolate many", lambda x: f.interpolate(x, (3, 40), mode="area"), _by_torch(_interpolated("area", {"size": (3, 40)})),
        ((normal(1, 1, 16, 7),),), factor=4),
]  # fmt: skip

_IMAGE, _VOLUME = normal(2, 3, 4, 5), normal(1, 2, 3, 4, 2)
_POINTS = exact(unit(2, 3, 2, 2) * 1.6)
_DEEP = exact(unit(1, 2, 3, 2, 3) * 1.6)


def _sampled(mode: str, padding: str, align: bool) -> Any:
    return lambda x, grid: tf.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=align)


GRID = [
    Row(f"grid_sample {mode} {padding} {align}", lambda x, g, m=mode, p=padding, a=align: f.grid_sample(x, g, mode=m, padding_mode=p, align_corners=a),
        _by_torch(_sampled(mode, padding, align)),
        ((_IMAGE, _POINTS), (_VOLUME, _DEEP)) if mode == "bilinear" and align else ((_IMAGE, _POINTS),),
        torch=_sampled(mode, padding, align), factor=16)
    for mode in ("bilinear", "nearest", "bicubic")
    for padding in ("zeros", "border", "reflection")
    for align in (False, True)
] + [
    Row("grid_sample of no images", lambda x, g: f.grid_sample(x, g), _by_torch(_sampled("bilinear", "zeros", False)),
        ((_IMAGE[:0], _POINTS[:0]), (_IMAGE, _POINTS[:, :0]), (_IMAGE[:, :0], _POINTS)), torch=_sampled("bilinear", "zeros", False)),
    Row("grid_sample nearest of volumes", lambda x, g: f.grid_sample(x, g, mode="nearest"), _by_torch(_sampled("nearest", "zeros", False)),
        ((_VOLUME, _DEEP),), torch=_sampled("nearest", "zeros", False)),
    Row("grid_sample far away", lambda x, g: f.grid_sample(x, g, padding_mode="zeros"), _by_torch(_sampled("bilinear", "zeros", False)), (),
        ((_IMAGE[:1], exact([[[[1e4, 0.0], [0.0, -1e4], [-1.0, 1.0]]]])),)),
    Row("grid_sample of one pixel", lambda x, g: f.grid_sample(x, g, padding_mode="reflection", align_corners=True),
        _by_torch(_sampled("bilinear", "reflection", True)), (), ((normal(1, 1, 1, 1), _POINTS[:1]),)),
    *(
        Row(f"grid_sample, constant {constant}", lambda x, g: f.grid_sample(x, g), _by_torch(_sampled("bilinear", "zeros", False)),
            ((_IMAGE, _POINTS),), torch=_sampled("bilinear", "zeros", False), constant=constant, factor=16)
        for constant in ((0,), (1,))
    ),
]  # fmt: skip

AFFINE = [
    Row(f"affine_grid {size} {align}", lambda t, s=size, a=align: f.affine_grid(t, s, align_corners=a),
        _by_torch(lambda t, s=size, a=align: tf.affine_grid(t, list(s), align_corners=a)), ((normal(2, len(size) - 2, len(size) - 1),),), factor=4)
    for size in ((2, 3, 4, 5), (2, 1, 1, 3), (2, 1, 2, 3, 4))
    for align in (False, True)
    if not (align and 1 in size[2:])  # PyTorch warns about these
]  # fmt: skip


ROWS: list[Row] = [*POOLING, *INTERPOLATE, *GRID, *AFFINE]
