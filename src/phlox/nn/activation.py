"""Activations as modules: elementwise ones, and those along an axis (softmax, gated units). See `phlox.functional`."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal, TypeAlias

from phlox.backend import DeviceLike
from phlox.config import config_of
from phlox.errors import ConfigError
from phlox.module import Module, Param
from phlox.nn.initializer import Constant
from phlox.tensor import Tensor, functional

__all__ = [
    "Activation", "Celu", "CeluConfig", "Elu", "EluConfig", "GeGlu", "GeGluConfig", "Gelu", "GeluConfig", "Glu",
    "GluConfig", "HardShrink", "HardShrinkConfig", "HardSigmoid", "HardSwish", "HardTanh", "HardTanhConfig",
    "LeakyRelu", "LeakyReluConfig", "LogSigmoid", "LogSoftmax", "LogSoftmaxConfig", "Mish", "PRelu", "PReluConfig",
    "Relu", "Relu6", "Selu", "Sigmoid", "Silu", "SoftShrink", "SoftShrinkConfig", "Softmax", "SoftmaxConfig", "Softmin",
    "SoftminConfig", "Softplus", "SoftplusConfig", "Softsign", "SwiGlu", "SwiGluConfig", "Tanh", "TanhShrink",
    "Threshold", "ThresholdConfig",
]  # fmt: skip


ActivationName: TypeAlias = Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh"]
"""An activation that a config can name; `gelu_tanh` approximates `gelu` as the first GPTs did, `quick_gelu` as CLIP."""

ACTIVATIONS: dict[ActivationName, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate=True),
    "quick_gelu": lambda x: x * (x * 1.702).sigmoid(),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": functional.tanh,
}


class Activation(Module):
    """Base class of activations without options: a module that calls one function of a tensor.

    >>> import phlox as px
    >>> class Cube(Activation):
    ...     function = staticmethod(lambda x: x * x * x)
    >>> Cube()(px.tensor([2.0])).tolist()
    [8.0]
    """

    function: ClassVar[Callable[[Tensor], Tensor]]

    def __init__(self) -> None:
        """No options: an option of another library is an error."""

    def __call__(self, x: Tensor) -> Tensor:
        return type(self).function(x)


# --- without options


class Relu(Activation):
    """max(x, 0).

    >>> import phlox as px
    >>> Relu()(px.tensor([-1.0, 3.0])).tolist()
    [0.0, 3.0]
    """

    function = staticmethod(functional.relu)


class Relu6(Activation):
    """min(max(x, 0), 6) (Krizhevsky 2010).

    >>> import phlox as px
    >>> Relu6()(px.tensor([-1.0, 9.0])).tolist()
    [0.0, 6.0]
    """

    function = staticmethod(functional.relu6)


class Selu(Activation):
    """Scaled `Elu` that keeps mean zero and variance one (Klambauer et al. 2017).

    >>> import phlox as px
    >>> Selu()(px.tensor([-1.0, 1.0])).numpy().round(4)
    array([-1.1113,  1.0507], dtype=float32)
    """

    function = staticmethod(functional.selu)


class Sigmoid(Activation):
    """1 / (1 + exp(-x)).

    >>> import phlox as px
    >>> Sigmoid()(px.tensor([-1.0, 1.0])).numpy().round(4)
    array([0.2689, 0.7311], dtype=float32)
    """

    function = staticmethod(functional.sigmoid)


class LogSigmoid(Activation):
    """log(sigmoid(x)), without loss of precision.

    >>> import phlox as px
    >>> LogSigmoid()(px.tensor([-1.0, 1.0])).numpy().round(4)
    array([-1.3133, -0.3133], dtype=float32)
    """

    function = staticmethod(functional.log_sigmoid)


class Silu(Activation):
    """x sigmoid(x), also called swish (Elfwing, Uchibe, Doya 2017).

    >>> import phlox as px
    >>> Silu()(px.tensor([-1.0, 1.0])).numpy().round(4)
    array([-0.2689,  0.7311], dtype=float32)
    """

    function = staticmethod(functional.silu)


class Mish(Activation):
    """x tanh(softplus(x)) (Misra 2019).

    >>> import phlox as px
    >>> Mish()(px.tensor([-1.0, 1.0])).numpy().round(4)
    array([-0.3034,  0.8651], dtype=float32)
    """

    function = staticmethod(functional.mish)


class Softsign(Activation):
    """x / (1 + |x|).

    >>> import phlox as px
    >>> Softsign()(px.tensor([-1.0, 3.0])).tolist()
    [-0.5, 0.75]
    """

    function = staticmethod(functional.softsign)


class Tanh(Activation):
    """The hyperbolic tangent.

    >>> import phlox as px
    >>> Tanh()(px.tensor([-1.0, 1.0])).numpy().round(4)
    array([-0.7616,  0.7616], dtype=float32)
    """

    function = staticmethod(functional.tanh)


class TanhShrink(Activation):
    """x - tanh(x).

    >>> import phlox as px
    >>> TanhShrink()(px.tensor([-1.0, 1.0])).numpy().round(4)
    array([-0.2384,  0.2384], dtype=float32)
    """

    function = staticmethod(functional.tanhshrink)


class HardSigmoid(Activation):
    """x / 6 + 1/2, clipped to [0, 1] (Howard et al. 2019).

    >>> import phlox as px
    >>> HardSigmoid()(px.tensor([-3.0, 0.0, 3.0])).tolist()
    [0.0, 0.5, 1.0]
    """

    function = staticmethod(functional.hardsigmoid)


class HardSwish(Activation):
    """x hardsigmoid(x) (Howard et al. 2019).

    >>> import phlox as px
    >>> HardSwish()(px.tensor([0.0, 3.0])).tolist()
    [0.0, 3.0]
    """

    function = staticmethod(functional.hardswish)


# --- with options


class LeakyRelu(Module):
    """x where x is positive, else slope x (Maas, Hannun, Ng 2013).

    >>> import phlox as px
    >>> LeakyRelu(0.5)(px.tensor([-1.0, 3.0])).tolist()
    [-0.5, 3.0]
    """

    def __init__(self, slope: float = 0.01) -> None:
        self.slope = slope

    def __call__(self, x: Tensor) -> Tensor:
        return functional.leaky_relu(x, self.slope)


class Elu(Module):
    """x where x is positive, else alpha (exp(x) - 1) (Clevert, Unterthiner, Hochreiter 2016).

    >>> import phlox as px
    >>> Elu()(px.tensor([-1.0, 1.0])).numpy().round(4)
    array([-0.6321,  1.    ], dtype=float32)
    """

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def __call__(self, x: Tensor) -> Tensor:
        return functional.elu(x, self.alpha)


class Celu(Module):
    """x where x is positive, else alpha (exp(x / alpha) - 1); continuously differentiable (Barron 2017).

    >>> import phlox as px
    >>> Celu()(px.tensor([-1.0, 1.0])).numpy().round(4)
    array([-0.6321,  1.    ], dtype=float32)
    """

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def __call__(self, x: Tensor) -> Tensor:
        return functional.celu(x, self.alpha)


class Gelu(Module):
    """x times the normal CDF of x, or the tanh approximation if `approximate` (Hendrycks and Gimpel 2016).

    >>> import phlox as px
    >>> Gelu()(px.tensor([-1.0, 1.0])).numpy().round(4)
    array([-0.1587,  0.8413], dtype=float32)
    """

    def __init__(self, *, approximate: bool = False) -> None:
        self.approximate = approximate

    def __call__(self, x: Tensor) -> Tensor:
        return functional.gelu(x, approximate=self.approximate)


class Softplus(Module):
    """log(1 + exp(beta x)) / beta, without overflow.

    >>> import phlox as px
    >>> Softplus()(px.tensor([-1.0, 1.0])).numpy().round(4)
    array([0.3133, 1.3133], dtype=float32)
    """

    def __init__(self, beta: float = 1.0) -> None:
        self.beta = beta

    def __call__(self, x: Tensor) -> Tensor:
        return functional.softplus(x, self.beta)


class HardTanh(Module):
    """x clipped to [low, high].

    >>> import phlox as px
    >>> HardTanh()(px.tensor([-2.0, 0.5])).tolist()
    [-1.0, 0.5]
    """

    def __init__(self, low: float = -1.0, high: float = 1.0) -> None:
        self.low, self.high = low, high

    def __call__(self, x: Tensor) -> Tensor:
        return functional.hardtanh(x, self.low, self.high)


class HardShrink(Module):
    """x where |x| > bound, else zero.

    >>> import phlox as px
    >>> HardShrink()(px.tensor([0.25, 2.0])).tolist()
    [0.0, 2.0]
    """

    def __init__(self, bound: float = 0.5) -> None:
        self.bound = bound

    def __call__(self, x: Tensor) -> Tensor:
        return functional.hardshrink(x, self.bound)


class SoftShrink(Module):
    """x moved toward zero by `bound`; zero where |x| <= bound.

    >>> import phlox as px
    >>> SoftShrink()(px.tensor([0.25, 2.0])).tolist()
    [0.0, 1.5]
    """

    def __init__(self, bound: float = 0.5) -> None:
        self.bound = bound

    def __call__(self, x: Tensor) -> Tensor:
        return functional.softshrink(x, self.bound)


class Threshold(Module):
    """x where x is above the threshold, else the value.

    >>> import phlox as px
    >>> Threshold(0.5, 9.0)(px.tensor([-1.0, 3.0])).tolist()
    [9.0, 3.0]
    """

    def __init__(self, threshold: float, value: float) -> None:
        self.threshold, self.value = threshold, value

    def __call__(self, x: Tensor) -> Tensor:
        return functional.threshold(x, self.threshold, self.value)


class PRelu(Module):
    """x where x is positive, else slope x, with a learned slope (He et al. 2015).

    There is one slope for all elements, or one per channel of x [n, channels, ...]. PyTorch calls it weight.

    >>> import phlox as px
    >>> PRelu(2)(px.tensor([[-1.0, 1.0]])).tolist()
    [[-0.25, 1.0]]
    """

    def __init__(self, channels: int = 1, *, slope: float = 0.25, device: DeviceLike | None = None) -> None:
        if channels < 1:
            raise ConfigError(f"PRelu: the number of channels must be positive, got {channels}")
        self.slope = Param.deferred((channels,), Constant(value=slope), device=device)

    def __call__(self, x: Tensor) -> Tensor:
        return functional.prelu(x, self.slope.val())


# --- along an axis


class Softmax(Module):
    """exp(x) / sum(exp(x)) along an axis, without overflow.

    >>> import phlox as px
    >>> Softmax()(px.tensor([-1.0, 1.0])).numpy().round(4)
    array([0.1192, 0.8808], dtype=float32)
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def __call__(self, x: Tensor) -> Tensor:
        return functional.softmax(x, self.axis)


class Softmin(Module):
    """`Softmax` of -x.

    >>> import phlox as px
    >>> Softmin()(px.tensor([-1.0, 1.0])).numpy().round(4)
    array([0.8808, 0.1192], dtype=float32)
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def __call__(self, x: Tensor) -> Tensor:
        return functional.softmin(x, self.axis)


class LogSoftmax(Module):
    """log(softmax(x)) along an axis, without loss of precision.

    >>> import phlox as px
    >>> LogSoftmax()(px.tensor([-1.0, 1.0])).numpy().round(4)
    array([-2.1269, -0.1269], dtype=float32)
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def __call__(self, x: Tensor) -> Tensor:
        return functional.log_softmax(x, self.axis)


class Glu(Module):
    """a sigmoid(b), where a and b are the two halves of an axis (Dauphin et al. 2017).

    >>> import phlox as px
    >>> Glu()(px.tensor([4.0, 0.0])).tolist()
    [2.0]
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def __call__(self, x: Tensor) -> Tensor:
        return functional.glu(x, self.axis)


class SwiGlu(Module):
    """silu(a) b, where a and b are the two halves of an axis (Shazeer 2020).

    >>> import phlox as px
    >>> SwiGlu()(px.tensor([-1.0, 1.0])).numpy().round(4)
    array([-0.2689], dtype=float32)
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def __call__(self, x: Tensor) -> Tensor:
        return functional.swiglu(x, self.axis)


class GeGlu(Module):
    """gelu(a) b, where a and b are the two halves of an axis (Shazeer 2020).

    >>> import phlox as px
    >>> GeGlu()(px.tensor([-1.0, 1.0])).numpy().round(4)
    array([-0.1587], dtype=float32)
    """

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def __call__(self, x: Tensor) -> Tensor:
        return functional.geglu(x, self.axis)


class LeakyReluConfig(config_of(LeakyRelu)):
    """Hyper-parameters of `LeakyRelu`."""


class EluConfig(config_of(Elu)):
    """Hyper-parameters of `Elu`."""


class CeluConfig(config_of(Celu)):
    """Hyper-parameters of `Celu`."""


class GeluConfig(config_of(Gelu)):
    """Hyper-parameters of `Gelu`."""


class SoftplusConfig(config_of(Softplus)):
    """Hyper-parameters of `Softplus`."""


class HardTanhConfig(config_of(HardTanh)):
    """Hyper-parameters of `HardTanh`."""


class HardShrinkConfig(config_of(HardShrink)):
    """Hyper-parameters of `HardShrink`."""


class SoftShrinkConfig(config_of(SoftShrink)):
    """Hyper-parameters of `SoftShrink`."""


class ThresholdConfig(config_of(Threshold)):
    """Hyper-parameters of `Threshold`."""


class PReluConfig(config_of(PRelu)):
    """Hyper-parameters of `PRelu`."""


class SoftmaxConfig(config_of(Softmax)):
    """Hyper-parameters of `Softmax`."""


class SoftminConfig(config_of(Softmin)):
    """Hyper-parameters of `Softmin`."""


class LogSoftmaxConfig(config_of(LogSoftmax)):
    """Hyper-parameters of `LogSoftmax`."""


class GluConfig(config_of(Glu)):
    """Hyper-parameters of `Glu`."""


class SwiGluConfig(config_of(SwiGlu)):
    """Hyper-parameters of `SwiGlu`."""


class GeGluConfig(config_of(GeGlu)):
    """Hyper-parameters of `GeGlu`."""
