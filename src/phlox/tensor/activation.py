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
        """max(x, 0).

        >>> import phlox as px
        >>> px.tensor([-1.0, 3.0]).relu().tolist()
        [0.0, 3.0]
        """
        return self._apply("relu")

    def relu6(self) -> Self:
        """min(max(x, 0), 6) (Krizhevsky 2010).

        >>> import phlox as px
        >>> px.tensor([-1.0, 3.0, 9.0]).relu6().tolist()
        [0.0, 3.0, 6.0]
        """
        return self._apply("hardtanh", 0.0, 6.0)

    def leaky_relu(self, slope: Number = 0.01) -> Self:
        """x where x is positive, else slope x (Maas, Hannun, Ng 2013).

        >>> import phlox as px
        >>> px.tensor([-1.0, 3.0]).leaky_relu(0.5).tolist()
        [-0.5, 3.0]
        """
        return self._apply("leaky_relu", self._scalar_option("leaky_relu", "slope", slope))

    def prelu(self, weight: Self) -> Self:
        """x where x is positive, else weight x, with a learned weight (He et al. 2015).

        The weight has one element, or one element per channel. The channel axis is axis 1 (axis 0 of a vector). Raises
        `ShapeError` if the weight has another shape.

        >>> import phlox as px
        >>> px.tensor([-1.0, 3.0]).prelu(px.tensor([0.25])).tolist()
        [-0.25, 3.0]
        """
        me, (slopes,) = self._promote_operands("prelu", weight)
        rank, shape = me.ndim, weight.shape
        axis = min(1, rank - 1)
        if weight.size == 1:
            fitting: tuple[int, ...] = ()
        elif rank and shape == (me.shape[axis],):
            fitting = tuple(shape[0] if index == axis else 1 for index in range(rank))
        else:
            raise ShapeError(
                f"prelu: weight of shape {shape} does not fit x of shape {me.shape}; "
                f"it must have one element, or one per channel (axis 1 of x)"
            )
        return me._apply("prelu", me._ops.backend.reshape(slopes, fitting))

    def threshold(self, threshold: Number, value: Number) -> Self:
        """x where x is above the threshold, else the value.

        >>> import phlox as px
        >>> px.tensor([-1.0, 3.0]).threshold(0.5, 9.0).tolist()
        [9.0, 3.0]
        """
        return self._apply(
            "threshold",
            self._scalar_option("threshold", "threshold", threshold),
            self._scalar_option("threshold", "value", value),
        )

    # --- exponential units

    def elu(self, alpha: Number = 1.0) -> Self:
        """x where x is positive, else alpha (exp(x) - 1) (Clevert, Unterthiner, Hochreiter 2016).

        >>> import phlox as px
        >>> px.tensor([-1.0, 1.0]).elu().numpy().round(4)
        array([-0.6321,  1.    ], dtype=float32)
        """
        return self._apply("elu", self._scalar_option("elu", "alpha", alpha), 1.0, 1.0)

    def selu(self) -> Self:
        """`elu`, scaled so that activations keep mean zero and variance one (Klambauer et al. 2017).

        >>> import phlox as px
        >>> px.tensor([-1.0, 1.0]).selu().numpy().round(4)
        array([-1.1113,  1.0507], dtype=float32)
        """
        return self._apply("elu", _SELU_ALPHA, _SELU_SCALE, 1.0)

    def celu(self, alpha: Number = 1.0) -> Self:
        """x where x is positive, else alpha (exp(x / alpha) - 1); continuously differentiable (Barron 2017).

        >>> import phlox as px
        >>> px.tensor([-1.0, 1.0]).celu().numpy().round(4)
        array([-0.6321,  1.    ], dtype=float32)
        """
        scale = self._scalar_option("celu", "alpha", alpha)
        if isinstance(scale, (int, float)) and scale == 0:
            raise RangeError("celu: `alpha` must not be zero; its limit there is relu")
        return self._apply("elu", scale, 1.0, 1.0 / scale)

    # --- smooth activations

    def sigmoid(self) -> Self:
        """1 / (1 + exp(-x)).

        >>> import phlox as px
        >>> px.tensor([-1.0, 1.0]).sigmoid().numpy().round(4)
        array([0.2689, 0.7311], dtype=float32)
        """
        return self._apply("sigmoid")

    def log_sigmoid(self) -> Self:
        """The logarithm of `sigmoid`, without loss of precision.

        >>> import phlox as px
        >>> px.tensor([-1.0, 1.0]).log_sigmoid().numpy().round(4)
        array([-1.3133, -0.3133], dtype=float32)
        """
        return self._apply("log_sigmoid")

    def softplus(self, beta: Number = 1.0) -> Self:
        """log(1 + exp(beta x)) / beta, without overflow.

        >>> import phlox as px
        >>> px.tensor([-1.0, 1.0]).softplus().numpy().round(4)
        array([0.3133, 1.3133], dtype=float32)
        """
        factor = self._scalar_option("softplus", "beta", beta)
        if isinstance(factor, (int, float)) and factor == 1:
            return self._apply("softplus")
        return self._apply("mul", factor)._apply("softplus")._apply("div", factor)

    def silu(self) -> Self:
        """x sigmoid(x) (Elfwing, Uchibe, Doya 2017).

        >>> import phlox as px
        >>> px.tensor([-1.0, 1.0]).silu().numpy().round(4)
        array([-0.2689,  0.7311], dtype=float32)
        """
        return self._apply("silu")

    def gelu(self, *, approximate: bool = False) -> Self:
        """x times the normal CDF of x (Hendrycks and Gimpel 2016), or the tanh approximation if `approximate`.

        >>> import phlox as px
        >>> px.tensor([-1.0, 1.0]).gelu().numpy().round(4)
        array([-0.1587,  0.8413], dtype=float32)
        """
        return self._apply("gelu", approximate)

    def mish(self) -> Self:
        """x tanh(softplus(x)) (Misra 2019).

        >>> import phlox as px
        >>> px.tensor([-1.0, 1.0]).mish().numpy().round(4)
        array([-0.3034,  0.8651], dtype=float32)
        """
        return self._apply("mish")

    def softsign(self) -> Self:
        """x / (1 + |x|).

        >>> import phlox as px
        >>> px.tensor([-1.0, 3.0]).softsign().tolist()
        [-0.5, 0.75]
        """
        return self._apply("softsign")

    def tanhshrink(self) -> Self:
        """x - tanh(x).

        >>> import phlox as px
        >>> px.tensor([-1.0, 1.0]).tanhshrink().numpy().round(4)
        array([-0.2384,  0.2384], dtype=float32)
        """
        return self._apply("tanhshrink")

    # --- piecewise linear

    def hardtanh(self, low: Number = -1.0, high: Number = 1.0) -> Self:
        """x clipped to [low, high]. Unlike `clip`, the gradient at the bounds is zero.

        >>> import phlox as px
        >>> px.tensor([-2.0, 0.5]).hardtanh().tolist()
        [-1.0, 0.5]
        """
        return self._apply(
            "hardtanh", self._scalar_option("hardtanh", "low", low), self._scalar_option("hardtanh", "high", high)
        )

    def hardsigmoid(self) -> Self:
        """x / 6 + 1/2, clipped to [0, 1] (Howard et al. 2019).

        >>> import phlox as px
        >>> px.tensor([-3.0, 0.0, 3.0]).hardsigmoid().tolist()
        [0.0, 0.5, 1.0]
        """
        return self._apply("hardsigmoid")

    def hardswish(self) -> Self:
        """x hardsigmoid(x) (Howard et al. 2019).

        >>> import phlox as px
        >>> px.tensor([0.0, 3.0]).hardswish().tolist()
        [0.0, 3.0]
        """
        return self._apply("hardswish")

    def hardshrink(self, bound: Number = 0.5) -> Self:
        """x where |x| > bound, else zero.

        >>> import phlox as px
        >>> px.tensor([0.25, 2.0]).hardshrink().tolist()
        [0.0, 2.0]
        """
        return self._apply("hardshrink", self._scalar_option("hardshrink", "bound", bound))

    def softshrink(self, bound: Number = 0.5) -> Self:
        """x moved toward zero by `bound`; zero where |x| <= bound.

        >>> import phlox as px
        >>> px.tensor([0.25, 2.0]).softshrink().tolist()
        [0.0, 1.5]
        """
        return self._apply("softshrink", self._scalar_option("softshrink", "bound", bound))

    # --- gated: an axis is split into two halves, and one half scales the other

    def glu(self, axis: int = -1) -> Self:
        """a sigmoid(b), where a and b are the two halves of an axis of even size (Dauphin et al. 2017).

        >>> import phlox as px
        >>> px.tensor([4.0, 0.0]).glu().tolist()
        [2.0]
        """
        return self._gated("glu", axis, "sigmoid")

    def swiglu(self, axis: int = -1) -> Self:
        """silu(a) b, where a and b are the two halves of an axis of even size (Shazeer 2020).

        >>> import phlox as px
        >>> px.tensor([1.0, 2.0]).swiglu().numpy().round(4)
        array([1.4621], dtype=float32)
        """
        return self._gated("swiglu", axis, "silu")

    def geglu(self, axis: int = -1) -> Self:
        """gelu(a) b, where a and b are the two halves of an axis of even size (Shazeer 2020).

        >>> import phlox as px
        >>> px.tensor([1.0, 2.0]).geglu().numpy().round(4)
        array([1.6827], dtype=float32)
        """
        return self._gated("geglu", axis, "gelu")

    def _gated(self, name: str, axis: int, gate: str) -> Self:
        axis = self._axis(name, axis)
        if self.shape[axis] % 2:
            raise ShapeError(f"{name}: axis {axis} of shape {self.shape} must have an even size")
        return self._apply("glu", axis, gate)

    # --- along an axis

    def softmax(self, axis: int = -1) -> Self:
        """exp(x) / sum(exp(x)) along an axis, without overflow.

        >>> import phlox as px
        >>> px.tensor([0.0, 1.0]).softmax().numpy().round(4)
        array([0.2689, 0.7311], dtype=float32)
        """
        return self._softmax("softmax", axis)

    def softmin(self, axis: int = -1) -> Self:
        """`softmax` of -x.

        >>> import phlox as px
        >>> px.tensor([0.0, 1.0]).softmin().numpy().round(4)
        array([0.7311, 0.2689], dtype=float32)
        """
        return self._apply("neg")._softmax("softmax", axis)

    def log_softmax(self, axis: int = -1) -> Self:
        """The logarithm of `softmax`, without loss of precision.

        >>> import phlox as px
        >>> px.tensor([0.0, 1.0]).log_softmax().numpy().round(4)
        array([-1.3133, -0.3133], dtype=float32)
        """
        return self._softmax("log_softmax", axis)

    def _softmax(self, name: str, axis: int) -> Self:
        axis = self._axis(name, axis)
        return self if self.shape[axis] == 0 and self.kind is Float else self._apply(name, axis)
