"""Interpolation of images: resizing and sampling on a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias, cast

import numpy as np

from phlox.backend import Float
from phlox.backend.contract.nn.resampling import Mode, Resampling
from phlox.backend.contract.nn.sampling import Reading
from phlox.backend.tracing.dimension import is_open
from phlox.backend.tracing.symbolic import any_less
from phlox.errors import RangeError, ShapeError
from phlox.tensor.creation import tensor
from phlox.tensor.functional.operands import check_kind, compute
from phlox.tensor.tensor import Tensor

__all__ = ["affine_grid", "grid_sample", "interpolate"]

Interpolation: TypeAlias = Literal[
    "nearest", "nearest-exact", "linear", "bilinear", "trilinear", "cubic", "bicubic", "area"
]
Padding: TypeAlias = Literal["zeros", "border", "reflection"]

_MODES: dict[str, tuple[Mode, int | None]] = {
    "nearest": ("nearest", None), "nearest-exact": ("nearest-exact", None), "area": ("area", None),
    "linear": ("linear", None), "bilinear": ("linear", 2), "trilinear": ("linear", 3),
    "cubic": ("cubic", None), "bicubic": ("cubic", 2),
}  # fmt: skip
"""The kernel of each mode, and the number of spatial axes if a name from PyTorch fixes it."""
_READINGS: dict[str, Reading] = {
    "linear": "linear", "bilinear": "linear", "nearest": "nearest", "cubic": "cubic", "bicubic": "cubic",
}  # fmt: skip


def interpolate(
    x: Tensor,
    size: int | Sequence[int] | None = None,
    *,
    scale_factor: float | Sequence[float] | None = None,
    mode: Interpolation = "nearest",
    align_corners: bool = False,
    antialias: bool = False,
) -> Tensor:
    """Resize images: x [n, channels, ...] with one to three spatial axes.

    Args:
        x: Float.
        size: the spatial sizes of the result, or one size for all axes.
        scale_factor: in place of `size`, the factor of each spatial size, or one for all; results are rounded down.
        mode: "nearest" (the pixel at or before the position), "nearest-exact" (the pixel that contains it), "linear",
            "cubic" (Keys 1981), or "area" (the mean of all pixels covered). PyTorch's "bilinear", "trilinear" and
            "bicubic" also fix the number of spatial axes.
        align_corners: align the centres of the corner pixels, instead of their outer edges.
        antialias: for "linear" and "cubic", widen the kernel when downsampling.

    >>> import phlox as px
    >>> px.functional.interpolate(px.tensor([[[0.0, 1.0]]]), 4, mode="linear").tolist()
    [[[0.0, 0.25, 0.75, 1.0]]]
    """
    check_kind("interpolate", Float, x=x)
    if mode not in _MODES:
        raise RangeError(f"interpolate: mode must be one of {', '.join(_MODES)}; got {mode!r}")
    kernel, axes = _MODES[mode]
    spatial = x.shape[2:]
    if not 1 <= len(spatial) <= 3 or axes not in (None, len(spatial)):
        raise ShapeError(
            f"interpolate: x must be [n, channels, ...] with {axes or 'one to three'} spatial axes for {mode!r}, "
            f"got shape {x.shape}"
        )
    if (align_corners or antialias) and kernel not in ("linear", "cubic"):
        raise RangeError(
            f"interpolate: align_corners and antialias work only with linear and cubic modes, got {mode!r}"
        )
    if (size is None) == (scale_factor is None):
        raise ShapeError("interpolate: give either size or scale_factor")
    ratios: Sequence[float | None] = [None] * len(spatial)
    if scale_factor is not None:
        factors = _each("scale_factor", scale_factor, len(spatial))
        if min(factors) <= 0.0:
            raise RangeError(f"interpolate: scale_factor must be positive, got {scale_factor}")
        sizes = [math.floor(before * factor) for before, factor in zip(spatial, factors, strict=True)]
        ratios = ratios if kernel == "area" else [1.0 / factor for factor in factors]
    else:
        assert size is not None
        sizes = [cast(int, length) if is_open(length) else int(length) for length in _each("size", size, len(spatial))]
    if any_less((*sizes, *spatial), 1):
        raise ShapeError(f"interpolate: cannot resize images from {spatial} to {tuple(sizes)}; sizes must be positive")
    plans = tuple(
        Resampling(before, after, kernel, align_corners, ratio, antialias)
        for before, after, ratio in zip(spatial, sizes, ratios, strict=True)
    )
    return compute("interpolate", x, plans)


def _each(option: str, value: float | Sequence[float], count: int) -> Sequence[float]:
    if isinstance(value, (int, float)):
        return [value] * count
    if len(value) != count:
        raise ShapeError(f"interpolate: {option} must be one value, or {count} of them, got {tuple(value)}")
    return value


def grid_sample(
    x: Tensor,
    grid: Tensor,
    *,
    mode: Literal["bilinear", "nearest", "bicubic", "linear", "cubic"] = "bilinear",
    padding_mode: Padding = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """Sample x at the points of a grid (Jaderberg et al. 2015); both have gradients.

    Args:
        x: [n, channels, height, width], or [n, channels, depth, height, width].
        grid: [n, rows, columns, 2] of points (x, y), or [n, ..., 3] of points (x, y, z), where x runs along the width,
            y along the height and z along the depth. -1 and 1 are the edges of the image.
        mode: "bilinear" (trilinear for volumes), "nearest" (no gradient for the grid), or "bicubic" (images only).
        padding_mode: values beyond the edges: "zeros", "border" (the nearest border pixel) or "reflection".
        align_corners: -1 and 1 are the centres of the corner pixels, instead of their outer edges.

    Returns [n, channels, rows, columns] or [n, channels, ...].

    >>> import phlox as px
    >>> x = px.tensor([[[[0.0, 1.0]]]])
    >>> px.functional.grid_sample(x, px.zeros((1, 1, 1, 2))).item()
    0.5
    """
    check_kind("grid_sample", Float, x=x, grid=grid)
    rank = x.ndim - 2
    if rank not in (2, 3) or grid.ndim != x.ndim or grid.shape[0] != x.shape[0] or grid.shape[-1] != rank:
        raise ShapeError(
            f"grid_sample: x of shape {x.shape} and grid of shape {grid.shape} do not fit; they must be [n, channels, "
            f"height, width] and [n, rows, columns, 2], or [n, channels, depth, height, width] and [n, ..., 3]"
        )
    if mode not in _READINGS or (rank == 3 and _READINGS[mode] == "cubic"):
        raise RangeError(
            f"grid_sample: mode must be 'bilinear', 'nearest' or (images) 'bicubic'; got {mode!r} for shape {x.shape}"
        )
    if padding_mode not in ("zeros", "border", "reflection"):
        raise RangeError(f"grid_sample: padding_mode must be 'zeros', 'border' or 'reflection'; got {padding_mode!r}")
    if 0 in x.shape[2:]:
        raise ShapeError(f"grid_sample: x of shape {x.shape} has no pixels")
    return compute("grid_sample", x, grid, _READINGS[mode], padding_mode, align_corners)


def affine_grid(theta: Tensor, size: Sequence[int], *, align_corners: bool = False) -> Tensor:
    """The grid for `grid_sample` of an affine map: maps each pixel of an output of `size` to a point of the input.

    theta [n, 2, 3] and size (n, channels, height, width) give [n, height, width, 2]; for volumes theta is [n, 3, 4].

    >>> import phlox as px
    >>> px.functional.affine_grid(px.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]]), (1, 1, 1, 2))[0, 0].tolist()
    [[-0.5, 0.0], [0.5, 0.0]]
    """
    check_kind("affine_grid", Float, theta=theta)
    n, *_ = sizes = tuple(size)
    rank = len(sizes) - 2
    if rank not in (2, 3) or theta.shape != (n, rank, rank + 1):
        raise ShapeError(
            f"affine_grid: theta of shape {theta.shape} does not fit size {sizes}; they must be [n, 2, 3] and "
            f"(n, channels, height, width), or [n, 3, 4] and (n, channels, depth, height, width)"
        )
    coordinates = [
        np.linspace(-1.0, 1.0, k) * (1.0 if align_corners else (k - 1) / max(k, 1)) if k > 1 else np.zeros(k)
        for k in sizes[2:]
    ]
    lattice = np.stack([*reversed(np.meshgrid(*coordinates, indexing="ij")), np.ones(sizes[2:])], -1)
    points = tensor(lattice.reshape(math.prod(sizes[2:]), rank + 1), device=theta.device)
    return (points @ theta.mT).reshape((n, *sizes[2:], rank))
