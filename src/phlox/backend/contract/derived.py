"""What follows from the required operations. Each is defined once here, and overridden where an engine does better."""

from __future__ import annotations

import math
from typing import Any

from phlox.backend.contract.required import BoolOps, FloatOps, IntOps, ShapeOps
from phlox.backend.contract.types import Array, Axes, Shape
from phlox.backend.device import Device


class DerivedOps(ShapeOps, FloatOps, IntOps, BoolOps):
    """Operations in terms of others, so that they work, and have derivatives, on every backend."""

    def shape(self, x: Array) -> Shape:
        """The shape of a native array."""
        return tuple(x.shape)

    def device_of(self, x: Array) -> Device:
        """Where a native array lives."""
        raise NotImplementedError

    # --- shape

    def squeeze(self, x: Array, axes: Axes) -> Array:
        """Remove axes of size one."""
        return self.reshape(x, tuple(size for axis, size in enumerate(self.shape(x)) if axis not in axes))

    def expand_dims(self, x: Array, axes: Axes) -> Array:
        """Insert axes of size one at these places of the result."""
        sizes = iter(self.shape(x))
        rank = len(self.shape(x)) + len(axes)
        return self.reshape(x, tuple(1 if axis in axes else next(sizes) for axis in range(rank)))

    # --- elementwise

    def float_square(self, x: Array) -> Array:
        """x * x."""
        return self.float_mul(x, x)

    def float_reciprocal(self, x: Array) -> Array:
        """1 / x."""
        return self.float_div(1.0, x)

    def float_rsqrt(self, x: Array) -> Array:
        """1 / sqrt(x)."""
        return self.float_reciprocal(self.float_sqrt(x))

    def float_log2(self, x: Array) -> Array:
        """The logarithm of base two."""
        return self.float_mul(self.float_log(x), 1.0 / math.log(2.0))

    def float_log10(self, x: Array) -> Array:
        """The logarithm of base ten."""
        return self.float_mul(self.float_log(x), 1.0 / math.log(10.0))

    def float_tan(self, x: Array) -> Array:
        """sin(x) / cos(x)."""
        return self.float_div(self.float_sin(x), self.float_cos(x))

    def float_sigmoid(self, x: Array) -> Array:
        """1 / (1 + exp(-x)), which the form by tanh computes without overflow."""
        return self.float_add(self.float_mul(self.float_tanh(self.float_mul(x, 0.5)), 0.5), 0.5)

    def float_relu(self, x: Array) -> Array:
        """max(x, 0)."""
        return self.float_maximum(x, 0.0)

    def float_softplus(self, x: Array) -> Array:
        """log(1 + exp(x)), without overflow."""
        tail = self.float_log1p(self.float_exp(self.float_neg(self.float_abs(x))))
        return self.float_add(self.float_relu(x), tail)

    def float_silu(self, x: Array) -> Array:
        """x * sigmoid(x)."""
        return self.float_mul(x, self.float_sigmoid(x))

    def float_clip(self, x: Array, low: float | None, high: float | None) -> Array:
        """Bound below and above; NaN stays."""
        if low is not None:
            x = self.float_maximum(x, low)
        return x if high is None else self.float_minimum(x, high)

    def int_clip(self, x: Array, low: int | None, high: int | None) -> Array:
        """Bound below and above."""
        if low is not None:
            x = self.int_maximum(x, low)
        return x if high is None else self.int_minimum(x, high)

    # --- derivatives that engines have as single kernels: g times the slope, given the result y

    def float_tanh_backward(self, g: Array, y: Array) -> Array:
        """g (1 - y^2)."""
        return self.float_mul(g, self.float_sub(1.0, self.float_mul(y, y)))

    def float_sigmoid_backward(self, g: Array, y: Array) -> Array:
        """g y (1 - y)."""
        return self.float_mul(g, self.float_mul(y, self.float_sub(1.0, y)))

    def float_relu_backward(self, g: Array, y: Array) -> Array:
        """g where y is positive, zero elsewhere."""
        return self.where(self.float_less(0.0, y), g, 0.0)

    # --- comparison

    def float_not_equal(self, lhs: Array, rhs: Any) -> Array:
        """NaN differs from everything, itself too."""
        return self.bool_not(self.float_equal(lhs, rhs))

    def float_greater(self, lhs: Array, rhs: Any) -> Array:
        """Is the left greater?"""
        return self.float_less(rhs, lhs)

    def float_greater_equal(self, lhs: Array, rhs: Any) -> Array:
        """Is the left greater or equal?"""
        return self.float_less_equal(rhs, lhs)

    def float_isnan(self, x: Array) -> Array:
        """Is it not a number?"""
        return self.float_not_equal(x, x)

    def float_isinf(self, x: Array) -> Array:
        """Is it an infinity?"""
        return self.float_equal(self.float_abs(x), math.inf)

    def float_isfinite(self, x: Array) -> Array:
        """Is it neither an infinity nor NaN?"""
        return self.float_less(self.float_abs(x), math.inf)

    def int_not_equal(self, lhs: Array, rhs: Any) -> Array:
        """Do they differ?"""
        return self.bool_not(self.int_equal(lhs, rhs))

    def int_greater(self, lhs: Array, rhs: Any) -> Array:
        """Is the left greater?"""
        return self.int_less(rhs, lhs)

    def int_greater_equal(self, lhs: Array, rhs: Any) -> Array:
        """Is the left greater or equal?"""
        return self.int_less_equal(rhs, lhs)

    def bool_equal(self, lhs: Array, rhs: Any) -> Array:
        """Are they the same?"""
        return self.bool_not(self.bool_xor(lhs, rhs))

    def bool_not_equal(self, lhs: Array, rhs: Any) -> Array:
        """Do they differ?"""
        return self.bool_xor(lhs, rhs)

    # --- reductions

    def float_mean(self, x: Array, axes: Axes, keepdims: bool) -> Array:
        """The arithmetic mean; of nothing, NaN."""
        count = math.prod(self.shape(x)[axis] for axis in axes)
        return self.float_mul(self.float_sum(x, axes, keepdims), 1.0 / count if count else math.nan)

    def float_var(self, x: Array, axes: Axes, correction: float, keepdims: bool) -> Array:
        """The variance, over n - correction; of too few elements, NaN."""
        count = math.prod(self.shape(x)[axis] for axis in axes) - correction
        deviation = self.float_sub(x, self.float_mean(x, axes, True))
        total = self.float_sum(self.float_square(deviation), axes, keepdims)
        return self.float_mul(total, 1.0 / count if count > 0 else math.nan)

    def float_std(self, x: Array, axes: Axes, correction: float, keepdims: bool) -> Array:
        """The square root of the variance; where that is zero, so is the derivative, which has no limit there."""
        variance = self.float_var(x, axes, correction, keepdims)
        flat = self.float_equal(variance, 0.0)
        return self.where(flat, 0.0, self.float_sqrt(self.where(flat, 1.0, variance)))

    def float_logsumexp(self, x: Array, axes: Axes, keepdims: bool) -> Array:
        """log(sum(exp(x))), without overflow."""
        highest = self.detach(self.float_max(x, axes, True))
        # An infinite maximum must not become inf - inf; the sum then is an infinity of itself.
        shift = self.where(self.float_isfinite(highest), highest, 0.0)
        total = self.float_log(self.float_sum(self.float_exp(self.float_sub(x, shift)), axes, keepdims))
        return self.float_add(total, shift if keepdims else self.squeeze(shift, axes))

    def detach(self, x: Array) -> Array:
        """The same values, seen as a constant by every tape."""
        return x
