"""Convolutions, and transposed convolutions, of sequences, images and volumes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from phlox.backend import DeviceLike
from phlox.config import config_of
from phlox.errors import ConfigError
from phlox.module import Module, Param
from phlox.module.reparameterization import computed
from phlox.nn.initializer import Initializer, KaimingUniform, bias_initializer_of
from phlox.tensor import Tensor, functional
from phlox.tensor.functional.call import sizes

__all__ = [
    "Conv1d", "Conv1dConfig", "Conv2d", "Conv2dConfig", "Conv3d", "Conv3dConfig", "ConvTranspose1d",
    "ConvTranspose1dConfig", "ConvTranspose2d", "ConvTranspose2dConfig", "ConvTranspose3d", "ConvTranspose3dConfig",
]  # fmt: skip

Size = int | tuple[int, ...]
"""One integer per spatial axis, or one for all."""

Padding = int | tuple[int, ...] | tuple[tuple[int, int], ...] | Literal["same", "valid"]
"""An integer, one per axis, or a pair (before, after) per axis; or a name, see `phlox.functional.conv2d`."""


class _Weights(Module):
    """The common part of both kinds of convolutions: a kernel over `axes` spatial axes, and a bias."""

    axes: ClassVar[int]
    function: ClassVar[Callable[..., Tensor]]
    transposed: ClassVar[bool] = False

    def _create(
        self,
        inputs: int,
        outputs: int,
        kernel: Size,
        groups: int,
        bias: bool,
        initializer: Initializer,
        bias_initializer: Initializer | None,
        device: DeviceLike | None,
    ) -> None:
        name = type(self).__name__
        if groups < 1 or inputs % groups or outputs % groups:
            raise ConfigError(f"{name}: {inputs} input and {outputs} output channels are not divisible by {groups}")
        window = sizes(name, "kernel", kernel, self.axes, 1)
        fans = (inputs // groups * math.prod(window), outputs // groups * math.prod(window))
        first, second = (inputs, outputs) if self.transposed else (outputs, inputs)
        self.weight = Param.deferred((first, second // groups, *window), initializer, fans=fans, device=device)
        bias_initializer = bias_initializer_of(initializer, bias_initializer)
        self.bias = Param.deferred((outputs,), bias_initializer, fans=fans, device=device) if bias else None

    def _convolve(self, x: Tensor, **options: Any) -> Tensor:
        weight, bias = self.weight, None if self.bias is None else self.bias.val()
        if type(weight) is not Param:
            return computed(weight).convolve(type(self).function, x, bias, **options)
        return type(self).function(x, weight.val(), bias, **options)


class Conv(_Weights):
    """Base of the convolutions over `axes` spatial axes; weight [out_channels, in_channels / groups, *kernel].

    As usual in deep learning this is cross-correlation: the kernel is not flipped. `bias_initializer` defaults to the
    initializer of the weight, or to zeros if that works only for weights (`Dirac`). For options see
    `phlox.functional.conv2d`.
    """

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
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self._create(in_channels, out_channels, kernel, groups, bias, initializer, bias_initializer, device)

    def __call__(self, x: Tensor) -> Tensor:
        return self._convolve(
            x,
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


class ConvTranspose(_Weights):
    """Base of the transposed convolutions; weight [in_channels, out_channels / groups, *kernel].

    Each is the transpose, as a linear map, of the convolution with the same options. The fan-in for the initializer is
    that of an output unit: in_channels / groups times the size of the kernel. (PyTorch counts the output channels
    instead.) For options see `phlox.functional.conv_transpose2d`.
    """

    transposed = True
    _phlox_output_axis: ClassVar = 1

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
        self.stride, self.padding, self.output_padding = stride, padding, output_padding
        self.dilation, self.groups = dilation, groups
        self._create(in_channels, out_channels, kernel, groups, bias, initializer, bias_initializer, device)

    def __call__(self, x: Tensor) -> Tensor:
        return self._convolve(
            x,
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


class Conv1dConfig(config_of(Conv1d)):
    """Hyper-parameters of `Conv1d`."""


class Conv2dConfig(config_of(Conv2d)):
    """Hyper-parameters of `Conv2d`."""


class Conv3dConfig(config_of(Conv3d)):
    """Hyper-parameters of `Conv3d`."""


class ConvTranspose1dConfig(config_of(ConvTranspose1d)):
    """Hyper-parameters of `ConvTranspose1d`."""


class ConvTranspose2dConfig(config_of(ConvTranspose2d)):
    """Hyper-parameters of `ConvTranspose2d`."""


class ConvTranspose3dConfig(config_of(ConvTranspose3d)):
    """Hyper-parameters of `ConvTranspose3d`."""
