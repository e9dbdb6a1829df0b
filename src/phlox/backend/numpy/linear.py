"""Linear maps and activations on NumPy: in blocks that fit the cache, in private buffers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.contract.nn.linear import GELU_FAR, INV_SQRT_2PI, SQRT_2_OVER_PI, TANH_CUBIC
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.backend.numpy.blocks import SMALL, Block, by_blocks, by_rows, dot, row_maxima, row_sums, scratch
from phlox.backend.numpy.sums import ROWS, column_sums, ones

# The normal distribution function is (1 + tanh(x P(x^2))) / 2. For gelu's approximation P has degree one; this minimax
# P makes it exact to 1e-7: NumPy has a fast tanh, but no error function.
_EXACT = (
    7.97884941e-01, 3.63330846e-02, -3.25949663e-05, -5.53061981e-05, 3.96474530e-06, -1.32263417e-07, 1.75617308e-09,
)  # fmt: skip
_APPROXIMATE = (SQRT_2_OVER_PI, TANH_CUBIC * SQRT_2_OVER_PI)


def _cdf(x: Block, approximate: bool, out: Block) -> Block:
    """The normal distribution function of a block into `out`; returns x * x in scratch memory."""
    *low, high = _APPROXIMATE if approximate else _EXACT
    square = np.multiply(x, x, out=scratch(x))
    np.multiply(square, high, out=out)
    for coefficient in reversed(low[1:]):
        out += coefficient
        out *= square
    out += low[0]
    out *= x
    np.tanh(out, out=out)
    out += 1.0
    out *= 0.5
    return square


def _gelu(approximate: bool) -> Callable[..., None]:
    def block(x: Block, *targets: Block) -> None:  # the last for the result, the first for the distribution function
        _cdf(x, approximate, targets[0])
        np.multiply(x, targets[0], out=targets[-1])

    return block


def _gelu_backward(approximate: bool) -> Callable[..., None]:
    def block(x: Block, *others: Block) -> None:
        *kept, g, out = others
        x = np.clip(x, -GELU_FAR, GELU_FAR, out=scratch(x, 2))
        if kept:
            cdf, density = kept[0], np.multiply(x, x, out=scratch(x))
        else:
            cdf, density = out, _cdf(x, approximate, out)
        if approximate:
            density *= 6.0 * TANH_CUBIC * SQRT_2_OVER_PI
            density += 2.0 * SQRT_2_OVER_PI
            density *= cdf
            density *= np.subtract(1.0, cdf, out=scratch(out, 1))
        else:
            density *= -0.5
            np.exp(density, out=density)
            density *= INV_SQRT_2PI
        density *= x
        np.add(cdf, density, out=out)
        out *= g

    return block


_GELU, _GELU_BACKWARD = (
    {approximate: block(approximate) for approximate in (False, True)} for block in (_gelu, _gelu_backward)
)
_KEPT = 1 << 16
"""Elements: up to here, memory costs less than computing the distribution function again for the derivative."""


def _softmax(x: Block, out: Block) -> None:
    np.subtract(x, row_maxima(x), out=out)
    np.exp(out, out=out)
    out /= row_sums(out)


def _softmax_backward(y: Block, g: Block, out: Block) -> None:
    np.subtract(g, dot(g, y), out=out)
    out *= y


def _log_softmax(x: Block, out: Block) -> None:
    np.subtract(x, row_maxima(x), out=out)
    out -= np.log(row_sums(np.exp(out, out=scratch(out))))


def _log_softmax_backward(y: Block, g: Block, out: Block) -> None:
    np.exp(y, out=out)
    out *= row_sums(g)
    np.subtract(g, out, out=out)


def _is_blockwise(x: Array, axis: int) -> bool:
    """Is the axis the last, and the array so large that blocks pay?"""
    return axis == x.ndim - 1 and x.size >= SMALL


class Dense(Backend):
    """See `phlox.backend.contract.nn.linear`."""

    def linear(self, x: Array, weight: Array, bias: Array | None) -> Array:
        # For two matrices, `dot` is the same product as `matmul`, which starts half a microsecond later.
        y = (x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])).dot(weight)
        if bias is not None:
            if len(y) == 1:  # a sum of equal shapes starts sooner
                row = y[0]
                row += bias
            else:
                y += bias
        return y if x.ndim == 2 else y.reshape(*x.shape[:-1], weight.shape[1])

    def linear_backward(self, saved: Any, g: Array, needed: Needed) -> Gradients:
        x, weight = saved
        g = g.reshape(-1, weight.shape[1]) if g.size else g.reshape(math.prod(x.shape[:-1]), weight.shape[1])
        dx = np.matmul(g, weight.T).reshape(x.shape) if needed[0] else None
        dw = np.matmul(x.reshape(len(g), weight.shape[0]).T, g) if needed[1] else None
        if not needed[2]:
            return dx, dw, None
        # Without a call of its own: small models wait for calls.
        return dx, dw, np.matmul(ones(len(g), g.dtype), g) if len(g) <= ROWS else column_sums(g)

    def gelu(self, x: Array, approximate: bool) -> Array:
        return by_blocks(_GELU[approximate], x) if x.dtype == np.float32 else super().gelu(x, approximate)

    def gelu_forward(self, x: Array, approximate: bool) -> tuple[Array, Any]:
        if x.size > _KEPT or x.dtype != np.float32:
            return super().gelu_forward(x, approximate)
        cdf = np.empty(x.shape, x.dtype)
        return by_blocks(_GELU[approximate], x, cdf), (x, cdf)

    def gelu_backward(self, saved: Any, g: Array, needed: Needed, approximate: bool) -> Gradients:
        if g.dtype != np.float32:
            return super().gelu_backward(saved, g, needed, approximate)
        kept: Any = (saved,) if isinstance(saved, np.ndarray) else saved
        return (by_blocks(_GELU_BACKWARD[approximate], *kept, g),)

    def softmax(self, x: Array, axis: int) -> Array:
        return by_rows(_softmax, x) if _is_blockwise(x, axis) else super().softmax(x, axis)

    def softmax_backward(self, saved: Any, g: Array, needed: Needed, axis: int) -> Gradients:
        if not _is_blockwise(g, axis):
            return super().softmax_backward(saved, g, needed, axis)
        return (by_rows(_softmax_backward, saved, g),)

    def log_softmax(self, x: Array, axis: int) -> Array:
        return by_rows(_log_softmax, x) if _is_blockwise(x, axis) else super().log_softmax(x, axis)

    def log_softmax_backward(self, saved: Any, g: Array, needed: Needed, axis: int) -> Gradients:
        if not _is_blockwise(g, axis):
            return super().log_softmax_backward(saved, g, needed, axis)
        return (by_rows(_log_softmax_backward, saved, g),)
