"""A small convolutional network for images of handwritten digits."""

from __future__ import annotations

from phlox.backend import DeviceLike
from phlox.config import Config
from phlox.module import Module
from phlox.nn import Conv2d, Dropout, Linear, MaxPool2d
from phlox.tensor import Tensor

__all__ = ["DigitsConfig", "DigitsNet"]


class DigitsConfig(Config):
    """Hyper-parameters of `DigitsNet`.

    >>> import phlox as px
    >>> model = DigitsConfig(channels=(4, 8)).init()
    >>> model(px.ones((2, 1, 8, 8))).shape
    (2, 10)
    """

    channels: tuple[int, int] = (24, 48)
    """The output channels of the two convolutions."""
    kernel: int = 3
    """The height and width of their kernels; odd, so that the images keep their size."""
    dropout: float = 0.3
    classes: int = 10
    size: tuple[int, int] = (8, 8)
    """The height and width of the images, in pixels; multiples of 4, because they are halved twice."""

    def validate(self) -> None:
        for name, numbers in (("channels", self.channels), ("classes", (self.classes,)), ("size", self.size)):
            if min(numbers) < 1:
                raise ValueError(f"{name} must be positive, got {numbers if len(numbers) > 1 else numbers[0]}")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ValueError(f"kernel must be odd and positive, got {self.kernel}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}")
        if self.size[0] % 4 or self.size[1] % 4:
            raise ValueError(f"size must be multiples of 4, got {self.size}")

    def init(self, device: DeviceLike | None = None) -> DigitsNet:
        """The network; its parameters are created when they are first used."""
        return DigitsNet(self, device)


class DigitsNet(Module):
    """A small convolutional network: images [n, 1, height, width] to logits [n, classes].

    Two convolutions, each followed by max pooling and gelu (its tanh approximation); then dropout and a dense layer.
    """

    def __init__(self, config: DigitsConfig, device: DeviceLike | None = None) -> None:
        first, second = config.channels
        height, width = config.size
        same = config.kernel // 2
        self.conv_1 = Conv2d(1, first, config.kernel, padding=same, device=device)
        self.conv_2 = Conv2d(first, second, config.kernel, padding=same, device=device)
        self.pool = MaxPool2d(2)
        self.dropout = Dropout(config.dropout)
        self.head = Linear(second * (height // 4) * (width // 4), config.classes, device=device)

    def __call__(self, images: Tensor) -> Tensor:
        # Pooling first: the activation then has only a quarter of the elements.
        x = self.pool(self.conv_1(images)).gelu(approximate=True)
        x = self.pool(self.conv_2(x)).gelu(approximate=True)
        return self.head(self.dropout(x.flatten(1)))
