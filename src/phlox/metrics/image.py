"""Metrics of images: how near a reconstruction is to the original."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from phlox.errors import RangeError, ShapeError
from phlox.metrics.base import Derived, Metric, Shapes, State, Statistic
from phlox.metrics.inputs import expect_same, meet, row_weights
from phlox.metrics.regression import SquaredErrors
from phlox.metrics.sums import AnyTensor, totals
from phlox.tensor import ones_like, stack

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class Psnr(Derived):
    """The peak signal-to-noise ratio in decibels, 10 log10(data_range^2 / MSE), over all pixels of all images.

    Args of `update`: `(predictions, targets)`, two arrays of one shape.

    Args:
        data_range: the largest possible difference of two pixels: 1 for images from 0 to 1, 255 for bytes.

    Infinite if all pixels are equal; NaN without any images.

    >>> from phlox import metrics
    >>> metrics.Psnr(data_range=1.0)([[0.5, 0.5]], [[0.4, 0.6]])
    20.0
    """

    data_range: float = 1.0

    def __post_init__(self) -> None:
        _check_range("Psnr", self.data_range)

    @property
    def statistic(self) -> Statistic:
        return SquaredErrors(name="Psnr")

    def result(self, errors: Array) -> Any:
        return 10.0 * np.log10(self.data_range**2 * errors[1, 0] / errors[0, 0])


@dataclass(frozen=True, kw_only=True)
class Ssim(Metric):
    """The mean structural similarity (SSIM) of images, at most 1 (Wang et al. 2004).

    Means, variances and covariances are computed under a Gaussian window, at all positions where it lies inside the
    image, as in the paper and scikit-image (torchmetrics adds a border of reflected pixels).

    Args of `update`: `(predictions, targets)`, images [..., height, width], followed by `channel_axes` further axes
    (channels). Each index of the leading axes [...] is a separate image. For [N, C, H, W] leave `channel_axes` at 0.

    Args:
        data_range: the largest possible difference of two pixels: 1 for images from 0 to 1, 255 for bytes.
        window: the side of the window in pixels, an odd number.
        sigma: the standard deviation of the Gaussian, in pixels.
        k1, k2: the constants (k * data_range)^2 stabilize the two quotients.
        channel_axes: the number of axes after height and width.

    NaN without any images.

    >>> import phlox as px
    >>> from phlox import metrics
    >>> image = px.linspace(0.0, 1.0, 256).reshape(1, 16, 16)
    >>> metrics.Ssim()(image, image)
    1.0
    """

    data_range: float = 1.0
    window: int = 11
    sigma: float = 1.5
    k1: float = 0.01
    k2: float = 0.03
    channel_axes: int = 0

    def __post_init__(self) -> None:
        _check_range("Ssim", self.data_range)
        if not (isinstance(self.window, int) and self.window >= 1 and self.window % 2):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RangeError(f"Ssim: the window's side is an odd number of pixels, got {self.window!r}")
        if not self.sigma > 0.0:
            raise RangeError(f"Ssim: sigma must be positive, got {self.sigma!r}")

    def shapes(self) -> Shapes:
        return {"similarities": (2,)}

    def measure(self, predictions: Any, targets: Any, *, weights: Any = None) -> State:
        x, y, weights = meet("Ssim", predictions=predictions, targets=targets, weights=weights)
        expect_same("Ssim", x, y)
        channels = self.channel_axes
        images = x.shape[: x.ndim - 2 - channels]
        size = x.shape[len(images) : len(images) + 2]
        if x.ndim < 2 + channels or min(size) < self.window:
            raise ShapeError(
                f"Ssim: images of shape {x.shape} are smaller than the window of {self.window} x {self.window}; "
                "height and width are the last axes but for channel_axes; give a smaller window"
            )
        weights = row_weights("Ssim", weights, images)
        flat = (math.prod(images), *size, math.prod(x.shape[len(images) + 2 :]))
        values = self._similarity(x.float().reshape(flat), y.float().reshape(flat)).mean((1, 2, 3))
        return {"similarities": totals(values, ones_like(values > 0.0), weights=weights)}

    def _similarity(self, x: AnyTensor, y: AnyTensor) -> AnyTensor:
        """The similarity at each position of the window, for images [n, h, w, c]."""
        means = self._blurred(self._blurred(stack([x, y, x * x, y * y, x * y]), 2), 3)
        mx, my, xx, yy, xy = (means[index] for index in range(5))
        c1, c2 = ((k * self.data_range) ** 2 for k in (self.k1, self.k2))
        light = (2.0 * mx * my + c1) / (mx * mx + my * my + c1)
        return light * (2.0 * (xy - mx * my) + c2) / ((xx - mx * mx) + (yy - my * my) + c2)

    def _blurred(self, x: AnyTensor, axis: int) -> AnyTensor:
        offsets = np.arange(self.window) - self.window // 2
        weights = np.exp(-(offsets**2) / (2.0 * self.sigma**2))
        weights /= weights.sum()
        length = x.shape[axis] - self.window + 1
        before = (slice(None),) * axis
        parts = [x[(*before, slice(at, at + length))] * float(w) for at, w in enumerate(weights)]
        return sum(parts[1:], parts[0])

    def result(self, similarities: Array) -> Any:
        return similarities[0] / similarities[1]


def _check_range(name: str, value: float) -> None:
    if not 0.0 < value < math.inf:
        raise RangeError(f"{name}: data_range must be positive and finite, got {value!r}")
