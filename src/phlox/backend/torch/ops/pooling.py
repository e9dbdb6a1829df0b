"""Pooling by PyTorch's own kernels, forward and backward."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
from typing import Any

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients, Needed, Shape, Widths
from phlox.backend.torch import compat
from phlox.backend.torch.ops.conv import even, is_even, shared, uneven


class Pooling(Backend):
    """See `phlox.backend.contract.nn.pooling`. PyTorch has no pooling of sequences: they are images of one row."""

    def max_pool_forward(
        self, x: Array, window: Shape, stride: Shape, padding: Widths, dilation: Shape
    ) -> tuple[Array, Any]:
        if not _native_max(x.shape, window, padding):
            return super().max_pool_forward(x, window, stride, padding, dilation)
        if len(window) == 1:
            y, saved = self.max_pool_forward(x.unsqueeze(2), *_of_images(window, stride, padding, dilation))
            return y.squeeze(2), saved
        x, symmetric = even(x, padding, -math.inf)
        y, indices = compat.MAX_POOL[len(window)].value(x, window, stride, symmetric, dilation)
        return y, (x, indices)

    def max_pool_backward(
        self, saved: Any, g: Array, needed: Needed, window: Shape, stride: Shape, padding: Widths, dilation: Shape
    ) -> Gradients:
        if not _native_max(g.shape, window, padding):
            return super().max_pool_backward(saved, g, needed, window, stride, padding, dilation)
        if len(window) == 1:
            options = _of_images(window, stride, padding, dilation)
            (dx,) = self.max_pool_backward(saved, g.unsqueeze(2), needed, *options)
            return (None if dx is None else dx.squeeze(2),)
        x, indices = saved
        symmetric = shared(padding)
        dx = compat.MAX_POOL_BACKWARD[len(window)].value(g, x, window, stride, symmetric, dilation, False, indices)
        return (self._unpad_spatial(dx, uneven(padding)),)

    def avg_pool(self, x: Array, window: Shape, stride: Shape, padding: Widths, counted: Widths) -> Array:
        if not _native_mean(x.shape, window, padding, counted):
            return super().avg_pool(x, window, stride, padding, counted)
        if len(window) == 1:
            return self.avg_pool(x.unsqueeze(2), *_of_images(window, stride, padding, counted)).squeeze(2)
        return compat.AVG_POOL[len(window)].value(x, window, stride, shared(padding), False, counted == padding)

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
        options = (window, stride, shared(padding), False, counted == padding, None)
        return (compat.AVG_POOL_BACKWARD[len(window)].value(g, saved, *options),)


def _of_images(window: Shape, stride: Shape, padding: Widths, last: Any) -> tuple[Shape, Shape, Widths, Any]:
    """Options of sequences as options of images with one row; the last one is a dilation or a padding."""
    none = (0, 0) if isinstance(last[0], tuple) else 1
    return (1, *window), (1, *stride), ((0, 0), *padding), (none, *last)


def _is_supported(shape: Shape, window: Shape, padding: Widths, *kernels: dict[int, compat.Private]) -> bool:
    """Does PyTorch have this pooling? It has none for empty arrays, or for a padding of more than half a window."""
    half = all(2 * width <= side for width, side in zip(shared(padding), window, strict=True))
    axes = max(len(window), 2)
    return axes <= 3 and math.prod(shape) > 0 and half and all([kernel[axes].exists for kernel in kernels])  # noqa: C419


def _native_max(shape: Shape, window: Shape, padding: Widths) -> bool:
    return _is_supported(shape, window, padding, compat.MAX_POOL, compat.MAX_POOL_BACKWARD)


def _native_mean(shape: Shape, window: Shape, padding: Widths, counted: Widths) -> bool:
    """Does PyTorch have this mean? Only if both sides have equal padding, and all of it counts, or none."""
    plain = is_even(padding) and counted in (padding, ((0, 0),) * len(window))
    return plain and _is_supported(shape, window, padding, compat.AVG_POOL, compat.AVG_POOL_BACKWARD)
