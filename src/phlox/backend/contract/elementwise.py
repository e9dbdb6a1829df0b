"""Elementwise functions, derived."""

from __future__ import annotations

import math
from typing import Any

from phlox.backend.contract.special import SpecialOps
from phlox.backend.contract.types import Array

_SINC_SLOPE = tuple((-1.0) ** n * 2 * n / math.factorial(2 * n + 1) for n in range(8, 0, -1))
"""The derivative of sin(x) / x, divided by x, in powers of x^2 from the highest."""


class ElementwiseOps(SpecialOps):
    """One element of the result from one of each operand."""

    # --- powers and logarithms

    def float_square(self, x: Array) -> Array:
        """x * x."""
        return self.float_mul(x, x)

    def float_reciprocal(self, x: Array) -> Array:
        """1 / x."""
        return self.float_div(1.0, x)

    def float_rsqrt(self, x: Array) -> Array:
        """1 / sqrt(x)."""
        return self.float_reciprocal(self.float_sqrt(x))

    def float_cbrt(self, x: Array) -> Array:
        """The cube root, of negative numbers too."""
        return self.float_copysign(self.float_pow(self.float_abs(x), 1.0 / 3.0), x)

    def float_hypot(self, lhs: Array, rhs: Any) -> Array:
        """sqrt(lhs^2 + rhs^2), without overflow; infinity if one of them is infinite, even beside NaN."""
        lhs, rhs = self._floats(lhs, rhs)
        x, y = self.float_abs(lhs), self.float_abs(rhs)
        longer = self.float_maximum(x, y)
        ratio = self.float_div(self.float_minimum(x, y), self.where(self.float_equal(longer, 0.0), 1.0, longer))
        length = self.float_mul(longer, self.float_sqrt(self.float_add(self.float_mul(ratio, ratio), 1.0)))
        return self.where(self.bool_or(self.float_isinf(lhs), self.float_isinf(rhs)), math.inf, length)

    def float_exp2(self, x: Array) -> Array:
        """2 to the power x."""
        return self.float_pow(2.0, x)

    def float_log2(self, x: Array) -> Array:
        """The logarithm of base two."""
        return self.float_mul(self.float_log(x), 1.0 / math.log(2.0))

    def float_log10(self, x: Array) -> Array:
        """The logarithm of base ten."""
        return self.float_mul(self.float_log(x), 1.0 / math.log(10.0))

    def float_logaddexp(self, lhs: Array, rhs: Any) -> Array:
        """log(exp(lhs) + exp(rhs)), without overflow."""
        smaller, larger = self.float_minimum(lhs, rhs), self.float_maximum(lhs, rhs)
        # inf - inf would be NaN; without a shift, the sum with an infinity is right.
        shift = self.where(self.float_isfinite(larger), larger, 0.0)
        return self.float_add(larger, self.float_log1p(self.float_exp(self.float_sub(smaller, shift))))

    def float_xlogy(self, x: Array, y: Any) -> Array:
        """x log(y); zero where x is zero, unless y is NaN."""
        x, y = self._floats(x, y)
        zero = self.bool_and(self.float_equal(x, 0.0), self.float_equal(y, y))
        return self.where(zero, 0.0, self.float_mul(x, self.float_log(self.where(zero, 1.0, y))))

    # --- functions of probabilities

    def float_sigmoid(self, x: Array) -> Array:
        """1 / (1 + exp(-x)), with full precision where the result is small."""
        return self.float_div(1.0, self.float_add(self.float_exp(self.float_neg(x)), 1.0))

    def float_logit(self, x: Array) -> Array:
        """log(x / (1 - x)), with full precision near 1/2; NaN outside [0, 1]."""
        odds = self.float_div(x, self.float_sub(1.0, x))
        beside = self.float_mul(self.float_sub(x, 0.5), 2.0)
        near = self.float_log1p(self.float_div(beside, self.float_sub(1.0, x)))
        return self.where(self.float_less(self.float_abs(beside), 0.5), near, self.float_log(odds))

    # --- parts, bounds and blends

    def float_sinc(self, x: Array) -> Array:
        """sin(pi x) / (pi x), which is one at zero."""
        zero = self.float_equal(x, 0.0)
        angle = self.float_mul(self.where(zero, 1.0, x), math.pi)
        return self.where(zero, 1.0, self.float_div(self.float_sin(angle), angle))

    def float_sinc_backward(self, g: Array, x: Array) -> Array:
        """g (cos(pi x) - sinc(x)) / x; near zero by its series, since the two terms cancel there."""
        near = self.float_less(self.float_abs(x), 0.25)
        angle = self.float_mul(self.where(near, x, 0.0), math.pi)
        # Half precision has no numbers as small as the first coefficients, and needs none.
        terms = _SINC_SLOPE if self.float_element in ("f32", "f64") else _SINC_SLOPE[-4:]
        series = self.float_mul(self._polynomial(terms, self.float_mul(angle, angle)), angle)
        far = self.where(near, 0.25, x)
        turn = self.float_sub(far, self.float_mul(self.float_round(self.float_mul(far, 0.5)), 2.0))  # pi x may overflow
        slope = self.float_div(self.float_sub(self.float_cos(self.float_mul(turn, math.pi)), self.float_sinc(far)), far)
        return self.float_mul(g, self.where(near, self.float_mul(series, math.pi), slope))

    def float_trunc(self, x: Array) -> Array:
        """The nearest whole number toward zero."""
        return self.where(self.float_less(x, 0.0), self.float_ceil(x), self.float_floor(x))

    def float_nan_to_num(self, x: Array, nan: float, posinf: float, neginf: float) -> Array:
        """Numbers in place of NaN, of infinity and of minus infinity."""
        x = self.where(self.float_isnan(x), nan, x)
        x = self.where(self.float_equal(x, math.inf), posinf, x)
        return self.where(self.float_equal(x, -math.inf), neginf, x)

    def float_lerp(self, x: Array, y: Any, weight: Any) -> Array:
        """x + weight (y - x), which is exactly y if the weight is one."""
        difference = self.float_sub(y, x)
        if isinstance(weight, (int, float)):
            if weight < 0.5:
                return self.float_add(x, self.float_mul(difference, weight))
            return self.float_sub(y, self.float_mul(difference, 1.0 - weight))
        from_start = self.float_add(x, self.float_mul(difference, weight))
        from_end = self.float_sub(y, self.float_mul(difference, self.float_sub(1.0, weight)))
        return self.where(self.float_less(weight, 0.5), from_start, from_end)

    def float_rad2deg(self, x: Array) -> Array:
        """Radians as degrees."""
        return self.float_mul(x, 180.0 / math.pi)

    def float_deg2rad(self, x: Array) -> Array:
        """Degrees as radians."""
        return self.float_mul(x, math.pi / 180.0)

    # --- derivatives that engines have as single kernels: g times the slope, given the result y

    def float_tanh_backward(self, g: Array, y: Array) -> Array:
        """g (1 - y^2)."""
        return self.float_mul(g, self.float_sub(1.0, self.float_mul(y, y)))

    def float_sigmoid_backward(self, g: Array, y: Array) -> Array:
        """g y (1 - y)."""
        return self.float_mul(g, self.float_mul(y, self.float_sub(1.0, y)))
