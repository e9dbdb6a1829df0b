"""Data augmentation: random distortions of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from phlox.backend.threefry.generator import fold_in, random_uniform
from phlox.data.draws import Draws
from phlox.data.images import ImageTransform
from phlox.errors import DataError

_SUB_STREAM = int.from_bytes(b"warp")


@dataclass(frozen=True)
class RandomAffine(ImageTransform):
    """Shifts, rotates and stretches each image of a batch at random, by bilinear interpolation; outside is zero.

    A transform for a `Loader`: it changes the images of a batch, floats `[n, channels, height, width]`, and passes the
    rest on. The distortion of an image depends only on the loader's seed, the epoch and the number of the row. Without
    a loader, in `affine(step, batch)`, it depends on `seed`, the step and the position in the batch.

    Args:
        shift: the largest shift in each direction, in pixels.
        turn: the largest rotation, in degrees.
        stretch: the largest relative change of the height, and of the width.
        seed: the seed of the distortions without a loader; from 0 to `2**64 - 1`.

    Raises:
        DataError: an argument is out of range.

    >>> import numpy as np
    >>> images = np.eye(8, dtype=np.float32)[None, None]
    >>> RandomAffine(shift=1.0)((images,), Draws(seed=0, epoch=0, rows=np.array([7])))[0].shape
    (1, 1, 8, 8)
    """

    shift: float = 0.5
    turn: float = 10.0
    stretch: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.shift >= 0.0 and 0.0 <= self.turn <= 180.0 and 0.0 <= self.stretch < 1.0):
            raise DataError(
                f"{self}: give a shift of 0 or more, a turn of 0 to 180 degrees and a stretch of at least 0 and below 1"
            )
        if not 0 <= self.seed < 2**64:
            raise DataError(f"{self}: give a seed of 0 to 2**64 - 1")

    def __call__(self, batch: Any, draws: Any) -> Any:
        if isinstance(batch, int):  # `(step, batch)`, without a loader
            images, *others = cast("tuple[Any, ...]", draws)
            return self._distort(images, self._draw(batch, len(images))), *others
        return super().__call__(batch, draws)

    def apply(self, images: npt.NDArray[Any], draws: Draws) -> npt.NDArray[Any]:
        draw = draws.uniform("affine", -1.0, 1.0, size=5)
        return self._distort(images, draw.T.reshape(5, -1, 1, 1))

    def _draw(self, step: int, count: int) -> npt.NDArray[np.float32]:
        key = fold_in((self.seed >> 32, self.seed & 0xFFFFFFFF), _SUB_STREAM)
        state = np.array([*key, step], dtype=np.uint32)
        return random_uniform(state, (5, count, 1, 1), np.dtype(np.float32)) * np.float32(2.0) - np.float32(1.0)

    def _distort(self, images: npt.NDArray[Any], draw: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        if images.ndim != 4 or images.dtype.kind != "f":
            raise DataError(
                f"RandomAffine: got {images.dtype} images of shape {images.shape}; "
                "give floats of shape [n, channels, height, width]"
            )
        count, _, height, width = images.shape
        angle, taller, wider, down, right = draw
        angle, down, right = angle * np.float32(np.pi / 180.0 * self.turn), down * self.shift, right * self.shift
        # The source in the old image of each point of the new image, relative to the centre.
        rows = np.arange(height, dtype=np.float32)[:, None] - (height - 1) / 2
        columns = np.arange(width, dtype=np.float32) - (width - 1) / 2
        sine, cosine = np.sin(angle), np.cos(angle)
        y = (cosine * rows - sine * columns) * (1.0 + self.stretch * taller) + down + (height - 1) / 2
        x = (sine * rows + cosine * columns) * (1.0 + self.stretch * wider) + right + (width - 1) / 2
        # A frame of zeros, two pixels wide: points outside of the image are read from it.
        padded = np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2)))
        y, x = np.clip(y + 2.0, 0.0, height + 2.0), np.clip(x + 2.0, 0.0, width + 2.0)
        top, left = y.astype(np.intp), x.astype(np.intp)
        below, beside = (y - top)[:, None], (x - left)[:, None]
        image = np.arange(count, dtype=np.intp)[:, None, None]

        def at(row: npt.NDArray[np.intp], column: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
            return np.moveaxis(padded[image, :, row, column], -1, 1)

        upper = at(top, left) * (1.0 - beside) + at(top, left + 1) * beside
        lower = at(top + 1, left) * (1.0 - beside) + at(top + 1, left + 1) * beside
        return (upper * (1.0 - below) + lower * below).astype(images.dtype)
