"""Pooling of sequences, images and volumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from phlox.config import config_of
from phlox.module import Module
from phlox.nn.conv import Padding, Size
from phlox.tensor import Tensor, functional

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool1dConfig", "AdaptiveAvgPool2d", "AdaptiveAvgPool2dConfig", "AdaptiveAvgPool3d",
    "AdaptiveAvgPool3dConfig", "AvgPool1d", "AvgPool1dConfig", "AvgPool2d", "AvgPool2dConfig", "AvgPool3d",
    "AvgPool3dConfig", "MaxPool1d", "MaxPool1dConfig", "MaxPool2d", "MaxPool2dConfig", "MaxPool3d", "MaxPool3dConfig",
]  # fmt: skip

Counts = int | tuple[int | None, ...]
"""The number of windows per axis; None leaves an axis unchanged."""


class MaxPool(Module):
    """Base of max pooling: the maximum of each window. The stride is the window by default."""

    function: ClassVar[Callable[..., Tensor]]

    def __init__(
        self,
        window: Size,
        *,
        stride: Size | None = None,
        padding: Padding = 0,
        dilation: Size = 1,
        ceil_mode: bool = False,
    ) -> None:
        self.window, self.stride, self.padding = window, stride, padding
        self.dilation, self.ceil_mode = dilation, ceil_mode

    def __call__(self, x: Tensor) -> Tensor:
        return type(self).function(
            x,
            self.window,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            ceil_mode=self.ceil_mode,
        )


class AvgPool(Module):
    """Base of average pooling: the mean of each window. Padding counts as zeros if `count_include_pad`."""

    function: ClassVar[Callable[..., Tensor]]

    def __init__(
        self,
        window: Size,
        *,
        stride: Size | None = None,
        padding: Padding = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        self.window, self.stride, self.padding = window, stride, padding
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def __call__(self, x: Tensor) -> Tensor:
        return type(self).function(
            x,
            self.window,
            stride=self.stride,
            padding=self.padding,
            ceil_mode=self.ceil_mode,
            count_include_pad=self.count_include_pad,
        )


class AdaptivePool(Module):
    """Base of adaptive pooling: `size` windows per axis, for any input size. `size=1` is global pooling."""

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, size: Counts) -> None:
        self.size = size

    def __call__(self, x: Tensor) -> Tensor:
        return type(self).function(x, self.size)


class MaxPool1d(MaxPool):
    """The maximum of each window of sequences [n, channels, length]; the stride is the window by default.

    For the options see `phlox.functional.max_pool2d`.

    >>> import phlox as px
    >>> MaxPool1d(2)(px.tensor([[[1.0, 3.0, 2.0, 0.0]]])).tolist()
    [[[3.0, 2.0]]]
    """

    function = staticmethod(functional.max_pool1d)


class MaxPool2d(MaxPool):
    """The maximum of each window of images [n, channels, height, width]; the stride is the window by default.

    For the options see `phlox.functional.max_pool2d`.

    >>> import phlox as px
    >>> MaxPool2d(3, stride=2, padding=1)(px.ones((2, 4, 8, 8))).shape
    (2, 4, 4, 4)
    """

    function = staticmethod(functional.max_pool2d)


class MaxPool3d(MaxPool):
    """The maximum of each window of volumes [n, channels, depth, height, width].

    For the options see `phlox.functional.max_pool2d`.

    >>> import phlox as px
    >>> MaxPool3d(2)(px.ones((1, 2, 4, 4, 4))).shape
    (1, 2, 2, 2, 2)
    """

    function = staticmethod(functional.max_pool3d)


class AvgPool1d(AvgPool):
    """The mean of each window of sequences [n, channels, length]; the stride is the window by default.

    For the options see `phlox.functional.avg_pool2d`.

    >>> import phlox as px
    >>> AvgPool1d(2)(px.tensor([[[1.0, 3.0, 2.0, 0.0]]])).tolist()
    [[[2.0, 1.0]]]
    """

    function = staticmethod(functional.avg_pool1d)


class AvgPool2d(AvgPool):
    """The mean of each window of images [n, channels, height, width]; the stride is the window by default.

    For the options see `phlox.functional.avg_pool2d`.

    >>> import phlox as px
    >>> AvgPool2d(2)(px.ones((2, 4, 8, 8))).shape
    (2, 4, 4, 4)
    """

    function = staticmethod(functional.avg_pool2d)


class AvgPool3d(AvgPool):
    """The mean of each window of volumes [n, channels, depth, height, width].

    For the options see `phlox.functional.avg_pool2d`.

    >>> import phlox as px
    >>> AvgPool3d(2)(px.ones((1, 2, 4, 4, 4))).shape
    (1, 2, 2, 2, 2)
    """

    function = staticmethod(functional.avg_pool3d)


class AdaptiveAvgPool1d(AdaptivePool):
    """The mean of each of `size` windows of sequences [n, channels, length].

    >>> import phlox as px
    >>> AdaptiveAvgPool1d(2)(px.tensor([[[1.0, 2.0, 6.0]]])).tolist()
    [[[1.5, 4.0]]]
    """

    function = staticmethod(functional.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(AdaptivePool):
    """The mean of each window of images [n, channels, height, width]: [n, channels, *size].

    >>> import phlox as px
    >>> AdaptiveAvgPool2d(1)(px.ones((2, 3, 5, 7))).shape
    (2, 3, 1, 1)
    """

    function = staticmethod(functional.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(AdaptivePool):
    """The mean of each window of volumes [n, channels, depth, height, width]: [n, channels, *size].

    >>> import phlox as px
    >>> AdaptiveAvgPool3d((2, None, 1))(px.ones((1, 2, 4, 4, 4))).shape
    (1, 2, 2, 4, 1)
    """

    function = staticmethod(functional.adaptive_avg_pool3d)


class MaxPool1dConfig(config_of(MaxPool1d)):
    """Hyper-parameters of `MaxPool1d`."""


class MaxPool2dConfig(config_of(MaxPool2d)):
    """Hyper-parameters of `MaxPool2d`."""


class MaxPool3dConfig(config_of(MaxPool3d)):
    """Hyper-parameters of `MaxPool3d`."""


class AvgPool1dConfig(config_of(AvgPool1d)):
    """Hyper-parameters of `AvgPool1d`."""


class AvgPool2dConfig(config_of(AvgPool2d)):
    """Hyper-parameters of `AvgPool2d`."""


class AvgPool3dConfig(config_of(AvgPool3d)):
    """Hyper-parameters of `AvgPool3d`."""


class AdaptiveAvgPool1dConfig(config_of(AdaptiveAvgPool1d)):
    """Hyper-parameters of `AdaptiveAvgPool1d`."""


class AdaptiveAvgPool2dConfig(config_of(AdaptiveAvgPool2d)):
    """Hyper-parameters of `AdaptiveAvgPool2d`."""


class AdaptiveAvgPool3dConfig(config_of(AdaptiveAvgPool3d)):
    """Hyper-parameters of `AdaptiveAvgPool3d`."""
