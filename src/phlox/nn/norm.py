"""Normalisation per example; for batch normalisation see `phlox.nn.batch_norm`."""

from __future__ import annotations

from phlox.backend import DeviceLike
from phlox.config import config_of
from phlox.errors import ConfigError, ShapeError
from phlox.module import Module, Param
from phlox.nn.initializer import Constant, Ones, Zeros
from phlox.tensor import Tensor, functional
from phlox.tensor.creation import sizes_of

__all__ = [
    "GroupNorm", "GroupNormConfig", "InstanceNorm", "InstanceNormConfig", "LayerNorm", "LayerNormConfig", "RmsNorm",
    "RmsNormConfig",
]  # fmt: skip


class LayerNorm(Module):
    """(x - mean) / sqrt(var + epsilon) * gamma + beta over the last axis, of size d_model (Ba, Kiros, Hinton 2016).

    Given several sizes, it normalises over that many last axes. `bias=False` omits beta; `affine=False` omits both.

    >>> import phlox as px
    >>> LayerNorm(2, epsilon=1e-12)(px.tensor([[1.0, 3.0], [2.0, 2.0]])).tolist()
    [[-1.0, 1.0], [0.0, 0.0]]
    """

    def __init__(
        self,
        d_model: int | tuple[int, ...],
        *,
        epsilon: float = 1e-5,
        affine: bool = True,
        bias: bool = True,
        device: DeviceLike | None = None,
    ) -> None:
        self.shape = sizes_of(type(self).__name__, d_model)
        self.gamma = Param.deferred(self.shape, Ones(), device=device) if affine else None
        self.beta = Param.deferred(self.shape, Zeros(), device=device) if affine and bias else None
        self.epsilon = epsilon

    def __call__(self, x: Tensor) -> Tensor:
        gamma = None if self.gamma is None else self.gamma.val()
        beta = None if self.beta is None else self.beta.val()
        if gamma is None:
            _check_sizes(x, self.shape)
        return functional.layer_norm(x, gamma, beta, axes=len(self.shape), epsilon=self.epsilon)


class RmsNorm(Module):
    """x / sqrt(mean(x^2) + epsilon) * gamma over the last axis, of size d_model (Zhang, Sennrich 2019).

    Given several sizes, it normalises over that many last axes. `affine=False` omits gamma. With `offset`, gamma is a
    deviation from it: the factor is offset + gamma, and gamma starts at 1 - offset (Gemma has 1.0).

    >>> import phlox as px
    >>> RmsNorm(4)(px.ones((2, 4)) * 3.0)[0].tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    def __init__(
        self,
        d_model: int | tuple[int, ...],
        *,
        epsilon: float = 1e-6,
        affine: bool = True,
        offset: float = 0.0,
        device: DeviceLike | None = None,
    ) -> None:
        self.shape = sizes_of(type(self).__name__, d_model)
        self.gamma = Param.deferred(self.shape, Constant(1.0 - offset), device=device) if affine else None
        self.epsilon, self.offset = epsilon, offset

    def __call__(self, x: Tensor) -> Tensor:
        gamma = None if self.gamma is None else self.gamma.val()
        if gamma is None:
            _check_sizes(x, self.shape)
        elif self.offset:
            gamma = gamma + self.offset
        return functional.rms_norm(x, gamma, axes=len(self.shape), epsilon=self.epsilon)


class GroupNorm(Module):
    """(x - mean) / sqrt(var + epsilon) * gamma + beta over each group of channels of an example (Wu, He 2018).

    x is [n, channels, ...], with channels divisible by `groups`. gamma and beta are [channels]; `affine=False` omits
    them.

    >>> import phlox as px
    >>> GroupNorm(2, 6)(px.ones((3, 6, 4, 4))).shape
    (3, 6, 4, 4)
    """

    def __init__(
        self,
        groups: int,
        channels: int,
        *,
        epsilon: float = 1e-5,
        affine: bool = True,
        device: DeviceLike | None = None,
    ) -> None:
        if groups < 1 or channels % groups:
            raise ConfigError(f"GroupNorm: {channels} channels are not divisible by {groups} groups")
        self.groups, self.channels, self.epsilon = groups, channels, epsilon
        self.gamma = Param.deferred((channels,), Ones(), device=device) if affine else None
        self.beta = Param.deferred((channels,), Zeros(), device=device) if affine else None

    def __call__(self, x: Tensor) -> Tensor:
        gamma, beta = _values(self.gamma, self.beta)
        if gamma is None:
            _check_channels(x, self.channels)
        return functional.group_norm(x, self.groups, gamma, beta, epsilon=self.epsilon)


class InstanceNorm(Module):
    """(x - mean) / sqrt(var + epsilon) over each channel of an example; with `affine`, times gamma plus beta.

    x is [n, channels, ...]; gamma and beta are [channels] (Ulyanov, Vedaldi, Lempitsky 2016).

    >>> import phlox as px
    >>> InstanceNorm(6)(px.ones((3, 6, 4, 4))).shape
    (3, 6, 4, 4)
    """

    def __init__(
        self,
        channels: int,
        *,
        epsilon: float = 1e-5,
        affine: bool = False,
        device: DeviceLike | None = None,
    ) -> None:
        self.channels, self.epsilon = channels, epsilon
        self.gamma = Param.deferred((channels,), Ones(), device=device) if affine else None
        self.beta = Param.deferred((channels,), Zeros(), device=device) if affine else None

    def __call__(self, x: Tensor) -> Tensor:
        gamma, beta = _values(self.gamma, self.beta)
        if gamma is None:
            _check_channels(x, self.channels)
        return functional.instance_norm(x, gamma, beta, epsilon=self.epsilon)


def _check_sizes(x: Tensor, sizes: tuple[int, ...]) -> None:
    if x.shape[-len(sizes) :] != sizes:
        raise ShapeError(f"x of shape {x.shape} does not end with the normalised axes, {sizes}")


def _check_channels(x: Tensor, channels: int) -> None:
    if x.ndim > 1 and x.shape[1] != channels:
        raise ShapeError(f"x of shape {x.shape} does not have {channels} channels along axis 1")


def _values(*params: Param | None) -> list[Tensor | None]:
    return [None if param is None else param.val() for param in params]


class LayerNormConfig(config_of(LayerNorm)):
    """Hyper-parameters of `LayerNorm`."""


class RmsNormConfig(config_of(RmsNorm)):
    """Hyper-parameters of `RmsNorm`."""


class GroupNormConfig(config_of(GroupNorm)):
    """Hyper-parameters of `GroupNorm`."""


class InstanceNormConfig(config_of(InstanceNorm)):
    """Hyper-parameters of `InstanceNorm`."""
