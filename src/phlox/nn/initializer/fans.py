"""Initializers whose scale depends on the fans: the connections into and out of a unit."""

from __future__ import annotations

import math
from typing import Any, Literal

from phlox import random
from phlox.backend import Device
from phlox.nn.initializer.base import Initializer
from phlox.tensor import Tensor

Mode = Literal["fan_in", "fan_out"]

_CUT = 0.87962566103423978
"""The standard deviation of a standard normal distribution truncated at +-2."""


class KaimingUniform(Initializer):
    """Uniform with variance gain^2 / fan (He et al. 2015). The default gain is 1/sqrt(3), as in PyTorch's layers.

    >>> import phlox as px
    >>> px.nn.Linear(3, 2, initializer=KaimingUniform()).weight.val().shape
    (3, 2)
    """

    gain: float = 1.0 / math.sqrt(3.0)
    mode: Mode = "fan_in"

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        bound = self.gain * math.sqrt(3.0 / max(1, fans[self.mode == "fan_out"]))
        return random.uniform(shape, -bound, bound, device=device)


class KaimingNormal(Initializer):
    """Normal with variance gain^2 / fan (He et al. 2015). The default gain is the one for relu.

    >>> import phlox as px
    >>> px.nn.Linear(3, 2, initializer=KaimingNormal()).weight.val().shape
    (3, 2)
    """

    gain: float = math.sqrt(2.0)
    mode: Mode = "fan_in"

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        std = self.gain / math.sqrt(max(1, fans[self.mode == "fan_out"]))
        return random.normal(shape, 0.0, std, device=device)


class XavierUniform(Initializer):
    """Uniform with variance gain^2 * 2 / (fan_in + fan_out) (Glorot, Bengio 2010).

    >>> import phlox as px
    >>> px.nn.Linear(3, 2, initializer=XavierUniform()).weight.val().shape
    (3, 2)
    """

    gain: float = 1.0

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        bound = self.gain * math.sqrt(6.0 / max(1, sum(fans)))
        return random.uniform(shape, -bound, bound, device=device)


class XavierNormal(Initializer):
    """Normal with variance gain^2 * 2 / (fan_in + fan_out) (Glorot, Bengio 2010).

    >>> import phlox as px
    >>> px.nn.Linear(3, 2, initializer=XavierNormal()).weight.val().shape
    (3, 2)
    """

    gain: float = 1.0

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        return random.normal(shape, 0.0, self.gain * math.sqrt(2.0 / max(1, sum(fans))), device=device)


class LecunUniform(Initializer):
    """Uniform with variance 1 / fan_in (LeCun et al. 1998); for selu (Klambauer et al. 2017).

    >>> import phlox as px
    >>> px.nn.Linear(3, 2, initializer=LecunUniform()).weight.val().shape
    (3, 2)
    """

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        bound = math.sqrt(3.0 / max(1, fans[0]))
        return random.uniform(shape, -bound, bound, device=device)


class LecunNormal(Initializer):
    """Normal, truncated at two standard deviations, with variance 1 / fan_in (LeCun et al. 1998).

    >>> import phlox as px
    >>> px.nn.Linear(3, 2, initializer=LecunNormal()).weight.val().shape
    (3, 2)
    """

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        return random.truncated_normal(shape, 0.0, 1.0 / (_CUT * math.sqrt(max(1, fans[0]))), device=device)
