"""Normalisation."""

from __future__ import annotations

import math
from typing import Any

from phlox.backend.contract.reduction import ReductionOps
from phlox.backend.contract.types import Array, Axes, Gradients, Needed
from phlox.backend.tracing.dimension import larger, ratio


class NormOps(ReductionOps):
    """Normalisations, with derivatives that take few passes over the input."""

    # --- layer norm (Ba, Kiros, Hinton 2016) over the last axis

    def layer_norm(self, x: Array, gamma: Array | None, beta: Array | None, epsilon: float) -> Array:
        """(x - mean) / sqrt(var + epsilon) * gamma + beta over the last axis."""
        return self.layer_norm_forward(x, gamma, beta, epsilon)[0]

    def layer_norm_forward(
        self, x: Array, gamma: Array | None, beta: Array | None, epsilon: float
    ) -> tuple[Array, Any]:
        """See `layer_norm`."""
        last = (len(self.shape(x)) - 1,)
        centred = self.float_sub(x, self.float_mean(x, last, True))
        variance = self.float_mean(self.float_square(centred), last, True)
        rstd = self.float_rsqrt(self.float_add(variance, epsilon))
        normed = self.float_mul(centred, rstd)
        return self._affine(normed, gamma, beta), (normed, rstd, gamma)

    def layer_norm_backward(self, saved: Any, g: Array, needed: Needed, epsilon: float) -> Gradients:
        """For the normalised input h and u = g gamma: dx = rstd (u - mean(u) - h mean(u h))."""
        normed, rstd, gamma = saved
        rank = len(self.shape(g))
        last, leading = (rank - 1,), tuple(range(rank - 1))
        dx = None
        if needed[0]:
            u = g if gamma is None else self.float_mul(g, gamma)
            along = self.float_mul(normed, self.float_mean(self.float_mul(u, normed), last, True))
            dx = self.float_mul(rstd, self.float_sub(self.float_sub(u, self.float_mean(u, last, True)), along))
        return dx, *self._scale_gradients(normed, g, needed, leading)

    def _affine(self, normed: Array, gamma: Array | None, beta: Array | None) -> Array:
        """normed * gamma + beta; gamma and beta may be absent."""
        y = normed if gamma is None else self.float_mul(normed, gamma)
        return y if beta is None else self.float_add(y, beta)

    def _scale_gradients(
        self, normed: Array, g: Array, needed: Needed, axes: Axes
    ) -> tuple[Array | None, Array | None]:
        """The gradients of gamma and beta, which were broadcast along `axes`."""
        dgamma = self.float_sum(self.float_mul(g, normed), axes, False) if needed[1] else None
        return dgamma, self.float_sum(g, axes, False) if needed[2] else None

    # --- RMS norm (Zhang, Sennrich 2019) over the last axis

    def rms_norm(self, x: Array, gamma: Array | None, epsilon: float) -> Array:
        """x / sqrt(mean(x^2) + epsilon) * gamma over the last axis."""
        return self.rms_norm_forward(x, gamma, epsilon)[0]

    def rms_norm_forward(self, x: Array, gamma: Array | None, epsilon: float) -> tuple[Array, Any]:
        """See `rms_norm`."""
        mean = self.float_mean(self.float_square(x), (len(self.shape(x)) - 1,), True)
        rrms = self.float_rsqrt(self.float_add(mean, epsilon))
        return self._affine(self.float_mul(x, rrms), gamma, None), (x, rrms, gamma)

    def rms_norm_backward(self, saved: Any, g: Array, needed: Needed, epsilon: float) -> Gradients:
        """For the normalised input h and u = g gamma: dx = rrms (u - h mean(u h))."""
        x, rrms, gamma = saved
        rank = len(self.shape(g))
        normed = self.float_mul(x, rrms)
        dx = None
        if needed[0]:
            u = g if gamma is None else self.float_mul(g, gamma)
            along = self.float_mul(normed, self.float_mean(self.float_mul(u, normed), (rank - 1,), True))
            dx = self.float_mul(rrms, self.float_sub(u, along))
        return dx, self._scale_gradients(normed, g, (*needed, False), tuple(range(rank - 1)))[0]

    # --- group norm (Wu, He 2018): x [n, channels, ...], gamma and beta [channels]

    def group_norm(self, x: Array, gamma: Array | None, beta: Array | None, groups: int, epsilon: float) -> Array:
        """(x - mean) / sqrt(var + epsilon) * gamma + beta, over each group of consecutive channels of an example."""
        return self.group_norm_forward(x, gamma, beta, groups, epsilon)[0]

    def group_norm_forward(
        self, x: Array, gamma: Array | None, beta: Array | None, groups: int, epsilon: float
    ) -> tuple[Array, Any]:
        """See `group_norm`: a layer norm with one row for each group."""
        shape = self.shape(x)
        size = shape[1] // groups * math.prod(shape[2:])
        rows, saved = self.layer_norm_forward(self.reshape(x, (shape[0] * groups, size)), None, None, epsilon)
        normed = self.reshape(rows, shape)
        gamma, beta = self._per_channel(gamma, shape), self._per_channel(beta, shape)
        return self._affine(normed, gamma, beta), (normed, gamma, saved)

    def group_norm_backward(self, saved: Any, g: Array, needed: Needed, groups: int, epsilon: float) -> Gradients:
        """See `layer_norm_backward`."""
        normed, gamma, rows = saved
        shape = self.shape(g)
        dx = None
        if needed[0]:
            u = g if gamma is None else self.float_mul(g, gamma)
            size = shape[1] // groups * math.prod(shape[2:])
            u = self.reshape(u, (shape[0] * groups, size))
            dx = self.reshape(self.layer_norm_backward(rows, u, (True, False, False), epsilon)[0], shape)
        return dx, *self._scale_gradients(normed, g, needed, self._all_but_channels(shape))

    def _per_channel(self, scale: Array | None, shape: tuple[int, ...]) -> Array | None:
        """One scalar for each channel, reshaped to broadcast with [n, channels, ...]."""
        return None if scale is None else self.reshape(scale, (shape[1], *(1 for _ in shape[2:])))

    def _all_but_channels(self, shape: tuple[int, ...]) -> Axes:
        return (0, *range(2, len(shape)))

    # --- batch norm (Ioffe, Szegedy 2015): x [n, channels, ...], gamma and beta [channels]; three results

    def batch_norm_train(
        self, x: Array, gamma: Array | None, beta: Array | None, epsilon: float
    ) -> tuple[Array, Array, Array]:
        """(x - mean) / sqrt(var + epsilon) * gamma + beta, over all axes but the channels; and mean and variance."""
        return self.batch_norm_train_forward(x, gamma, beta, epsilon)[0]

    def batch_norm_train_forward(
        self, x: Array, gamma: Array | None, beta: Array | None, epsilon: float
    ) -> tuple[tuple[Array, Array, Array], Any]:
        """See `batch_norm_train`."""
        shape = self.shape(x)
        axes = self._all_but_channels(shape)
        mean = self.float_mean(x, axes, True)
        centred = self.float_sub(x, mean)
        variance = self.float_mean(self.float_square(centred), axes, True)
        rstd = self.float_rsqrt(self.float_add(variance, epsilon))
        normed = self.float_mul(centred, rstd)
        gamma, beta = self._per_channel(gamma, shape), self._per_channel(beta, shape)
        results = self._affine(normed, gamma, beta), self.reshape(mean, shape[1:2]), self.reshape(variance, shape[1:2])
        return results, (normed, rstd, gamma)

    def batch_norm_train_backward(
        self, saved: Any, gs: tuple[Array | None, ...], needed: Needed, epsilon: float
    ) -> Gradients:
        """As for layer norm; the mean's gradient goes evenly to all elements, the variance's as x - mean."""
        normed, rstd, gamma = saved
        g, g_mean, g_variance = gs
        shape = self.shape(normed)
        axes = self._all_but_channels(shape)
        dx = dgamma = dbeta = None
        if g is not None:
            dgamma, dbeta = self._scale_gradients(normed, g, needed, axes)
            u = g if gamma is None else self.float_mul(g, gamma)
            along = self.float_mul(normed, self.float_mean(self.float_mul(u, normed), axes, True))
            dx = self.float_mul(rstd, self.float_sub(self.float_sub(u, self.float_mean(u, axes, True)), along))
        count = larger(math.prod(shape[axis] for axis in axes), 1)
        if g_mean is not None:
            share = self.float_mul(self._per_channel(g_mean, shape), ratio(1, count))
            dx = self.broadcast_to(share, shape) if dx is None else self.float_add(dx, share)
        if g_variance is not None:
            slope = self.float_div(self.float_mul(self._per_channel(g_variance, shape), ratio(2, count)), rstd)
            along = self.float_mul(normed, slope)
            dx = along if dx is None else self.float_add(dx, along)
        return dx, dgamma, dbeta
