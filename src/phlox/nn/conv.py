"""Convolutions of sequences, images and volumes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, Literal

from phlox.backend import DeviceLike
from phlox.config import config_of
from phlox.errors import ConfigError
from phlox.module import Module, Param
from phlox.nn.initializer import Initializer, KaimingUniform, bias_initializer_of
from phlox.tensor import Tensor, functional
from phlox.tensor.functional.call import sizes

Size = int | tuple[int, ...]
"""One integer per spatial axis, or one for all."""

Padding = int | tuple[int, ...] | tuple[tuple[int, int], ...] | Literal["same", "valid"]
"""An integer, one per axis, or a pair (before, after) per axis; or a name, see `phlox.functional.conv2d`."""


def check_groups(name: str, in_channels: int, out_channels: int, groups: int) -> None:
    """Raise `ConfigError` unless the channels are divisible by the groups."""
    if groups < 1 or in_channels % groups or out_channels % groups:
        raise ConfigError(
            f"{name}: {in_channels} input and {out_channels} output channels are not divisible by {groups}"
        )


class Conv(Module):
    """Base of the convolutions over `axes` spatial axes; weight [out_channels, in_channels / groups, *kernel].

    As usual in deep learning this is cross-correlation: the kernel is not flipped. `bias_initializer` defaults to the
    initializer of the weight, or to zeros if that works only for weights (`Dirac`). For options see
    `phlox.functional.conv2d`.
    """

    axes: ClassVar[int]
    function: ClassVar[Callable[..., Tensor]]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: Size,
        *,
        stride: Size = 1,
        padding: Padding = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        initializer: Initializer = KaimingUniform(),  # noqa: B008
        bias_initializer: Initializer | None = None,
        device: DeviceLike | None = None,
    ) -> None:
        name = type(self).__name__
        check_groups(name, in_channels, out_channels, groups)
        window = sizes(name, "kernel", kernel, self.axes, 1)
        fans = (in_channels // groups * math.prod(window), out_channels // groups * math.prod(window))
        bias_initializer = bias_initializer_of(initializer, bias_initializer)
        shape = (out_channels, in_channels // groups, *window)
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.weight = Param.deferred(shape, initializer, fans=fans, device=device)
        self.bias = Param.deferred((out_channels,), bias_initializer, fans=fans, device=device) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return type(self).function(
            x,
            self.weight.val(),
            None if self.bias is None else self.bias.val(),
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
        )


class Conv1d(Conv):
    """Convolution of sequences [n, in_channels, length]; weight [out_channels, in_channels / groups, k].

    For the options see `phlox.functional.conv1d`.

    >>> import phlox as px
    >>> Conv1d(3, 8, 5, stride=2, padding=2)(px.ones((4, 3, 10))).shape
    (4, 8, 5)
    """

    axes = 1
    function = staticmethod(functional.conv1d)


class Conv2d(Conv):
    """Convolution of images [n, in_channels, height, width]; weight [out_channels, in_channels / groups, kh, kw].

    For the options see `phlox.functional.conv2d`.

    >>> import phlox as px
    >>> Conv2d(1, 8, 3, padding=1)(px.ones((2, 1, 8, 8))).shape
    (2, 8, 8, 8)
    """

    axes = 2
    function = staticmethod(functional.conv2d)


class Conv3d(Conv):
    """Convolution of volumes [n, in_channels, depth, height, width]; weight [out_channels, in_channels / groups, ...].

    For the options see `phlox.functional.conv2d`.

    >>> import phlox as px
    >>> Conv3d(1, 2, 3, padding="same")(px.ones((2, 1, 4, 4, 4))).shape
    (2, 2, 4, 4, 4)
    """

    axes = 3
    function = staticmethod(functional.conv3d)


class Conv1dConfig(config_of(Conv1d)):
    """Hyper-parameters of `Conv1d`."""


class Conv2dConfig(config_of(Conv2d)):
    """Hyper-parameters of `Conv2d`."""


class Conv3dConfig(config_of(Conv3d)):
    """Hyper-parameters of `Conv3d`."""
