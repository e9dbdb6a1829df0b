"""Activations: each is a function and its derivative.

`float_f(x, *options)` is the function, `float_f_backward(g, x, *options)` the gradient g times its slope at x. Both are
elementwise. Where the slope jumps, it is the one that PyTorch takes.
"""

from __future__ import annotations

from phlox.backend.contract.elementwise import ElementwiseOps
from phlox.backend.contract.types import Array


class ActivationOps(ElementwiseOps):
    """The nonlinearities of neural networks, except `sigmoid`, `tanh` and `gelu`."""

    # --- rectifiers

    def float_relu(self, x: Array) -> Array:
        """max(x, 0)."""
        return self.float_maximum(x, 0.0)

    def float_relu_backward(self, g: Array, y: Array) -> Array:
        """g where the result y is positive."""
        return self.where(self.float_less(0.0, y), g, 0.0)

    def float_leaky_relu(self, x: Array, slope: float) -> Array:
        """x where it is positive, elsewhere slope x."""
        return self.where(self.float_less(0.0, x), x, self.float_mul(x, slope))

    def float_leaky_relu_backward(self, g: Array, x: Array, slope: float) -> Array:
        """g where x is positive, elsewhere slope g."""
        return self.where(self.float_less(0.0, x), g, self.float_mul(g, slope))

    def float_prelu(self, x: Array, weight: Array) -> Array:
        """x where it is positive, elsewhere weight x, for an array `weight` that broadcasts."""
        return self.where(self.float_less(0.0, x), x, self.float_mul(x, weight))

    def float_threshold(self, x: Array, threshold: float, value: float) -> Array:
        """x above the threshold, elsewhere a value."""
        return self.where(self.float_less_equal(x, threshold), value, x)

    def float_threshold_backward(self, g: Array, x: Array, threshold: float, value: float) -> Array:
        """g above the threshold."""
        return self.where(self.float_less_equal(x, threshold), 0.0, g)

    # --- exponential units: elu, and by other options selu and celu

    def float_elu(self, x: Array, alpha: float, scale: float, rate: float) -> Array:
        """scale x where x is positive, elsewhere scale alpha (exp(rate x) - 1)."""
        below = self.float_expm1(self.float_mul(self.float_minimum(x, 0.0), rate))
        y = self.where(self.float_less(0.0, x), x, self.float_mul(below, alpha))
        return self.float_mul(y, scale)

    def float_elu_backward(self, g: Array, x: Array, alpha: float, scale: float, rate: float) -> Array:
        """g scale where x is positive, elsewhere g scale alpha rate exp(rate x)."""
        below = self.float_exp(self.float_mul(self.float_minimum(x, 0.0), rate))
        return self.float_mul(
            g, self.where(self.float_less(0.0, x), scale, self.float_mul(below, scale * alpha * rate))
        )

    # --- smooth ones

    def float_softplus(self, x: Array) -> Array:
        """log(1 + exp(x)), without overflow."""
        tail = self.float_log1p(self.float_exp(self.float_neg(self.float_abs(x))))
        return self.float_add(self.float_maximum(x, 0.0), tail)

    def float_softplus_backward(self, g: Array, x: Array) -> Array:
        """g sigmoid(x)."""
        return self.float_mul(g, self.float_sigmoid(x))

    def float_log_sigmoid(self, x: Array) -> Array:
        """log(sigmoid(x)), without loss of precision."""
        return self.float_neg(self.float_softplus(self.float_neg(x)))

    def float_log_sigmoid_backward(self, g: Array, x: Array) -> Array:
        """g sigmoid(-x)."""
        return self.float_mul(g, self.float_sigmoid(self.float_neg(x)))

    def float_silu(self, x: Array) -> Array:
        """x sigmoid(x)."""
        return self.float_mul(x, self.float_sigmoid(x))

    def float_silu_backward(self, g: Array, x: Array) -> Array:
        """g (s + x s (1 - s)), for s = sigmoid(x)."""
        s = self.float_sigmoid(x)
        return self.float_mul(g, self.float_mul(s, self.float_add(self.float_mul(x, self.float_sub(1.0, s)), 1.0)))

    def float_mish(self, x: Array) -> Array:
        """x tanh(softplus(x))."""
        return self.float_mul(x, self.float_tanh(self.float_softplus(x)))

    def float_mish_backward(self, g: Array, x: Array) -> Array:
        """g (t + x (1 - t^2) sigmoid(x)), for t = tanh(softplus(x))."""
        t = self.float_tanh(self.float_softplus(x))
        bend = self.float_mul(self.float_sub(1.0, self.float_mul(t, t)), self.float_sigmoid(x))
        return self.float_mul(g, self.float_add(t, self.float_mul(x, bend)))

    def float_softsign(self, x: Array) -> Array:
        """x / (1 + |x|)."""
        return self.float_div(x, self.float_add(self.float_abs(x), 1.0))

    def float_softsign_backward(self, g: Array, x: Array) -> Array:
        """g / (1 + |x|)^2."""
        size = self.float_add(self.float_abs(x), 1.0)  # whose square may overflow
        return self.float_div(self.float_div(g, size), size)

    def float_tanhshrink(self, x: Array) -> Array:
        """x - tanh(x)."""
        return self.float_sub(x, self.float_tanh(x))

    def float_tanhshrink_backward(self, g: Array, x: Array) -> Array:
        """g tanh(x)^2."""
        return self.float_mul(g, self.float_square(self.float_tanh(x)))

    # --- piecewise linear ones

    def float_hardtanh(self, x: Array, low: float, high: float) -> Array:
        """x clipped below and above."""
        return self.float_clip(x, low, high)

    def float_hardtanh_backward(self, g: Array, x: Array, low: float, high: float) -> Array:
        """g where x is strictly within the bounds, elsewhere zero."""
        return self.where(self._is_outside(x, low, high), 0.0, g)

    def _is_outside(self, x: Array, low: float, high: float) -> Array:
        return self.bool_or(self.float_less_equal(x, low), self.float_less_equal(high, x))

    def float_hardsigmoid(self, x: Array) -> Array:
        """x / 6 + 1/2 clipped to [0, 1]."""
        return self.float_div(self.float_clip(self.float_add(x, 3.0), 0.0, 6.0), 6.0)

    def float_hardsigmoid_backward(self, g: Array, x: Array) -> Array:
        """g / 6 for x strictly between -3 and 3."""
        return self.where(self._is_outside(x, -3.0, 3.0), 0.0, self.float_mul(g, 1.0 / 6.0))

    def float_hardswish(self, x: Array) -> Array:
        """x hardsigmoid(x)."""
        return self.float_mul(x, self.float_hardsigmoid(x))

    def float_hardswish_backward(self, g: Array, x: Array) -> Array:
        """g (x / 3 + 1/2) for x between -3 and 3, above g."""
        slope = self.float_add(self.float_mul(x, 1.0 / 3.0), 0.5)
        slope = self.where(self.float_less_equal(x, -3.0), 0.0, slope)
        return self.float_mul(g, self.where(self.float_less_equal(3.0, x), 1.0, slope))

    def float_softshrink(self, x: Array, bound: float) -> Array:
        """x moved toward zero by the bound; zero within the bound."""
        return self.float_sub(x, self.float_clip(x, -bound, bound))

    def float_softshrink_backward(self, g: Array, x: Array, bound: float) -> Array:
        """g beyond the bound."""
        return self.where(self.float_less_equal(self.float_abs(x), bound), 0.0, g)

    def float_hardshrink(self, x: Array, bound: float) -> Array:
        """x beyond the bound, zero within it."""
        return self.where(self.float_less_equal(self.float_abs(x), bound), 0.0, x)

    def float_hardshrink_backward(self, g: Array, x: Array, bound: float) -> Array:
        """g beyond the bound."""
        return self.where(self.float_less_equal(self.float_abs(x), bound), 0.0, g)
