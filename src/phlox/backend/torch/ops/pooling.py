"""Pooling by PyTorch's own kernels, forward and backward."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
from typing import Any

import torch

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients, Needed, Shape, Widths
from phlox.backend.torch.ops.conv import even, uneven

_aten: Any = torch.ops.aten
_MAX = {2: _aten.max_pool2d_with_indices, 3: _aten.max_pool3d_with_indices}
_MAX_BACKWARD = {2: _aten.max_pool2d_with_indices_backward, 3: _aten.max_pool3d_with_indices_backward}
_AVG = {2: _aten.avg_pool2d, 3: _aten.avg_pool3d}
_AVG_BACKWARD = {2: _aten.avg_pool2d_backward, 3: _aten.avg_pool3d_backward}


class Pooling(Backend):
    """See `phlox.backend.contract.nn.pooling`. PyTorch has no pooling of sequences: they are images of one row."""

    def max_pool_forward(
        self, x: Array, window: Shape, stride: Shape, padding: Widths, dilation: Shape
    ) -> tuple[Array, Any]:
        if not _native(x.shape, window, padding):
            return super().max_pool_forward(x, window, stride, padding, dilation)
        if len(window) == 1:
            y, saved = self.max_pool_forward(x.unsqueeze(2), *_of_images(window, stride, padding, dilation))
            return y.squeeze(2), saved
        x, left = even(x, padding, -math.inf)
        y, places = _MAX[len(window)](x, window, stride, left, dilation)
        return y, (x, places)

    def max_pool_backward(
        self, saved: Any, g: Array, needed: Needed, window: Shape, stride: Shape, padding: Widths, dilation: Shape
    ) -> Gradients:
        if not _native(g.shape, window, padding):
            return super().max_pool_backward(saved, g, needed, window, stride, padding, dilation)
        if len(window) == 1:
            options = _of_images(window, stride, padding, dilation)
            (dx,) = self.max_pool_backward(saved, g.unsqueeze(2), needed, *options)
            return (None if dx is None else dx.squeeze(2),)
        x, places = saved
        left = tuple(map(min, padding))
        dx = _MAX_BACKWARD[len(window)](g, x, window, stride, left, dilation, False, places)
        return (self._unpad_spatial(dx, uneven(padding)),)

    def avg_pool(self, x: Array, window: Shape, stride: Shape, padding: Widths, counted: Widths) -> Array:
        if not _native_mean(x.shape, window, padding, counted):
            return super().avg_pool(x, window, stride, padding, counted)
        if len(window) == 1:
            return self.avg_pool(x.unsqueeze(2), *_of_images(window, stride, padding, counted)).squeeze(2)
        return _AVG[len(window)](x, window, stride, tuple(map(min, padding)), False, counted == padding)

    def avg_pool_forward(
        self, x: Array, window: Shape, stride: Shape, padding: Widths, counted: Widths
    ) -> tuple[Array, Any]:
        return self.avg_pool(x, window, stride, padding, counted), x

    def avg_pool_backward(
        self, saved: Any, g: Array, needed: Needed, window: Shape, stride: Shape, padding: Widths, counted: Widths
    ) -> Gradients:
        if not _native_mean(saved.shape, window, padding, counted):
            return super().avg_pool_backward(tuple(saved.shape), g, needed, window, stride, padding, counted)
        if len(window) == 1:
            options = _of_images(window, stride, padding, counted)
            (dx,) = self.avg_pool_backward(saved.unsqueeze(2), g.unsqueeze(2), needed, *options)
            return (None if dx is None else dx.squeeze(2),)
        options = (window, stride, tuple(map(min, padding)), False, counted == padding, None)
        return (_AVG_BACKWARD[len(window)](g, saved, *options),)


def _of_images(window: Shape, stride: Shape, padding: Widths, last: Any) -> tuple[Shape, Shape, Widths, Any]:
    """Options for sequences as those for images of one row; the last is a dilation, or a padding."""
    none = (0, 0) if isinstance(last[0], tuple) else 1
    return (1, *window), (1, *stride), ((0, 0), *padding), (none, *last)


def _native(shape: Shape, window: Shape, padding: Widths) -> bool:
    """Does PyTorch have this pooling? Not over nothing, nor with more than half of a window in the padding."""
    half = all(2 * min(pad) <= side for pad, side in zip(padding, window, strict=True))
    return len(window) <= 3 and math.prod(shape) > 0 and half


def _native_mean(shape: Shape, window: Shape, padding: Widths, counted: Widths) -> bool:
    """Does PyTorch have this mean? Only with as much padding on either side, all of which counts, or none."""
    plain = counted in (padding, ((0, 0),) * len(window)) and all(before == after for before, after in padding)
    return plain and _native(shape, window, padding)
