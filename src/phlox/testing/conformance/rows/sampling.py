# ruff: noqa: E501
# pyright: standard
# pyright: reportArgumentType=false
"""Interpolation and sampling on grids; the reference is PyTorch in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from phlox import functional as f
from phlox.testing.conformance.row import Row, exact, normal, tf, torch, unit


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
        places = np.arange(-4, size + 4)
        weights = np.zeros((len(source), size))
        np.add.at(weights, (slice(None), np.clip(places, 0, size - 1)), kernel(source[:, None] - places))
        x = np.moveaxis(np.moveaxis(x, axis, -1) @ weights.T, -1, axis)
    return x


def _interpolated(mode: str, options: dict[str, Any]) -> Any:
    given = dict(options)
    if not given.get("align_corners"):
        given.pop("align_corners", None)
    return lambda x: tf.interpolate(x, mode=mode, **given)


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

ROWS: list[Row] = [*INTERPOLATE, *GRID, *AFFINE]
