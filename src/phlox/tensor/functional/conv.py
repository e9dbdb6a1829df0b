"""Convolution, transposed convolution, unfold and fold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from phlox.backend.tracing.symbolic import any_less, by_shapes, less
from phlox.errors import ShapeError
from phlox.tensor.functional.call import Padding, Sizes, call, hashable, pad_pairs, sizes
from phlox.tensor.tensor import Tensor

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "fold", "unfold"]

Shape: TypeAlias = tuple[int, ...]

_SPATIAL = {1: "length", 2: "height, width", 3: "depth, height, width"}
_WINDOW = {1: "k", 2: "kh, kw", 3: "kd, kh, kw"}


def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution of sequences: x [n, channels, length], weight [out, channels / groups, k], bias [out].

    Options as in `conv2d`. For a causal convolution use `padding=((dilation * (k - 1), 0),)`.

    >>> import phlox as px
    >>> conv1d(px.ones((2, 3, 8)), px.ones((4, 3, 3)), padding=((2, 0),)).shape
    (2, 4, 8)
    """
    return _conv("conv1d", 1, x, weight, bias, stride, padding, dilation, groups)


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution of images: x [n, channels, height, width], weight [out, channels / groups, kh, kw], bias [out].

    As usual in deep learning this is cross-correlation: the weight is not flipped. The result is [n, out, rows,
    columns] with rows = (height + before + after - dilation (kh - 1) - 1) // stride + 1. columns is computed likewise.

    Args:
        x: Float, [n, channels, height, width].
        weight: Float, [out, channels / groups, kh, kw].
        bias: Float, [out].
        stride: an integer, or one per axis.
        padding: of zeros; an integer, one per axis, or a pair (before, after) per axis. "valid" is none. "same" gives
            rows = ceil(height / stride), with an odd element after (as in TensorFlow and JAX, and PyTorch at stride 1).
        dilation: an integer, or one per axis.
        groups: output channel o reads only the input channels of group o // (out / groups).

    Raises `ShapeError` if the shapes do not fit.

    >>> import phlox as px
    >>> x, weight = px.ones((2, 3, 8, 8)), px.ones((4, 3, 3, 3))
    >>> conv2d(x, weight, padding=1).shape, conv2d(x, weight, stride=2, padding="same").shape
    ((2, 4, 8, 8), (2, 4, 4, 4))
    >>> conv2d(x, weight, padding=((1, 0), (2, 2))).shape
    (2, 4, 7, 10)
    """
    return _conv("conv2d", 2, x, weight, bias, stride, padding, dilation, groups)


def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution of volumes: x [n, channels, depth, height, width], weight [out, channels / groups, kd, kh, kw].

    Options as in `conv2d`.

    >>> import phlox as px
    >>> conv3d(px.ones((1, 2, 4, 8, 8)), px.ones((3, 2, 3, 3, 3)), padding="same").shape
    (1, 3, 4, 8, 8)
    """
    return _conv("conv3d", 3, x, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Transposed convolution of sequences: x [n, channels, length], weight [channels, out / groups, k], bias [out].

    Options as in `conv_transpose2d`.

    >>> import phlox as px
    >>> conv_transpose1d(px.ones((2, 3, 8)), px.ones((3, 4, 2)), stride=2).shape
    (2, 4, 16)
    """
    return _conv_transpose("conv_transpose1d", 1, x, weight, bias, stride, padding, output_padding, dilation, groups)


def conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Transposed convolution of images: x [n, channels, rows, columns], weight [channels, out / groups, kh, kw].

    This is the transpose of `conv2d` as a linear map (its gradient with respect to the input), with the same options.
    The result is [n, out, height, width] with height = (rows - 1) stride - before - after + dilation (kh - 1) + 1 +
    output_padding. width is computed likewise. `padding` (an integer, one per axis, or a pair (before, after) per axis)
    is the padding of that `conv2d`, so here it is cropped. Several heights give the same rows under `conv2d`;
    `output_padding`, less than the stride, chooses one (Dumoulin and Visin, A guide to convolution arithmetic, 2016).

    >>> import phlox as px
    >>> conv_transpose2d(px.ones((2, 3, 8, 8)), px.ones((3, 4, 3, 3)), stride=2, padding=1, output_padding=1).shape
    (2, 4, 16, 16)
    """
    return _conv_transpose("conv_transpose2d", 2, x, weight, bias, stride, padding, output_padding, dilation, groups)


def conv_transpose3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Transposed convolution of volumes: weight [channels, out / groups, kd, kh, kw]; see `conv_transpose2d`.

    >>> import phlox as px
    >>> conv_transpose3d(px.ones((1, 2, 4, 4, 4)), px.ones((2, 3, 2, 2, 2)), stride=2).shape
    (1, 3, 8, 8, 8)
    """
    return _conv_transpose("conv_transpose3d", 3, x, weight, bias, stride, padding, output_padding, dilation, groups)


def unfold(x: Tensor, window: Sizes, *, stride: Sizes = 1, padding: Padding = 0, dilation: Sizes = 1) -> Tensor:
    """The windows of x [n, channels, *spatial] as columns [n, channels * window size, windows] (im2col).

    Elements and windows are both in row-major order. Options as in `conv2d`; any number of spatial axes is allowed.

    >>> import phlox as px
    >>> unfold(px.arange(6).float().reshape(1, 1, 2, 3), 2).tolist()
    [[[0.0, 1.0], [1.0, 2.0], [3.0, 4.0], [4.0, 5.0]]]
    """
    if x.ndim < 3:
        raise ShapeError(f"unfold: x must be [n, channels, *spatial], got shape {x.shape}")
    sides = sizes("unfold", "window", window, x.ndim - 2, 1)
    strides, dilations = _steps("unfold", x.ndim - 2, stride, dilation)
    pads = _pads("unfold", x.shape[2:], sides, strides, padding, dilations)
    return call("unfold", x, sides, strides, pads, dilations, operation="im2col")


def fold(
    columns: Tensor,
    size: Sequence[int],
    window: Sizes,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
) -> Tensor:
    """The transpose of `unfold` (col2im): add columns [n, channels * window size, windows] at their windows' positions.

    The result is [n, channels, *size], where `size` has one integer per spatial axis. Overlapping windows are summed:
    `fold(unfold(x))` multiplies each element by the number of windows that contain it.

    >>> import phlox as px
    >>> fold(px.ones((1, 4, 2)), (2, 3), 2).tolist()
    [[[[1.0, 2.0, 1.0], [1.0, 2.0, 1.0]]]]
    """
    axes = len(size) if isinstance(size, Sequence) else 0  # pyright: ignore[reportUnnecessaryIsInstance]
    if not axes:
        raise ShapeError(f"fold: size must be a sequence with one integer per spatial axis, got {size!r}")
    spatial = sizes("fold", "size", size, axes, 0)
    sides = sizes("fold", "window", window, axes, 1)
    strides, dilations = _steps("fold", axes, stride, dilation)
    pads = _pads("fold", spatial, sides, strides, padding, dilations)
    reach = _reach(sides, dilations)
    counts = [
        (n + sum(pad) - span) // step + 1 for n, pad, span, step in zip(spatial, pads, reach, strides, strict=True)
    ]
    window_size, windows = math.prod(sides), math.prod(counts)
    if columns.ndim != 3 or columns.shape[1] % window_size or columns.shape[2] != windows:
        raise ShapeError(
            f"fold: columns must be [n, channels * {window_size}, {windows}] for windows of {sides} over {spatial}, "
            f"got shape {columns.shape}"
        )
    shape = (columns.shape[0], columns.shape[1] // window_size, *spatial)
    return call("fold", columns, shape, sides, strides, pads, dilations, operation="col2im")


def _conv(
    name: str,
    axes: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Padding,
    dilation: Sizes,
    groups: int,
) -> Tensor:
    options = by_shapes(
        _conv_options, name, axes, *_shapes(x, weight, bias), *map(hashable, (stride, padding, dilation)), groups
    )
    return call(name, x, weight, bias, *options, groups, operation="conv")


def _of_last_channels(x: tuple[int, ...], channels: int) -> str:
    """What to write if the channels are on the last axis, as in other libraries."""
    return "; channels are on axis 1 here: x.moveaxis(-1, 1)" if x[-1] == channels != x[1] else ""


@lru_cache(1024, typed=True)
def _conv_options(
    name: str,
    axes: int,
    x: Shape,
    weight: Shape,
    bias: Shape | None,
    stride: Sizes,
    padding: Padding,
    dilation: Sizes,
    groups: int,
) -> tuple[Any, ...]:
    """Stride, padding and dilation, one entry per axis. The checks of shapes are cached."""
    strides, dilations = _steps(name, axes, stride, dilation)
    _check_ranks(name, axes, x, weight, "[out, channels / groups, ")
    out, per_group, *window = weight
    if groups < 1 or x[1] != per_group * groups or out % groups:
        raise ShapeError(
            f"{name}: x of shape {x} does not fit weight of shape {weight} in {groups} groups; "
            f"x needs {per_group * groups} channels, and the {out} output channels must be divisible by the groups"
            f"{_of_last_channels(x, per_group * groups)}"
        )
    _check_bias(name, bias, out)
    return strides, _pads(name, x[2:], tuple(window), strides, padding, dilations), dilations


def _conv_transpose(
    name: str,
    axes: int,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Padding,
    output_padding: Sizes,
    dilation: Sizes,
    groups: int,
) -> Tensor:
    keys = map(hashable, (stride, padding, output_padding, dilation))
    options = by_shapes(_conv_transpose_options, name, axes, *_shapes(x, weight, bias), *keys, groups)
    y = call(name, x, weight, *options, groups, operation="conv_dx")
    return y if bias is None else y + bias.reshape(bias.shape[0], *(1,) * axes)


@lru_cache(1024, typed=True)
def _conv_transpose_options(
    name: str,
    axes: int,
    x: Shape,
    weight: Shape,
    bias: Shape | None,
    stride: Sizes,
    padding: Padding,
    output_padding: Sizes,
    dilation: Sizes,
    groups: int,
) -> tuple[Any, ...]:
    """The shape of the result; stride, padding and dilation, one entry per axis."""
    strides, dilations = _steps(name, axes, stride, dilation)
    extra = sizes(name, "output_padding", output_padding, axes, 0)
    _check_ranks(name, axes, x, weight, "[channels, out / groups, ")
    channels, per_group, *window = weight
    if groups < 1 or x[1] != channels or channels % groups:
        raise ShapeError(
            f"{name}: x of shape {x} does not fit weight of shape {weight} in {groups} groups; "
            f"x needs {channels} channels, which must be divisible by the groups{_of_last_channels(x, channels)}"
        )
    out = per_group * groups
    _check_bias(name, bias, out)
    if isinstance(padding, str):
        raise ShapeError(
            f"{name}: padding must be integers, got {padding!r}; give one, or a pair (before, after), per axis"
        )
    pads = pad_pairs(name, padding, x[2:], strides, strides)
    if any(added >= step for added, step in zip(extra, strides, strict=True)):
        raise ShapeError(f"{name}: output_padding {extra} must be less than the stride {strides}")
    reach = _reach(tuple(window), dilations)
    spatial = tuple(
        (n - 1) * step - sum(pad) + span + added
        for n, step, pad, span, added in zip(x[2:], strides, pads, reach, extra, strict=True)
    )
    if any_less((*window, *x[2:], *spatial), 1):
        raise ShapeError(
            f"{name}: x of shape {x} with weight of shape {weight} gives a result of size {spatial}; "
            f"every size must be at least 1"
        )
    return (x[0], out, *spatial), strides, pads, dilations


def _shapes(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Shape, Shape, Shape | None]:
    return x.shape, weight.shape, None if bias is None else bias.shape


def _steps(name: str, axes: int, stride: Sizes, dilation: Sizes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return sizes(name, "stride", stride, axes, 1), sizes(name, "dilation", dilation, axes, 1)


def _check_ranks(name: str, axes: int, x: Shape, weight: Shape, channels: str) -> None:
    if len(x) != 2 + axes or len(weight) != 2 + axes:
        raise ShapeError(
            f"{name}: x must be [n, channels, {_SPATIAL[axes]}] and weight {channels}{_WINDOW[axes]}], "
            f"got shapes {x} and {weight}"
        )


def _check_bias(name: str, bias: Shape | None, out: int) -> None:
    if bias is not None and bias != (out,):
        raise ShapeError(f"{name}: bias of shape {bias} does not fit {out} output channels")


def _reach(window: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    """The size of the dilated window along each axis."""
    return tuple(step * (side - 1) + 1 for side, step in zip(window, dilation, strict=True))


def _pads(
    name: str,
    input_sizes: tuple[int, ...],
    window: tuple[int, ...],
    stride: tuple[int, ...],
    padding: Padding,
    dilation: tuple[int, ...],
) -> tuple[tuple[int, int], ...]:
    """The padding as pairs; `ShapeError` unless at least one window fits."""
    if min(window) < 1:
        raise ShapeError(f"{name}: the kernel has size {window}; every size must be at least 1")
    reach = _reach(window, dilation)
    pads = pad_pairs(name, padding, input_sizes, reach, stride)
    if any(less(size + sum(pad), span) for size, pad, span in zip(input_sizes, pads, reach, strict=True)):
        raise ShapeError(
            f"{name}: the kernel {window}, of dilated size {reach}, is larger than the padded input, "
            f"{input_sizes} with padding {pads}"
        )
    return pads
