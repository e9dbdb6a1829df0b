"""Initializers: how a parameter gets its first value. Each is a config, so that it can be saved with a layer's."""

from __future__ import annotations

import math
from typing import Any, Literal

from phlox import random
from phlox.backend import Device
from phlox.config import Config
from phlox.tensor import Tensor, full

Mode = Literal["fan_in", "fan_out"]


class Initializer(Config):
    """Base of the initializers; write one by deriving from it."""

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        """A tensor of `shape` on `device`; `fans` are the numbers of connections into and out of a unit."""
        raise NotImplementedError


class Constant(Initializer):
    """The same value everywhere."""

    value: float = 0.0

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        return full(shape, self.value, device=device)


class Zeros(Constant):
    """Zeros."""


class Ones(Constant):
    """Ones."""

    value: float = 1.0


class Uniform(Initializer):
    """Spread evenly over [low, high)."""

    low: float = -1.0
    high: float = 1.0

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        return random.uniform(shape, self.low, self.high, device=device)


class Normal(Initializer):
    """Normally distributed."""

    mean: float = 0.0
    std: float = 1.0

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        return random.normal(shape, self.mean, self.std, device=device)


class KaimingUniform(Initializer):
    """Uniform with variance gain^2 / fan (He et al. 2015); the default gain is that of PyTorch's layers, 1/sqrt(3)."""

    gain: float = 1.0 / math.sqrt(3.0)
    mode: Mode = "fan_in"

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        bound = self.gain * math.sqrt(3.0 / max(1, fans[self.mode == "fan_out"]))
        return random.uniform(shape, -bound, bound, device=device)


class KaimingNormal(Initializer):
    """Normal with variance gain^2 / fan (He et al. 2015); the default gain suits relu."""

    gain: float = math.sqrt(2.0)
    mode: Mode = "fan_in"

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        std = self.gain / math.sqrt(max(1, fans[self.mode == "fan_out"]))
        return random.normal(shape, 0.0, std, device=device)


class XavierUniform(Initializer):
    """Uniform with variance gain^2 * 2 / (fan_in + fan_out) (Glorot, Bengio 2010)."""

    gain: float = 1.0

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        bound = self.gain * math.sqrt(6.0 / max(1, sum(fans)))
        return random.uniform(shape, -bound, bound, device=device)


class XavierNormal(Initializer):
    """Normal with variance gain^2 * 2 / (fan_in + fan_out) (Glorot, Bengio 2010)."""

    gain: float = 1.0

    def __call__(self, shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
        return random.normal(shape, 0.0, self.gain * math.sqrt(2.0 / max(1, sum(fans))), device=device)
