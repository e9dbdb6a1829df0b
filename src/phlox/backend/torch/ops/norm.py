"""Normalisation by PyTorch's own kernels, forward and backward."""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
from typing import Any

import torch

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array, Gradients, Needed
from phlox.backend.torch import compat
from phlox.backend.torch.sizes import is_empty
from phlox.backend.torch.tracer import is_fused, is_tracer


class Norm(Backend):
    """See `phlox.backend.contract.nn.norm`."""

    def layer_norm_forward(
        self, x: Array, gamma: Array | None, beta: Array | None, epsilon: float
    ) -> tuple[Array, Any]:
        if not (compat.NATIVE_LAYER_NORM.exists and compat.LAYER_NORM_BACKWARD.exists):
            return super().layer_norm_forward(x, gamma, beta, epsilon)
        y, mean, rstd = compat.NATIVE_LAYER_NORM.value(x, x.shape[-1:], gamma, beta, epsilon)
        return y, (x, mean, rstd, gamma, beta)

    def layer_norm_backward(self, saved: Any, g: Array, needed: Needed, epsilon: float) -> Gradients:
        if len(saved) == 3:
            return super().layer_norm_backward(saved, g, needed, epsilon)
        x, mean, rstd, gamma, beta = saved
        mask = [*needed]
        return compat.LAYER_NORM_BACKWARD.value(g.contiguous(), x, x.shape[-1:], mean, rstd, gamma, beta, mask)

    def group_norm_forward(
        self, x: Array, gamma: Array | None, beta: Array | None, groups: int, epsilon: float
    ) -> tuple[Array, Any]:
        if is_empty(x) or not (compat.NATIVE_GROUP_NORM.exists and compat.GROUP_NORM_BACKWARD.exists):
            return super().group_norm_forward(x, gamma, beta, groups, epsilon)
        x = x.contiguous()
        sizes = (x.shape[0], x.shape[1], math.prod(x.shape[2:]))
        y, mean, rstd = compat.NATIVE_GROUP_NORM.value(x, gamma, beta, *sizes, groups, epsilon)
        return y, (x, mean, rstd, gamma, sizes)

    def group_norm_backward(self, saved: Any, g: Array, needed: Needed, groups: int, epsilon: float) -> Gradients:
        if len(saved) == 3:
            return super().group_norm_backward(saved, g, needed, groups, epsilon)
        x, mean, rstd, gamma, sizes = saved
        mask = [needed[0], needed[1], needed[2] and gamma is not None]  # it has no gradient of beta without gamma
        backward = compat.GROUP_NORM_BACKWARD.value
        dx, dgamma, dbeta = backward(g.contiguous(), x, mean, rstd, gamma, *sizes, groups, mask)
        return dx, dgamma, g.sum(_but_channels(g)) if needed[2] and gamma is None else dbeta

    def batch_norm_train_forward(
        self, x: Array, gamma: Array | None, beta: Array | None, epsilon: float
    ) -> tuple[tuple[Array, Array, Array], Any]:
        channels = x.shape[1]
        count = x.numel() // max(channels, 1)
        if count < 2 or x.dtype not in (torch.float32, torch.float64) or not _has_batch_norm(x):
            return super().batch_norm_train_forward(x, gamma, beta, epsilon)
        if _is_for_loops(x):
            return _in_loops(x, gamma, beta, epsilon)
        # With a momentum of one, the running statistics become the batch's; its variance is divided by count - 1.
        mean, variance = x.new_zeros(channels), x.new_zeros(channels)
        arguments = (x, gamma, beta, mean, variance, True, 1.0, epsilon)
        if is_tracer(x):  # a trace does not see that the kernel writes to its arguments
            y, _, rstd, mean, variance = compat.BATCH_NORM_FUNCTIONAL.value(*arguments)
        else:
            y, _, rstd = compat.NATIVE_BATCH_NORM.value(*arguments)
        return (y, mean, variance * ((count - 1) / count)), (x, mean, rstd, gamma)

    def batch_norm_train_backward(
        self, saved: Any, gs: tuple[Array | None, ...], needed: Needed, epsilon: float
    ) -> Gradients:
        if len(saved) == 3:
            return super().batch_norm_train_backward(saved, gs, needed, epsilon)
        x, mean, rstd, gamma = saved
        g, *statistics = gs
        dx = dgamma = dbeta = None
        if g is not None and _is_for_loops(x):
            dx, dgamma, dbeta = _in_loops_backward(x, mean, rstd, gamma, g, needed)
        elif g is not None:
            dx, dgamma, dbeta = compat.BATCH_NORM_BACKWARD.value(
                g, x, gamma, None, None, mean, rstd, True, epsilon, [*needed]
            )
        if any(gradient is not None for gradient in statistics):
            shape = (-1, *(1 for _ in x.shape[2:]))
            rstd = rstd.reshape(shape)
            normed = (x - mean.reshape(shape)) * rstd
            also = super().batch_norm_train_backward((normed, rstd, None), (None, *statistics), needed, epsilon)[0]
            dx = also if dx is None else dx + also
        return dx, dgamma, dbeta


def _has_batch_norm(x: Array) -> bool:
    forward = compat.BATCH_NORM_FUNCTIONAL if is_tracer(x) else compat.NATIVE_BATCH_NORM
    return (forward.exists and compat.BATCH_NORM_BACKWARD.exists) or _is_for_loops(x)


def _is_for_loops(x: Array) -> bool:
    """Will a compiler make CPU loops of the operations on x?"""
    return is_fused(x) and x.device.type == "cpu"


def _in_loops(
    x: Array, gamma: Array | None, beta: Array | None, epsilon: float
) -> tuple[tuple[Array, Array, Array], Any]:
    """Batch norm whose loop over all elements has only one product and one sum: y = x scale + shift."""
    variance, mean = torch.var_mean(x, _but_channels(x), correction=0)
    rstd = torch.rsqrt(variance + epsilon)
    scale = rstd if gamma is None else gamma * rstd
    shift = -mean * scale if beta is None else beta - mean * scale
    return (x * _to_channels(scale, x) + _to_channels(shift, x), mean, variance), (x, mean, rstd, gamma)


def _in_loops_backward(x: Array, mean: Array, rstd: Array, gamma: Array | None, g: Array, needed: Needed) -> Gradients:
    """The gradients of x, gamma and beta; dx is g a + (x - mean) b + c, with a, b and c for each channel."""
    axes = _but_channels(x)
    centred = x - _to_channels(mean, x)
    dbeta, dgamma = g.sum(axes), (g * centred).sum(axes) * rstd
    a = rstd if gamma is None else gamma * rstd
    share = a * (-len(mean) / x.numel())
    b, c = dgamma * rstd * share, dbeta * share
    dx = g * _to_channels(a, x) + centred * _to_channels(b, x) + _to_channels(c, x)
    return tuple([dy if is_needed else None for dy, is_needed in zip((dx, dgamma, dbeta), needed, strict=True)])


def _but_channels(x: Array) -> list[int]:
    return [0, *range(2, x.ndim)]


def _to_channels(row: Array, x: Array) -> Array:
    """A number for each channel of x, reshaped to broadcast with x."""
    return row.reshape(-1, *(1 for _ in x.shape[2:]))
