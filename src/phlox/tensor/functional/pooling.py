"""Pooling."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from phlox.backend.tracing.dimension import larger, smaller
from phlox.backend.tracing.symbolic import any_less, by_shapes, is_symbolic, less
from phlox.errors import ShapeError
from phlox.tensor.functional.call import Padding, Sizes, call, hashable, pad_pairs, sizes
from phlox.tensor.tensor import Tensor

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d",
]  # fmt: skip

Counts: TypeAlias = int | Sequence[int | None]
"""The number of windows per axis, or one for all axes; None leaves an axis unchanged."""


def max_pool1d(
    x: Tensor,
    window: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The maximum of each window of sequences [n, channels, length]; see `max_pool2d`.

    >>> import phlox as px
    >>> max_pool1d(px.tensor([[[1.0, 3.0, 2.0, 0.0]]]), 2).tolist()
    [[[3.0, 2.0]]]
    """
    return _max_pool("max_pool1d", 1, x, window, stride, padding, dilation, ceil_mode)


def max_pool2d(
    x: Tensor,
    window: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The maximum of each window of images [n, channels, height, width].

    Args:
        x: Float, [n, channels, height, width].
        window: an integer, or one per axis.
        stride: an integer, or one per axis; the window by default.
        padding: of minus infinity; an integer, one per axis, a pair (before, after) per axis, "same" or "valid" as in
            `conv2d`. It must be less than the window.
        dilation: an integer, or one per axis.
        ceil_mode: keep a last window that extends beyond the image.

    NaN counts as the greatest value. Among equal maxima, the first in row-major order gets the gradient.

    >>> import phlox as px
    >>> x = px.arange(9).float().reshape(1, 1, 3, 3)
    >>> max_pool2d(x, 2).tolist(), max_pool2d(x, 2, ceil_mode=True).tolist()
    ([[[[4.0]]]], [[[[4.0, 5.0], [7.0, 8.0]]]])
    """
    return _max_pool("max_pool2d", 2, x, window, stride, padding, dilation, ceil_mode)


def max_pool3d(
    x: Tensor,
    window: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The maximum of each window of volumes [n, channels, depth, height, width]; see `max_pool2d`.

    >>> import phlox as px
    >>> max_pool3d(px.ones((1, 2, 4, 4, 4)), 2).shape
    (1, 2, 2, 2, 2)
    """
    return _max_pool("max_pool3d", 3, x, window, stride, padding, dilation, ceil_mode)


def avg_pool1d(
    x: Tensor,
    window: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window of sequences [n, channels, length]; see `avg_pool2d`.

    >>> import phlox as px
    >>> avg_pool1d(px.tensor([[[1.0, 3.0, 2.0, 0.0]]]), 2).tolist()
    [[[2.0, 1.0]]]
    """
    return _avg_pool("avg_pool1d", 1, x, window, stride, padding, ceil_mode, count_include_pad)


def avg_pool2d(
    x: Tensor,
    window: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window of images [n, channels, height, width]; the stride is the window by default.

    Options as in `max_pool2d`. Padding counts as zeros; with `count_include_pad=False` it is left out of the mean.
    Elements that `ceil_mode` adds beyond the image are always left out.

    >>> import phlox as px
    >>> x = px.ones((1, 1, 2, 2))
    >>> avg_pool2d(x, 2, padding=1).tolist(), avg_pool2d(x, 2, padding=1, count_include_pad=False).tolist()
    ([[[[0.25, 0.25], [0.25, 0.25]]]], [[[[1.0, 1.0], [1.0, 1.0]]]])
    """
    return _avg_pool("avg_pool2d", 2, x, window, stride, padding, ceil_mode, count_include_pad)


def avg_pool3d(
    x: Tensor,
    window: Sizes,
    *,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window of volumes [n, channels, depth, height, width]; see `avg_pool2d`.

    >>> import phlox as px
    >>> avg_pool3d(px.ones((1, 2, 4, 4, 4)), 2).shape
    (1, 2, 2, 2, 2)
    """
    return _avg_pool("avg_pool3d", 3, x, window, stride, padding, ceil_mode, count_include_pad)


def adaptive_avg_pool1d(x: Tensor, size: Counts) -> Tensor:
    """The mean of each of `size` windows of sequences [n, channels, length]; see `adaptive_avg_pool2d`.

    >>> import phlox as px
    >>> adaptive_avg_pool1d(px.tensor([[[1.0, 2.0, 6.0]]]), 2).tolist()
    [[[1.5, 4.0]]]
    """
    return _adaptive("adaptive_avg_pool1d", 1, x, size)


def adaptive_avg_pool2d(x: Tensor, size: Counts) -> Tensor:
    """The mean of windows of images [n, channels, height, width], with `size` windows per axis: [n, channels, *size].

    Window i of `count` goes from floor(i height / count) up to, but not including, ceil((i + 1) height / count). So
    windows overlap if the height is not divisible by the count. None leaves an axis unchanged; `size=1` is global
    pooling.

    >>> import phlox as px
    >>> adaptive_avg_pool2d(px.ones((2, 3, 5, 7)), (2, None)).shape
    (2, 3, 2, 7)
    """
    return _adaptive("adaptive_avg_pool2d", 2, x, size)


def adaptive_avg_pool3d(x: Tensor, size: Counts) -> Tensor:
    """The mean of `size` windows per axis of volumes [n, channels, depth, height, width]; see `adaptive_avg_pool2d`.

    >>> import phlox as px
    >>> adaptive_avg_pool3d(px.ones((1, 2, 4, 4, 4)), 1).shape
    (1, 2, 1, 1, 1)
    """
    return _adaptive("adaptive_avg_pool3d", 3, x, size)


def adaptive_max_pool1d(x: Tensor, size: Counts) -> Tensor:
    """The maximum of each of `size` windows of sequences [n, channels, length]; see `adaptive_max_pool2d`.

    >>> import phlox as px
    >>> adaptive_max_pool1d(px.tensor([[[1.0, 2.0, 6.0]]]), 2).tolist()
    [[[2.0, 6.0]]]
    """
    return _adaptive("adaptive_max_pool1d", 1, x, size)


def adaptive_max_pool2d(x: Tensor, size: Counts) -> Tensor:
    """The maximum of windows of images [n, channels, height, width]; the windows are those of `adaptive_avg_pool2d`.

    NaN counts as the greatest value. Among equal maxima, the first in row-major order gets the gradient.

    >>> import phlox as px
    >>> adaptive_max_pool2d(px.ones((2, 3, 5, 7)), 2).shape
    (2, 3, 2, 2)
    """
    return _adaptive("adaptive_max_pool2d", 2, x, size)


def adaptive_max_pool3d(x: Tensor, size: Counts) -> Tensor:
    """The maximum of windows of volumes [n, channels, depth, height, width]; see `adaptive_max_pool2d`.

    >>> import phlox as px
    >>> adaptive_max_pool3d(px.ones((1, 2, 4, 4, 4)), (2, 2, 1)).shape
    (1, 2, 2, 2, 1)
    """
    return _adaptive("adaptive_max_pool3d", 3, x, size)


_SPATIAL = {1: "length", 2: "height, width", 3: "depth, height, width"}
Shape: TypeAlias = tuple[int, ...]
_Pairs: TypeAlias = tuple[tuple[int, int], ...]


def _max_pool(
    name: str,
    axes: int,
    x: Tensor,
    window: Sizes,
    stride: Sizes | None,
    padding: Padding,
    dilation: Sizes,
    ceil_mode: bool,
) -> Tensor:
    keys = map(hashable, (window, stride, padding, dilation))
    sides, strides, _, pads, dilations = by_shapes(_windows, name, axes, x.shape, *keys, ceil_mode)
    return call(name, x, sides, strides, pads, dilations, operation="max_pool")


def _avg_pool(
    name: str,
    axes: int,
    x: Tensor,
    window: Sizes,
    stride: Sizes | None,
    padding: Padding,
    ceil_mode: bool,
    count_include_pad: bool,
) -> Tensor:
    keys = map(hashable, (window, stride, padding))
    sides, strides, pairs, pads, _ = by_shapes(_windows, name, axes, x.shape, *keys, 1, ceil_mode)
    counted = pairs if count_include_pad else ((0, 0),) * axes
    return call(name, x, sides, strides, pads, counted, operation="avg_pool")


@lru_cache(1024, typed=True)
def _windows(
    name: str,
    axes: int,
    x: Shape,
    window: Sizes,
    stride: Sizes | None,
    padding: Padding,
    dilation: Sizes,
    ceil_mode: bool,
) -> tuple[Shape, Shape, _Pairs, _Pairs, Shape]:
    """Windows, strides, padding, padding including that of `ceil_mode`, dilations; cached."""
    input_sizes = _spatial(name, axes, x)
    sides = sizes(name, "window", window, axes, 1)
    strides = sides if stride is None else sizes(name, "stride", stride, axes, 1)
    dilations = sizes(name, "dilation", dilation, axes, 1)
    reach = tuple(step * (side - 1) + 1 for side, step in zip(sides, dilations, strict=True))
    pairs = pad_pairs(name, padding, input_sizes, reach, strides)
    if any(max(pad) >= span for pad, span in zip(pairs, reach, strict=True) if not is_symbolic(sum(pad)) and max(pad)):
        raise ShapeError(
            f"{name}: the padding {pairs} must be less than the window {sides}, or a window could hold only padding; "
            f"use at most half of the window"
        )
    if any(less(size + sum(pad), span) for size, pad, span in zip(input_sizes, pairs, reach, strict=True)):
        raise ShapeError(f"{name}: the window {sides} is larger than the padded input of shape {x}")
    if not ceil_mode:
        return sides, strides, pairs, pairs, dilations
    pads: list[tuple[int, int]] = []
    for size, (before, after), span, step in zip(input_sizes, pairs, reach, strides, strict=True):
        # One more window, if elements are left over and it starts before the padding at the end. Without a branch, so
        # that it holds for every size of an open axis.
        padded = size + before + after
        last = smaller(-((span - padded) // step), (size + before - 1) // step)
        pads.append((before, after + larger(0, last * step + span - padded)))
    return sides, strides, pairs, tuple(pads), dilations


def _adaptive(name: str, axes: int, x: Tensor, size: Counts) -> Tensor:
    input_sizes = _spatial(name, axes, x.shape)
    kept: Any = size
    if isinstance(size, Sequence) and len(size) == axes:
        kept = [input_size if count is None else count for count, input_size in zip(size, input_sizes, strict=True)]
    return call(name, x, sizes(name, "size", kept, axes, 1), operation=name[:-2])


def _spatial(name: str, axes: int, x: Shape) -> Shape:
    input_sizes = x[2:]
    if len(x) != 2 + axes or any_less(input_sizes, 1):
        raise ShapeError(f"{name}: x must be [n, channels, {_SPATIAL[axes]}] with no axis of size 0, got shape {x}")
    return input_sizes
