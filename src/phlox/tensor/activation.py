"""Activations of neural networks."""

from __future__ import annotations

from typing import Self

from phlox.backend import Float
from phlox.errors import RangeError, ShapeError
from phlox.tensor.base import Number
from phlox.tensor.operands import Operands

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


class Activation(Operands):
    """Activations are elementwise, except those with an `axis`. At a kink the gradient is the one that PyTorch uses.

    Each is also a function: `phlox.functional.relu(x)` is `x.relu()`.
    """

    __slots__ = ()

    # --- rectifiers

    def relu(self) -> Self:
        """max(x, 0)."""
        return self._apply("relu")

    def relu6(self) -> Self:
        """min(max(x, 0), 6) (Krizhevsky 2010)."""
        return self._apply("hardtanh", 0.0, 6.0)

    def leaky_relu(self, slope: Number = 0.01) -> Self:
        """x where x is positive, else slope x (Maas, Hannun, Ng 2013)."""
        return self._apply("leaky_relu", self._scalar_option("leaky_relu", "slope", slope))

    def prelu(self, weight: Self) -> Self:
        """x where x is positive, else weight x, with a learned weight (He et al. 2015).

        The weight has one element, or one element per channel. The channel axis is axis 1 (axis 0 of a vector). Raises
        `ShapeError` if the weight has another shape.
        """
        me, (slopes,) = self._promote_operands("prelu", weight)
        rank, shape = me.ndim, weight.shape
        axis = min(1, rank - 1)
        if weight.size == 1:
            fitting: tuple[int, ...] = ()
        elif rank and shape == (me.shape[axis],):
            fitting = tuple(shape[0] if place == axis else 1 for place in range(rank))
        else:
            raise ShapeError(
                f"prelu: weight of shape {shape} does not fit x of shape {me.shape}; "
                f"it must have one element, or one per channel (axis 1 of x)"
            )
        return me._apply("prelu", me._ops.backend.reshape(slopes, fitting))

    def threshold(self, threshold: Number, value: Number) -> Self:
        """x where x is above the threshold, else the value."""
        return self._apply(
            "threshold",
            self._scalar_option("threshold", "threshold", threshold),
            self._scalar_option("threshold", "value", value),
        )

    # --- exponential units

    def elu(self, alpha: Number = 1.0) -> Self:
        """x where x is positive, else alpha (exp(x) - 1) (Clevert, Unterthiner, Hochreiter 2016)."""
        return self._apply("elu", self._scalar_option("elu", "alpha", alpha), 1.0, 1.0)

    def selu(self) -> Self:
        """`elu`, scaled so that activations keep mean zero and variance one (Klambauer et al. 2017)."""
        return self._apply("elu", _SELU_ALPHA, _SELU_SCALE, 1.0)

    def celu(self, alpha: Number = 1.0) -> Self:
        """x where x is positive, else alpha (exp(x / alpha) - 1); continuously differentiable (Barron 2017)."""
        scale = self._scalar_option("celu", "alpha", alpha)
        if isinstance(scale, (int, float)) and scale == 0:
            raise RangeError("celu: `alpha` must not be zero; its limit there is relu")
        return self._apply("elu", scale, 1.0, 1.0 / scale)

    # --- smooth ones

    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x))."""
        return self._apply("sigmoid")

    def log_sigmoid(self) -> Self:
        """The logarithm of `sigmoid`, without loss of precision."""
        return self._apply("log_sigmoid")

    def softplus(self, beta: Number = 1.0) -> Self:
        """log(1 + exp(beta x)) / beta, without overflow."""
        factor = self._scalar_option("softplus", "beta", beta)
        if isinstance(factor, (int, float)) and factor == 1:
            return self._apply("softplus")
        return self._apply("mul", factor)._apply("softplus")._apply("div", factor)

    def silu(self) -> Self:
        """x sigmoid(x) (Elfwing, Uchibe, Doya 2017)."""
        return self._apply("silu")

    def gelu(self, *, approximate: bool = False) -> Self:
        """x times the normal CDF of x (Hendrycks and Gimpel 2016), or the tanh approximation if `approximate`."""
        return self._apply("gelu", approximate)

    def mish(self) -> Self:
        """x tanh(softplus(x)) (Misra 2019)."""
        return self._apply("mish")

    def softsign(self) -> Self:
        """x / (1 + |x|)."""
        return self._apply("softsign")

    def tanhshrink(self) -> Self:
        """x - tanh(x)."""
        return self._apply("tanhshrink")

    # --- piecewise linear

    def hardtanh(self, low: Number = -1.0, high: Number = 1.0) -> Self:
        """x clipped to [low, high]. Unlike `clip`, the gradient at the bounds is zero."""
        return self._apply(
            "hardtanh", self._scalar_option("hardtanh", "low", low), self._scalar_option("hardtanh", "high", high)
        )

    def hardsigmoid(self) -> Self:
        """x / 6 + 1/2, clipped to [0, 1] (Howard et al. 2019)."""
        return self._apply("hardsigmoid")

    def hardswish(self) -> Self:
        """x hardsigmoid(x) (Howard et al. 2019)."""
        return self._apply("hardswish")

    def hardshrink(self, bound: Number = 0.5) -> Self:
        """x where |x| > bound, else zero."""
        return self._apply("hardshrink", self._scalar_option("hardshrink", "bound", bound))

    def softshrink(self, bound: Number = 0.5) -> Self:
        """x moved toward zero by `bound`; zero where |x| <= bound."""
        return self._apply("softshrink", self._scalar_option("softshrink", "bound", bound))

    # --- gated: an axis is split into two halves, and one half scales the other

    def glu(self, axis: int = -1) -> Self:
        """a sigmoid(b), where a and b are the two halves of an axis of even size (Dauphin et al. 2017)."""
        return self._gated("glu", axis, "sigmoid")

    def swiglu(self, axis: int = -1) -> Self:
        """silu(a) b, where a and b are the two halves of an axis of even size (Shazeer 2020)."""
        return self._gated("swiglu", axis, "silu")

    def geglu(self, axis: int = -1) -> Self:
        """gelu(a) b, where a and b are the two halves of an axis of even size (Shazeer 2020)."""
        return self._gated("geglu", axis, "gelu")

    def _gated(self, name: str, axis: int, gate: str) -> Self:
        place = self._axis(name, axis)
        if self.shape[place] % 2:
            raise ShapeError(f"{name}: axis {place} of shape {self.shape} must have an even size")
        return self._apply("glu", place, gate)

    # --- along an axis

    def softmax(self, axis: int = -1) -> Self:
        """exp(x) / sum(exp(x)) along an axis, without overflow."""
        return self._softmax("softmax", axis)

    def softmin(self, axis: int = -1) -> Self:
        """`softmax` of -x."""
        return self._apply("neg")._softmax("softmax", axis)

    def log_softmax(self, axis: int = -1) -> Self:
        """The logarithm of `softmax`, without loss of precision."""
        return self._softmax("log_softmax", axis)

    def _softmax(self, name: str, axis: int) -> Self:
        place = self._axis(name, axis)
        return self if self.shape[place] == 0 and self.kind is Float else self._apply(name, place)
