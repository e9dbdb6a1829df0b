"""Images as a vision model expects them: resized, cropped and normalized."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from phlox.data.draws import Draws
from phlox.data.images import Normalize, resize
from phlox.errors import DataError

_NO_DRAWS = Draws(0, 0, np.zeros(1, np.int64))


@dataclass(frozen=True)
class ImageProcessor:
    """Makes the input of a vision model from images, which may have different sizes.

    Args:
        size: height and width to which images are resized; one number is that of the shorter side, and the other side
            keeps the aspect ratio. None does not resize.
        crop: height and width of the part in the middle that is kept; smaller images get a margin of zeros.
        mean, std, scale: see `Normalize`.
        filter: see `Resize`.

    Pixels of 8 bits are rounded after each axis, the width first, as in torchvision and in Pillow up to version 12.

    >>> processor = ImageProcessor(size=4, crop=(4, 4), mean=0.5, std=0.5, scale=1 / 255)
    >>> processor([np.full((3, 8, 16), 255, np.uint8), np.zeros((3, 5, 4), np.uint8)]).shape
    (2, 3, 4, 4)
    """

    size: tuple[int, int] | int | None = None
    crop: tuple[int, int] | None = None
    mean: float | tuple[float, ...] = 0.0
    std: float | tuple[float, ...] = 1.0
    scale: float = 1.0
    filter: Literal["bilinear", "bicubic"] = "bilinear"

    def __call__(self, images: Iterable[npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
        """Images, each [channels, height, width], to floats [n, channels, height, width].

        Raises `DataError` for an image of another rank, or if the results have different sizes.
        """
        results = [self._sized(image) for image in images]
        shapes = {image.shape: None for image in results}
        if len(shapes) != 1:
            raise DataError(
                f"ImageProcessor: images must get one size, and there are {', '.join(map(str, shapes)) or 'none'}; "
                "set `size` or `crop`"
            )
        return Normalize(self.mean, self.std, self.scale).apply(np.stack(results), _NO_DRAWS)

    def _sized(self, image: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if image.ndim != 3:
            raise DataError(f"ImageProcessor: an image must be [channels, height, width], got shape {image.shape}")
        height, width = image.shape[1:]
        size = self.size
        if isinstance(size, int):
            short, long = min(height, width), max(height, width)
            other = int(size * long / short)
            size = (size, other) if height <= width else (other, size)
        for step in () if size is None else ((height, size[1]), size):
            y = resize(image.astype(np.float64), step, filter=self.filter)
            image = np.floor(y + 0.5).clip(0, 255).astype(np.uint8) if image.dtype == np.uint8 else y
        return image if self.crop is None else self._cropped(image, self.crop)

    def _cropped(self, image: npt.NDArray[Any], crop: tuple[int, int]) -> npt.NDArray[Any]:
        for axis, length in enumerate(crop, 1):
            margin = max(0, length - image.shape[axis])
            margins = [((margin + 1) // 2, margin // 2) if index == axis else (0, 0) for index in range(3)]
            image = np.pad(image, margins)
            start = (image.shape[axis] - length) // 2
            image = image.take(range(start, start + length), axis)
        return image
