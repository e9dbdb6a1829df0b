"""Composites that NumPy does better than by their definitions: in blocks that fit the cache, in private buffers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.contract.nn import INV_SQRT_2PI, SQRT_2_OVER_PI, SQRT_HALF, TANH_CUBIC, Gradients, Needed
from phlox.backend.contract.types import Array, Pair, Shape
from phlox.backend.numpy.erf import BLOCK, erf_block

Block = np.ndarray[Any, Any]


def _by_blocks(fn: Callable[..., None], *arrays: Array) -> Array:
    """`fn(*blocks, out)` for every block of float32 arrays of one shape."""
    flat: list[Block] = [np.ascontiguousarray(array).reshape(-1) for array in arrays]
    out = np.empty_like(flat[0])
    for start in range(0, out.size, BLOCK):
        end = start + BLOCK
        fn(*(array[start:end] for array in flat), out[start:end])
    return out.reshape(arrays[0].shape)


def _cdf(x: Block, approximate: bool, out: Block) -> None:
    """The normal distribution function of a block; see `normal_cdf` in the contract."""
    if approximate:
        np.multiply(x, x, out=out)
        out *= TANH_CUBIC * SQRT_2_OVER_PI
        out += SQRT_2_OVER_PI
        out *= x
        np.tanh(out, out=out)
    else:
        erf_block(x * np.float32(SQRT_HALF), out)
    out += 1.0
    out *= 0.5


def _gelu(approximate: bool) -> Callable[..., None]:
    def block(x: Block, out: Block) -> None:
        _cdf(x, approximate, out)
        out *= x

    return block


def _gelu_backward(approximate: bool) -> Callable[..., None]:
    def block(x: Block, g: Block, out: Block) -> None:
        _cdf(x, approximate, out)
        density = x * x
        if approximate:
            density *= 6.0 * TANH_CUBIC * SQRT_2_OVER_PI
            density += 2.0 * SQRT_2_OVER_PI
            density *= out
            density *= 1.0 - out
        else:
            density *= -0.5
            np.exp(density, out=density)
            density *= INV_SQRT_2PI
        density *= x
        out += density
        out *= g

    return block


_GELU = {approximate: _gelu(approximate) for approximate in (False, True)}
_GELU_BACKWARD = {approximate: _gelu_backward(approximate) for approximate in (False, True)}


class Composites(Backend):
    """See `phlox.backend.contract.nn`."""

    def gelu(self, x: Array, approximate: bool) -> Array:
        return _by_blocks(_GELU[approximate], x) if x.dtype == np.float32 else super().gelu(x, approximate)

    def gelu_backward(self, saved: Any, g: Array, needed: Needed, approximate: bool) -> Gradients:
        if saved.dtype != np.float32:
            return super().gelu_backward(saved, g, needed, approximate)
        return (_by_blocks(_GELU_BACKWARD[approximate], saved, g),)

    # --- the parts of windows that overlap are added up in one buffer

    def conv2d_dx(
        self, g: Array, weight: Array, shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
    ) -> Array:
        n, out, rows, columns = g.shape
        kernel = weight.shape[2:]
        channels, height, width = shape[1:]
        flat_g = g.transpose(1, 0, 2, 3).reshape(groups, out // groups, n * rows * columns)
        flat_w = weight.reshape(groups, out // groups, -1).transpose(0, 2, 1)
        parts = np.matmul(flat_w, flat_g).reshape(channels, math.prod(kernel), n, rows, columns)
        padded = (channels, n, height + 2 * padding[0], width + 2 * padding[1])
        dx = np.zeros(padded, g.dtype)
        for place, view in enumerate(self.window_views(padded, kernel, stride, dilation)):
            dx[view] += parts[:, place]
        return self.unpad_image(dx, padding).transpose(1, 0, 2, 3)

    def max_pool2d_forward(self, x: Array, window: Pair, stride: Pair, padding: Pair) -> tuple[Array, Any]:
        padded = self.pad_image(x, padding, -math.inf)
        parts = [padded[view] for view in self.window_views(padded.shape, window, stride)]
        y = parts[0].copy()
        for part in parts[1:]:
            np.maximum(y, part, out=y)
        place = np.full(y.shape, len(parts) - 1, np.int32)
        undefined = np.isnan(y)
        some = undefined.any()
        for number in range(len(parts) - 2, -1, -1):
            hit = parts[number] == y
            if some:
                hit |= undefined & np.isnan(parts[number])
            place[hit] = number
        return y, (x.shape, place)

    def max_pool2d_backward(
        self, saved: Any, g: Array, needed: Needed, window: Pair, stride: Pair, padding: Pair
    ) -> Gradients:
        (n, c, height, width), place = saved
        padded = (n, c, height + 2 * padding[0], width + 2 * padding[1])
        dx = np.zeros(padded, g.dtype)
        for number, view in enumerate(self.window_views(padded, window, stride)):
            dx[view] += np.where(place == number, g, 0.0)
        return (self.unpad_image(dx, padding),)

    def avg_pool2d_backward(
        self, saved: Any, g: Array, needed: Needed, window: Pair, stride: Pair, padding: Pair
    ) -> Gradients:
        n, c, height, width = saved
        padded = (n, c, height + 2 * padding[0], width + 2 * padding[1])
        dx = np.zeros(padded, g.dtype)
        g = g * (1.0 / math.prod(window))
        for view in self.window_views(padded, window, stride):
            dx[view] += g
        return (self.unpad_image(dx, padding),)
