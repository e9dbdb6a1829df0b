"""Activations as modules, and the module that flattens."""

from __future__ import annotations

from phlox.config import config_of
from phlox.module import Module
from phlox.tensor import Tensor


class Relu(Module):
    """max(x, 0)."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.relu()


class Gelu(Module):
    """x times the normal distribution function of x, or its approximation by tanh (Hendrycks and Gimpel 2016)."""

    def __init__(self, *, approximate: bool = False) -> None:
        self.approximate = approximate

    def __call__(self, x: Tensor) -> Tensor:
        return x.gelu(approximate=self.approximate)


class Silu(Module):
    """x * sigmoid(x)."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.silu()


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.sigmoid()


class Tanh(Module):
    """The hyperbolic tangent."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.tanh()


class Flatten(Module):
    """All axes but the first made one."""

    def __call__(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class GeluConfig(config_of(Gelu)):
    """Hyper-parameters of `Gelu`."""
