"""Convolution by PyTorch's own kernels, forward and backward."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
from functools import cache
from itertools import chain
from typing import Any

import torch
from torch.nn import functional

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients, Needed, Shape, Widths
from phlox.backend.torch import compat
from phlox.backend.torch.sizes import is_empty


def channels_last(x: Array) -> Array:
    """Images with their channels last in memory, as CPU kernels need them; the axes keep their order.

    Later operations keep this memory order, so a network copies only its first images.

    >>> channels_last(torch.zeros(2, 3, 4, 4)).stride()
    (48, 1, 12, 3)
    """
    if x.ndim != 4 or x.device.type != "cpu":
        return x
    return x.contiguous(memory_format=torch.channels_last)


def even(x: Array, padding: Widths, value: float = 0.0) -> tuple[Array, Shape]:
    """x padded by the uneven part of `padding`, and the remaining padding, equal on both sides of each axis.

    >>> x, symmetric = even(torch.zeros(1, 1, 4), ((2, 1),))
    >>> tuple(x.shape), symmetric
    ((1, 1, 5), (1,))
    """
    symmetric = shared(padding)
    if is_even(padding):
        return x, symmetric
    return functional.pad(x, list(chain.from_iterable(reversed(uneven(padding)))), value=value), symmetric


def is_even(padding: Widths) -> bool:
    """Is the padding known, and equal on both sides? Comparing open widths would fix their sizes."""
    return all(type(before) is type(after) is int and before == after for before, after in padding)


def shared(padding: Widths) -> Shape:
    """The padding that both sides of an axis share; none if a width is open."""
    return tuple([min(pair) if type(pair[0]) is type(pair[1]) is int else 0 for pair in padding])


def uneven(padding: Widths) -> Widths:
    """The part of a padding that exceeds the other side's."""
    return tuple((before - same, after - same) for (before, after), same in zip(padding, shared(padding), strict=True))


def convolves_narrow(*arguments: Any) -> bool:
    """Does PyTorch convolve at half precision by a kernel that sums in f32? On a CPU only oneDNN's does so."""
    x = arguments[0][0] if isinstance(arguments[0], tuple) else arguments[0]
    if x.device.type != "cpu":
        return True
    return x.dtype is torch.bfloat16 and x.ndim <= 5 and torch.backends.mkldnn.is_available() and _has_bfloat16()


@cache
def _has_bfloat16() -> bool:
    """Does oneDNN compute with bfloat16 on this processor?"""
    return compat.has_bfloat16()


class Conv(Backend):
    """See `phlox.backend.contract.nn.conv`."""

    def conv(
        self, x: Array, weight: Array, bias: Array | None, stride: Shape, padding: Widths, dilation: Shape, groups: int
    ) -> Array:
        if not _is_supported(x.shape, weight.shape):
            return super().conv(x, weight, bias, stride, padding, dilation, groups)
        return _conv(channels_last(x), weight, bias, stride, padding, dilation, groups)

    def conv_forward(
        self, x: Array, weight: Array, bias: Array | None, stride: Shape, padding: Widths, dilation: Shape, groups: int
    ) -> tuple[Array, Any]:
        if not _is_supported(x.shape, weight.shape):
            return super().conv_forward(x, weight, bias, stride, padding, dilation, groups)
        x = channels_last(x)  # once for both passes
        return _conv(x, weight, bias, stride, padding, dilation, groups), (x, weight)

    def conv_backward(
        self, saved: Any, g: Array, needed: Needed, stride: Shape, padding: Widths, dilation: Shape, groups: int
    ) -> Gradients:
        x, weight = saved
        if not _is_supported(x.shape, weight.shape) or not compat.CONVOLUTION_BACKWARD.exists:
            return super().conv_backward(saved, g, needed, stride, padding, dilation, groups)
        x, symmetric = even(x, padding)
        dx, dw, db = _backward(g, x, weight, stride, symmetric, dilation, groups, needed)
        return None if dx is None else self._unpad_spatial(dx, uneven(padding)), dw, db

    def conv_dx(
        self, g: Array, weight: Array, shape: Shape, stride: Shape, padding: Widths, dilation: Shape, groups: int
    ) -> Array:
        if not _is_supported(shape, weight.shape) or not compat.CONVOLUTION_BACKWARD.exists:
            return super().conv_dx(g, weight, shape, stride, padding, dilation, groups)
        one_sided = uneven(padding)
        sizes = (size + before + after for size, (before, after) in zip(shape[2:], one_sided, strict=True))
        like = g.new_empty(1).expand(*shape[:2], *sizes)  # Only the shape of the input matters.
        symmetric = shared(padding)
        dx, _, _ = _backward(g, like, weight, stride, symmetric, dilation, groups, (True, False, False))
        return self._unpad_spatial(dx, one_sided)

    def conv_dw(
        self, x: Array, g: Array, shape: Shape, stride: Shape, padding: Widths, dilation: Shape, groups: int
    ) -> Array:
        if not _is_supported(x.shape, shape) or not compat.CONVOLUTION_BACKWARD.exists:
            return super().conv_dw(x, g, shape, stride, padding, dilation, groups)
        x, symmetric = even(x, padding)
        like = g.new_empty(1).expand(shape)
        return _backward(g, x, like, stride, symmetric, dilation, groups, (False, True, False))[1]

    def im2col(self, x: Array, window: Shape, stride: Shape, padding: Widths, dilation: Shape) -> Array:
        if len(window) != 2 or is_empty(x):
            return super().im2col(x, window, stride, padding, dilation)
        x, symmetric = even(x, padding)
        return functional.unfold(x, window, dilation, symmetric, stride)

    def col2im(
        self, columns: Array, shape: Shape, window: Shape, stride: Shape, padding: Widths, dilation: Shape
    ) -> Array:
        if len(window) != 2 or not math.prod(shape) or not is_even(padding):
            return super().col2im(columns, shape, window, stride, padding, dilation)
        return functional.fold(columns, shape[2:], window, dilation, shared(padding), stride)


def _is_supported(x: Shape, weight: Shape) -> bool:
    """Does PyTorch have this convolution? It supports one to three spatial axes, and no empty arrays."""
    return len(x) <= 5 and not any(type(size) is int and not size for size in (*x, *weight))


def _conv(
    x: Array, weight: Array, bias: Array | None, stride: Shape, padding: Widths, dilation: Shape, groups: int
) -> Array:
    x, symmetric = even(x, padding)
    return torch.convolution(x, weight, bias, stride, symmetric, dilation, False, (0,) * len(stride), groups)


def _backward(
    g: Array, x: Array, weight: Array, stride: Shape, padding: Shape, dilation: Shape, groups: int, needed: Needed
) -> Any:
    if needed[1] and _would_overrun(x, weight, stride, padding):
        dx, _, db = _backward(g, x, weight, stride, padding, dilation, groups, (needed[0], False, needed[2]))
        x = x[(..., *(slice(None, None, step) for step in stride))]
        _, dw, _ = _backward(g, x, weight, (1,) * len(stride), padding, dilation, groups, (False, True, False))
        return dx, dw, db
    options = (stride, padding, dilation, False, (0,) * len(stride), groups, list(needed))
    return compat.CONVOLUTION_BACKWARD.value(g, x, weight, [weight.shape[0]], *options)


def _would_overrun(x: Array, weight: Array, stride: Shape, padding: Shape) -> bool:
    """Would oneDNN write past its memory? It does for windows of one position with a stride, over fewer channels than a
    vector holds (oneDNN#6035). Then x is sliced to the positions that are read, and the stride is one."""
    is_single = all(size == 1 for size in weight.shape[2:]) and not any(padding)
    return is_single and weight.shape[1] < 16 and any(step > 1 for step in stride) and x.device.type == "cpu"
