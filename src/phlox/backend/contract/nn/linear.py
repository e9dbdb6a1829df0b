"""Linear maps and activations."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias, cast

from phlox.backend.contract.linalg import LinalgOps
from phlox.backend.contract.nn.activation import ActivationOps
from phlox.backend.contract.reduction import ReductionOps
from phlox.backend.contract.types import Array, Gradients, Needed

SQRT_HALF = math.sqrt(0.5)
INV_SQRT_2PI = 1.0 / math.sqrt(2.0 * math.pi)
SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
TANH_CUBIC = 0.044715

GELU_FAR = 40.0
"""From this |x| on, the normal distribution function is zero or one in double precision, and its density is zero."""

Gate: TypeAlias = Literal["sigmoid", "silu", "gelu"]


class DenseOps(ActivationOps, LinalgOps, ReductionOps):
    """Linear maps, softmax, gelu and gated linear units."""

    # --- linear: x [..., i] @ weight [i, o] + bias [o]

    def linear(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """A dense layer; leading axes are merged, so that it is one product of two matrices."""
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
            dx = self.reshape(self._products(g, weight), self.shape(x))
        if needed[1]:
            dw = self.float_matmul(self.permute_dims(self.reshape(x, (rows, inputs)), (1, 0)), g)
        if needed[2]:
            db = self.float_sum(g, (0,), False)
        return dx, dw, db

    # --- softmax and its logarithm along one axis

    def softmax(self, x: Array, axis: int) -> Array:
        """exp(x) / sum(exp(x)), without overflow."""
        e = self.float_exp(self.float_sub(x, self._max_to_shift(x, (axis,), True)))
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
        shifted = self.float_sub(x, self._max_to_shift(x, (axis,), True))
        return self.float_sub(shifted, self.float_log(self.float_sum(self.float_exp(shifted), (axis,), True)))

    def log_softmax_forward(self, x: Array, axis: int) -> tuple[Array, Any]:
        """See `log_softmax`."""
        y = self.log_softmax(x, axis)
        return y, y

    def log_softmax_backward(self, saved: Any, g: Array, needed: Needed, axis: int) -> Gradients:
        """dx = g - softmax(x) sum(g)."""
        return (self.float_sub(g, self.float_mul(self.float_exp(saved), self.float_sum(g, (axis,), True))),)

    # --- gelu (Hendrycks and Gimpel 2016): x Phi(x), or its approximation by tanh

    def gelu(self, x: Array, approximate: bool) -> Array:
        """x times the normal distribution function of x."""
        return self.float_mul(x, self._normal_cdf(x, approximate))

    def gelu_forward(self, x: Array, approximate: bool) -> tuple[Array, Any]:
        """See `gelu`."""
        return self.gelu(x, approximate), x

    def gelu_backward(self, saved: Any, g: Array, needed: Needed, approximate: bool) -> Gradients:
        """dx = g (Phi(x) + x Phi'(x)); x is saved, or x and Phi(x)."""
        x, cdf = cast("tuple[Array, Array | None]", saved) if isinstance(saved, tuple) else (saved, None)
        # For large |x| it is zero or x, with slope zero or one, also where x^2 overflows.
        x = self.float_clip(x, -GELU_FAR, GELU_FAR)
        cdf = self._normal_cdf(x, approximate) if cdf is None else cdf
        x2 = self.float_mul(x, x)
        if approximate:
            slope = self.float_add(self.float_mul(x2, 6.0 * TANH_CUBIC * SQRT_2_OVER_PI), 2.0 * SQRT_2_OVER_PI)
            density = self.float_mul(self.float_mul(cdf, self.float_sub(1.0, cdf)), slope)
        else:
            density = self.float_mul(self.float_exp(self.float_mul(x2, -0.5)), INV_SQRT_2PI)
        return (self.float_mul(g, self.float_add(cdf, self.float_mul(x, density))),)

    def _normal_cdf(self, x: Array, approximate: bool) -> Array:
        """The distribution function of the standard normal, or (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2."""
        if approximate:
            cubic = self.float_add(self.float_mul(self.float_mul(x, x), TANH_CUBIC * SQRT_2_OVER_PI), SQRT_2_OVER_PI)
            inner = self.float_tanh(self.float_mul(x, cubic))
        else:
            inner = self.float_erf(self.float_mul(x, SQRT_HALF))
        return self.float_add(self.float_mul(inner, 0.5), 0.5)

    # --- gated linear units: an activation of one half along an axis scales the other half

    def glu(self, x: Array, axis: int, gate: Gate) -> Array:
        """a sigmoid(b) of the halves a and b (Dauphin et al. 2017); silu(a) b or gelu(a) b (Shazeer 2020)."""
        value, gate_input = self._value_and_gate(x, axis, gate)
        return self.float_mul(value, self._gate_values(gate_input, gate))

    def glu_forward(self, x: Array, axis: int, gate: Gate) -> tuple[Array, Any]:
        """See `glu`."""
        value, gate_input = self._value_and_gate(x, axis, gate)
        opened = self._gate_values(gate_input, gate)
        return self.float_mul(value, opened), (value, gate_input, opened)

    def glu_backward(self, saved: Any, g: Array, needed: Needed, axis: int, gate: Gate) -> Gradients:
        """The gradients of both halves, joined."""
        value, gate_input, opened = saved
        towards_gate = self.float_mul(g, value)
        if gate == "sigmoid":
            towards_gate = self.float_sigmoid_backward(towards_gate, opened)
        elif gate == "silu":
            towards_gate = self.float_silu_backward(towards_gate, gate_input)
        else:
            (dx,) = self.gelu_backward(gate_input, towards_gate, (True,), False)
            towards_gate = dx
        halves = [self.float_mul(g, opened), towards_gate]
        return (self.concat(halves if gate == "sigmoid" else halves[::-1], axis),)

    def _gate_values(self, x: Array, gate: Gate) -> Array:
        if gate == "gelu":
            return self.gelu(x, False)
        return self.float_sigmoid(x) if gate == "sigmoid" else self.float_silu(x)

    def _value_and_gate(self, x: Array, axis: int, gate: Gate) -> tuple[Array, Array]:
        """The half that is scaled, and the one that scales it: the second of `glu`, the first of the others."""
        shape = self.shape(x)
        size = shape[axis] // 2
        whole = [slice(0, n, 1) for n in shape]
        first, second = (
            self.index(x, (*whole[:axis], slice(start, start + size, 1), *whole[axis + 1 :])) for start in (0, size)
        )
        return (first, second) if gate == "sigmoid" else (second, first)
