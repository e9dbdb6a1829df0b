"""Transposed convolutions of sequences, images and volumes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

from phlox.backend import DeviceLike
from phlox.config import config_of
from phlox.module import Module, Param
from phlox.nn.conv import Padding, Size, check_groups
from phlox.nn.initializer import Initializer, KaimingUniform, bias_initializer_of
from phlox.tensor import Tensor, functional
from phlox.tensor.functional.call import sizes


class ConvTranspose(Module):
    """Base of the transposed convolutions; weight [in_channels, out_channels / groups, *kernel].

    Each is the transpose, as a linear map, of the convolution with the same options. The fan-in for the initializer is
    that of an output unit: in_channels / groups times the size of the kernel. (PyTorch counts the output channels
    instead.) For options see `phlox.functional.conv_transpose2d`.
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
        output_padding: Size = 0,
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
        shape = (in_channels, out_channels // groups, *window)
        self.stride, self.padding, self.output_padding = stride, padding, output_padding
        self.dilation, self.groups = dilation, groups
        self.weight = Param.deferred(shape, initializer, fans=fans, device=device)
        self.bias = Param.deferred((out_channels,), bias_initializer, fans=fans, device=device) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return type(self).function(
            x,
            self.weight.val(),
            None if self.bias is None else self.bias.val(),
            stride=self.stride,
            padding=self.padding,
            output_padding=self.output_padding,
            dilation=self.dilation,
            groups=self.groups,
        )


class ConvTranspose1d(ConvTranspose):
    """Transposed convolution of sequences [n, in_channels, length].

    For the options see `phlox.functional.conv_transpose2d`.

    >>> import phlox as px
    >>> ConvTranspose1d(3, 8, 2, stride=2)(px.ones((4, 3, 5))).shape
    (4, 8, 10)
    """

    axes = 1
    function = staticmethod(functional.conv_transpose1d)


class ConvTranspose2d(ConvTranspose):
    """Transposed convolution of images [n, in_channels, height, width].

    For the options see `phlox.functional.conv_transpose2d`.

    >>> import phlox as px
    >>> ConvTranspose2d(8, 1, 3, stride=2, padding=1, output_padding=1)(px.ones((2, 8, 4, 4))).shape
    (2, 1, 8, 8)
    """

    axes = 2
    function = staticmethod(functional.conv_transpose2d)


class ConvTranspose3d(ConvTranspose):
    """Transposed convolution of volumes [n, in_channels, depth, height, width].

    For the options see `phlox.functional.conv_transpose2d`.

    >>> import phlox as px
    >>> ConvTranspose3d(2, 1, 2, stride=2)(px.ones((1, 2, 2, 2, 2))).shape
    (1, 1, 4, 4, 4)
    """

    axes = 3
    function = staticmethod(functional.conv_transpose3d)


class ConvTranspose1dConfig(config_of(ConvTranspose1d)):
    """Hyper-parameters of `ConvTranspose1d`."""


class ConvTranspose2dConfig(config_of(ConvTranspose2d)):
    """Hyper-parameters of `ConvTranspose2d`."""


class ConvTranspose3dConfig(config_of(ConvTranspose3d)):
    """Hyper-parameters of `ConvTranspose3d`."""
