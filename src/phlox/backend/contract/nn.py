"""Composites of neural networks, as single operations with their own derivative.

A composite `f` comes as three functions: `f(*operands, *options)`; `f_forward`, which returns the result together with
what its derivative needs; and `f_backward(saved, g, needed, *options)`, which returns one gradient an operand, None
where `needed` says that nobody asks. The definitions here use required operations only, so they serve any backend and
can themselves be differentiated; an engine overrides them where it does better.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

from phlox.backend.contract.derived import DerivedOps
from phlox.backend.contract.types import Array, Pair, Shape

Needed: TypeAlias = tuple[bool, ...]
Gradients: TypeAlias = tuple[Array | None, ...]

SQRT_HALF = math.sqrt(0.5)
INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
TANH_CUBIC = 0.044715


class DenseOps(DerivedOps):
    """Linear maps, activations, normalisation and losses."""

    # --- linear: x [..., i] @ weight [i, o] + bias [o]

    def linear(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """A dense layer, its leading axes folded so that the product is of two matrices."""
        *batch, size = self.shape(x)
        flat = x if len(batch) == 1 else self.reshape(x, (math.prod(batch), size))
        y = self.float_matmul(flat, weight)
        if bias is not None:
            y = self.float_add(y, bias)
        return y if len(batch) == 1 else self.reshape(y, (*batch, self.shape(weight)[1]))

    def linear_forward(self, x: Array, weight: Array, bias: Array | None) -> tuple[Array, Any]:
        """See `linear`."""
        return self.linear(x, weight, bias), (x, weight)

    def linear_backward(self, saved: Any, g: Array, needed: Needed) -> Gradients:
        """dx = g w', dw = x' g, db = sum of g."""
        x, weight = saved
        rows = math.prod(self.shape(x)[:-1])
        inputs, outputs = self.shape(weight)
        g = self.reshape(g, (rows, outputs))
        dx = dw = db = None
        if needed[0]:
            dx = self.reshape(self.float_matmul(g, self.permute_dims(weight, (1, 0))), self.shape(x))
        if needed[1]:
            dw = self.float_matmul(self.permute_dims(self.reshape(x, (rows, inputs)), (1, 0)), g)
        if needed[2]:
            db = self.float_sum(g, (0,), False)
        return dx, dw, db

    # --- softmax and its logarithm along one axis

    def softmax(self, x: Array, axis: int) -> Array:
        """exp(x) / sum(exp(x)), without overflow."""
        e = self.float_exp(self.float_sub(x, self.float_max(x, (axis,), True)))
        return self.float_div(e, self.float_sum(e, (axis,), True))

    def softmax_forward(self, x: Array, axis: int) -> tuple[Array, Any]:
        """See `softmax`."""
        y = self.softmax(x, axis)
        return y, y

    def softmax_backward(self, saved: Any, g: Array, needed: Needed, axis: int) -> Gradients:
        """dx = y (g - sum(g y))."""
        gy = self.float_mul(g, saved)
        return (self.float_sub(gy, self.float_mul(saved, self.float_sum(gy, (axis,), True))),)

    def log_softmax(self, x: Array, axis: int) -> Array:
        """x - log(sum(exp(x))), without overflow."""
        shifted = self.float_sub(x, self.float_max(x, (axis,), True))
        return self.float_sub(shifted, self.float_log(self.float_sum(self.float_exp(shifted), (axis,), True)))

    def log_softmax_forward(self, x: Array, axis: int) -> tuple[Array, Any]:
        """See `log_softmax`."""
        y = self.log_softmax(x, axis)
        return y, y

    def log_softmax_backward(self, saved: Any, g: Array, needed: Needed, axis: int) -> Gradients:
        """dx = g - softmax(x) sum(g)."""
        return (self.float_sub(g, self.float_mul(self.float_exp(saved), self.float_sum(g, (axis,), True))),)

    # --- cross-entropy: logits [n, classes], targets Int [n] -> losses [n]

    def cross_entropy(self, logits: Array, targets: Array) -> Array:
        """The negative log-likelihood of each target under softmax(logits)."""
        return self.cross_entropy_forward(logits, targets)[0]

    def cross_entropy_forward(self, logits: Array, targets: Array) -> tuple[Array, Any]:
        """See `cross_entropy`."""
        rows = self.shape(logits)[0]
        log_p = self.log_softmax(logits, 1)
        picked = self.take_along_axis(log_p, self.reshape(targets, (rows, 1)), 1)
        return self.float_neg(self.reshape(picked, (rows,))), (log_p, targets)

    def cross_entropy_backward(self, saved: Any, g: Array, needed: Needed) -> Gradients:
        """d logits = (softmax(logits) - one_hot(targets)) g."""
        log_p, targets = saved
        rows, classes = self.shape(log_p)
        column = self.reshape(g, (rows, 1))
        hit = self.int_equal(self.reshape(targets, (rows, 1)), self.class_numbers(targets, classes))
        difference = self.float_sub(self.float_exp(log_p), self.bool_into_float(hit))
        return self.float_mul(difference, column), None

    def class_numbers(self, like: Array, classes: int) -> Array:
        """0, 1, ..., classes - 1 as a row, on the device of `like`."""
        return self.reshape(self.int_arange(0, classes, 1, self.device_of(like)), (1, classes))

    # --- gelu (Hendrycks and Gimpel 2016): x Phi(x), or its approximation by tanh

    def gelu(self, x: Array, approximate: bool) -> Array:
        """x times the normal distribution function of x."""
        return self.float_mul(x, self.normal_cdf(x, approximate))

    def gelu_forward(self, x: Array, approximate: bool) -> tuple[Array, Any]:
        """See `gelu`."""
        return self.gelu(x, approximate), x

    def gelu_backward(self, saved: Any, g: Array, needed: Needed, approximate: bool) -> Gradients:
        """dx = g (Phi(x) + x Phi'(x))."""
        x = saved
        cdf = self.normal_cdf(x, approximate)
        x2 = self.float_mul(x, x)
        if approximate:
            slope = self.float_add(self.float_mul(x2, 6.0 * TANH_CUBIC * SQRT_2_OVER_PI), 2.0 * SQRT_2_OVER_PI)
            density = self.float_mul(self.float_mul(cdf, self.float_sub(1.0, cdf)), slope)
        else:
            density = self.float_mul(self.float_exp(self.float_mul(x2, -0.5)), INV_SQRT_2PI)
        return (self.float_mul(g, self.float_add(cdf, self.float_mul(x, density))),)

    def normal_cdf(self, x: Array, approximate: bool) -> Array:
        """The distribution function of the standard normal, or (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2."""
        if approximate:
            cubic = self.float_add(self.float_mul(self.float_mul(x, x), TANH_CUBIC * SQRT_2_OVER_PI), SQRT_2_OVER_PI)
            inner = self.float_tanh(self.float_mul(x, cubic))
        else:
            inner = self.float_erf(self.float_mul(x, SQRT_HALF))
        return self.float_add(self.float_mul(inner, 0.5), 0.5)

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
        y = normed if gamma is None else self.float_mul(normed, gamma)
        return (y if beta is None else self.float_add(y, beta)), (normed, rstd, gamma)

    def layer_norm_backward(self, saved: Any, g: Array, needed: Needed, epsilon: float) -> Gradients:
        """With h the normalised input and u = g gamma: dx = rstd (u - mean(u) - h mean(u h))."""
        normed, rstd, gamma = saved
        rank = len(self.shape(g))
        last, leading = (rank - 1,), tuple(range(rank - 1))
        dx = dgamma = dbeta = None
        if needed[0]:
            u = g if gamma is None else self.float_mul(g, gamma)
            along = self.float_mul(normed, self.float_mean(self.float_mul(u, normed), last, True))
            dx = self.float_mul(rstd, self.float_sub(self.float_sub(u, self.float_mean(u, last, True)), along))
        if needed[1]:
            dgamma = self.float_sum(self.float_mul(g, normed), leading, False)
        if needed[2]:
            dbeta = self.float_sum(g, leading, False)
        return dx, dgamma, dbeta


class ConvOps(DenseOps):
    """Convolution and pooling of images: x [n, channels, height, width]."""

    # --- conv2d: weight [out, in / groups, kh, kw]; the three maps are each other's derivatives

    def conv2d(
        self, x: Array, weight: Array, bias: Array | None, stride: Pair, padding: Pair, dilation: Pair, groups: int
    ) -> Array:
        """Cross-correlation, which the field calls convolution: one product of the weights with the unfolded images."""
        columns, (n, rows, cols) = self.unfold(x, self.shape(weight)[2:], stride, padding, dilation, groups)
        out = self.shape(weight)[0]
        y = self.float_matmul(self.reshape(weight, (groups, out // groups, -1)), columns)
        y = self.permute_dims(self.reshape(y, (out, n, rows, cols)), (1, 0, 2, 3))
        return y if bias is None else self.float_add(y, self.reshape(bias, (1, out, 1, 1)))

    def conv2d_dx(
        self, g: Array, weight: Array, shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
    ) -> Array:
        """The gradient towards an input of `shape`; linear in `g` and in `weight`."""
        n, out, rows, cols = self.shape(g)
        _, _, *window = self.shape(weight)
        channels, height, width = shape[1:]
        flat_g = self.reshape(self.permute_dims(g, (1, 0, 2, 3)), (groups, out // groups, n * rows * cols))
        flat_w = self.permute_dims(self.reshape(weight, (groups, out // groups, -1)), (0, 2, 1))
        parts = self.reshape(self.float_matmul(flat_w, flat_g), (channels, math.prod(window), n, rows, cols))
        padded = (channels, n, height + 2 * padding[0], width + 2 * padding[1])
        everything = (slice(0, channels), slice(0, n), slice(0, rows), slice(0, cols))
        dx = None
        for place, view in enumerate(self.window_views(padded, (window[0], window[1]), stride, dilation)):
            part = self.index(parts, (everything[0], place, *everything[1:]))
            share = self.float_index_adjoint(part, padded, view)
            dx = share if dx is None else self.float_add(dx, share)
        return self.permute_dims(self.unpad_image(dx, padding), (1, 0, 2, 3))

    def conv2d_dw(
        self, x: Array, g: Array, shape: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
    ) -> Array:
        """The gradient towards a weight of `shape`; linear in `x` and in `g`."""
        columns, (n, rows, cols) = self.unfold(x, shape[2:], stride, padding, dilation, groups)
        out = shape[0]
        flat_g = self.reshape(self.permute_dims(g, (1, 0, 2, 3)), (groups, out // groups, n * rows * cols))
        return self.reshape(self.float_matmul(flat_g, self.permute_dims(columns, (0, 2, 1))), shape)

    def unfold(
        self, x: Array, window: Shape, stride: Pair, padding: Pair, dilation: Pair, groups: int
    ) -> tuple[Array, tuple[int, int, int]]:
        """What each window sees, as columns [groups, channels / groups * kh * kw, n * rows * cols]; (n, rows, cols)."""
        x = self.pad_image(self.permute_dims(x, (1, 0, 2, 3)), padding, 0.0)
        views = self.window_views(self.shape(x), (window[0], window[1]), stride, dilation)
        parts = [self.expand_dims(self.index(x, view), (1,)) for view in views]
        stacked = self.concat(parts, 1)
        channels, places, n, rows, cols = self.shape(stacked)
        return self.reshape(stacked, (groups, channels // groups * places, n * rows * cols)), (n, rows, cols)

    def conv2d_forward(
        self, x: Array, weight: Array, bias: Array | None, stride: Pair, padding: Pair, dilation: Pair, groups: int
    ) -> tuple[Array, Any]:
        """See `conv2d`."""
        return self.conv2d(x, weight, bias, stride, padding, dilation, groups), (x, weight)

    def conv2d_backward(
        self, saved: Any, g: Array, needed: Needed, stride: Pair, padding: Pair, dilation: Pair, groups: int
    ) -> Gradients:
        """See `conv2d_dx` and `conv2d_dw`."""
        x, weight = saved
        options = (stride, padding, dilation, groups)
        dx = self.conv2d_dx(g, weight, self.shape(x), *options) if needed[0] else None
        dw = self.conv2d_dw(x, g, self.shape(weight), *options) if needed[1] else None
        db = self.float_sum(g, (0, 2, 3), False) if needed[2] else None
        return dx, dw, db

    # --- pooling

    def max_pool2d(self, x: Array, window: Pair, stride: Pair, padding: Pair) -> Array:
        """The greatest value of each window; padding counts as minus infinity."""
        return self.max_pool2d_forward(x, window, stride, padding)[0]

    def max_pool2d_forward(self, x: Array, window: Pair, stride: Pair, padding: Pair) -> tuple[Array, Any]:
        """See `max_pool2d`."""
        padded = self.pad_image(x, padding, -math.inf)
        views = self.window_views(self.shape(padded), window, stride)
        y = self.index(padded, views[0])
        for view in views[1:]:
            y = self.float_maximum(y, self.index(padded, view))
        return y, (x, y)

    def max_pool2d_backward(
        self, saved: Any, g: Array, needed: Needed, window: Pair, stride: Pair, padding: Pair
    ) -> Gradients:
        """The gradient goes to the first greatest element of each window, in reading order."""
        x, y = saved
        padded = self.pad_image(x, padding, -math.inf)
        shape = self.shape(padded)
        # A NaN equals nothing: the first NaN of a window counts as its greatest.
        undefined = self.float_isnan(y)
        dx, free = None, None
        for view in self.window_views(shape, window, stride):
            part = self.index(padded, view)
            hit = self.bool_or(self.float_equal(part, y), self.bool_and(undefined, self.float_isnan(part)))
            first = hit if free is None else self.bool_and(hit, free)
            free = self.bool_not(hit) if free is None else self.bool_and(free, self.bool_not(hit))
            share = self.float_index_adjoint(self.where(first, g, 0.0), shape, view)
            dx = share if dx is None else self.float_add(dx, share)
        return (self.unpad_image(dx, padding),)

    def avg_pool2d(self, x: Array, window: Pair, stride: Pair, padding: Pair) -> Array:
        """The mean of each window; padding counts as zeros."""
        padded = self.pad_image(x, padding, 0.0)
        total = None
        for view in self.window_views(self.shape(padded), window, stride):
            part = self.index(padded, view)
            total = part if total is None else self.float_add(total, part)
        return self.float_mul(total, 1.0 / math.prod(window))

    def avg_pool2d_forward(self, x: Array, window: Pair, stride: Pair, padding: Pair) -> tuple[Array, Any]:
        """See `avg_pool2d`."""
        return self.avg_pool2d(x, window, stride, padding), self.shape(x)

    def avg_pool2d_backward(
        self, saved: Any, g: Array, needed: Needed, window: Pair, stride: Pair, padding: Pair
    ) -> Gradients:
        """The transpose of `avg_pool2d`: each window's gradient is shared out evenly."""
        n, c, height, width = saved
        shape = (n, c, height + 2 * padding[0], width + 2 * padding[1])
        g = self.float_mul(g, 1.0 / math.prod(window))
        dx = None
        for view in self.window_views(shape, window, stride):
            share = self.float_index_adjoint(g, shape, view)
            dx = share if dx is None else self.float_add(dx, share)
        return (self.unpad_image(dx, padding),)

    def pad_image(self, x: Array, padding: Pair, value: float) -> Array:
        """Pad height and width on both sides."""
        if padding == (0, 0):
            return x
        return self.pad(x, ((0, 0), (0, 0), (padding[0], padding[0]), (padding[1], padding[1])), value)

    def unpad_image(self, x: Array, padding: Pair) -> Array:
        """The inside of a padded image."""
        if padding == (0, 0):
            return x
        n, c, height, width = self.shape(x)
        rows, columns = slice(padding[0], height - padding[0]), slice(padding[1], width - padding[1])
        return self.index(x, (slice(0, n), slice(0, c), rows, columns))

    @staticmethod
    def window_views(shape: Shape, window: Pair, stride: Pair, dilation: Pair = (1, 1)) -> list[tuple[slice, ...]]:
        """For each place in the window, the index of the elements that stand there, one of every window."""
        n, c, height, width = shape
        rows = (height - dilation[0] * (window[0] - 1) - 1) // stride[0] + 1
        columns = (width - dilation[1] * (window[1] - 1) - 1) // stride[1] + 1
        return [
            (
                slice(0, n),
                slice(0, c),
                slice(i * dilation[0], i * dilation[0] + stride[0] * (rows - 1) + 1, stride[0]),
                slice(j * dilation[1], j * dilation[1] + stride[1] * (columns - 1) + 1, stride[1]),
            )
            for i in range(window[0])
            for j in range(window[1])
        ]
