"""Activations along an axis as modules: softmax and its kin, and gates. See `phlox.functional`."""

from __future__ import annotations

from phlox.config import config_of
from phlox.module import Module
from phlox.tensor import Tensor, functional


class Softmax(Module):
    """exp(x) / sum(exp(x)) along an axis, without overflow."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def __call__(self, x: Tensor) -> Tensor:
        return functional.softmax(x, self.axis)


class Softmin(Module):
    """`Softmax` of -x."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def __call__(self, x: Tensor) -> Tensor:
        return functional.softmin(x, self.axis)


class LogSoftmax(Module):
    """log(softmax(x)) along an axis, without loss."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def __call__(self, x: Tensor) -> Tensor:
        return functional.log_softmax(x, self.axis)


class Glu(Module):
    """a sigmoid(b), a and b being the halves of an axis (Dauphin et al. 2017)."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def __call__(self, x: Tensor) -> Tensor:
        return functional.glu(x, self.axis)


class SwiGlu(Module):
    """silu(a) b, a and b being the halves of an axis (Shazeer 2020)."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def __call__(self, x: Tensor) -> Tensor:
        return functional.swiglu(x, self.axis)


class GeGlu(Module):
    """gelu(a) b, a and b being the halves of an axis (Shazeer 2020)."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def __call__(self, x: Tensor) -> Tensor:
        return functional.geglu(x, self.axis)


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
