"""Convolution of images."""

from __future__ import annotations

from phlox.backend import DeviceLike
from phlox.config import config_of
from phlox.errors import ConfigError
from phlox.module import Module, Param
from phlox.nn.initializer import Initializer, KaimingUniform
from phlox.tensor import Tensor, functional

Size2 = int | tuple[int, int]


class Conv2d(Module):
    """Convolution of images [n, in_channels, height, width]; weight [out_channels, in_channels / groups, kh, kw].

    >>> import phlox as px
    >>> Conv2d(1, 8, 3, padding=1)(px.ones((2, 1, 8, 8))).shape
    (2, 8, 8, 8)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel: Size2,
        *,
        stride: Size2 = 1,
        padding: Size2 = 0,
        dilation: Size2 = 1,
        groups: int = 1,
        bias: bool = True,
        initializer: Initializer = KaimingUniform(),  # noqa: B008
        device: DeviceLike | None = None,
    ) -> None:
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ConfigError(
                f"Conv2d: {in_channels} input and {out_channels} output channels do not divide by {groups}"
            )
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        fans = (in_channels // groups * height * width, out_channels // groups * height * width)
        shape = (out_channels, in_channels // groups, height, width)
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.weight = Param.deferred(shape, initializer, fans=fans, device=device)
        self.bias = Param.deferred((out_channels,), initializer, fans=fans, device=device) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return functional.conv2d(
            x,
            self.weight.val(),
            None if self.bias is None else self.bias.val(),
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            groups=self.groups,
        )


class Conv2dConfig(config_of(Conv2d)):
    """Hyper-parameters of `Conv2d`."""
