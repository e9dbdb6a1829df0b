"""Pooling of images."""

from __future__ import annotations

from phlox.config import config_of
from phlox.module import Module
from phlox.nn.conv import Size2
from phlox.tensor import Tensor, functional


class MaxPool2d(Module):
    """The greatest value of each window of images [n, channels, height, width]; by default the stride is the window."""

    def __init__(self, window: Size2, *, stride: Size2 | None = None, padding: Size2 = 0) -> None:
        self.window, self.stride, self.padding = window, stride, padding

    def __call__(self, x: Tensor) -> Tensor:
        return functional.max_pool2d(x, self.window, stride=self.stride, padding=self.padding)


class AvgPool2d(Module):
    """The mean of each window of images [n, channels, height, width]; padding counts as zeros."""

    def __init__(self, window: Size2, *, stride: Size2 | None = None, padding: Size2 = 0) -> None:
        self.window, self.stride, self.padding = window, stride, padding

    def __call__(self, x: Tensor) -> Tensor:
        return functional.avg_pool2d(x, self.window, stride=self.stride, padding=self.padding)


class MaxPool2dConfig(config_of(MaxPool2d)):
    """Hyper-parameters of `MaxPool2d`."""


class AvgPool2dConfig(config_of(AvgPool2d)):
    """Hyper-parameters of `AvgPool2d`."""
