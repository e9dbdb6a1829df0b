"""Augmentation of images, a whole batch at a time, on NumPy.

Each is a transform for a `Loader`. It changes the images of a batch, `[n, channels, height, width]`: the first array
with four axes, at any depth. The change of an image depends only on the seed, the epoch and the number of its row.
Integers (uint8, 0 to 255) stay integers unless a transform says otherwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from phlox.data.draws import Draws
from phlox.data.structure import AnyArray, is_array, leaves, mapped
from phlox.errors import DataError

Images = npt.NDArray[Any]


class ImageTransform(ABC):
    """The base of transforms that change the images of a batch. Implement `apply`.

    >>> class Invert(ImageTransform):
    ...     def apply(self, images, draws):
    ...         return 1.0 - images
    >>> from phlox.data import Draws
    >>> Invert()(np.zeros((1, 1, 1, 1)), Draws(0, 0, np.array([0]))).item()
    1.0
    """

    def __call__(self, batch: Any, draws: Draws) -> Any:
        path, images = images_of(batch, type(self).__name__)
        return with_leaf(batch, path, self.apply(images, draws))

    @abstractmethod
    def apply(self, images: Images, draws: Draws) -> Images:
        """Return the changed images, `[n, channels, height, width]`; do not write to `images`."""


def images_of(batch: Any, transform: str) -> tuple[str, Images]:
    """The images of a batch, and their path in it."""
    for path, leaf in leaves(batch):
        if is_array(leaf) and leaf.ndim == 4:
            return path, leaf
    shapes = [f"{path or 'the array'} {getattr(leaf, 'shape', type(leaf).__name__)}" for path, leaf in leaves(batch)]
    raise DataError(
        f"{transform}: no array of the batch has four axes ({', '.join(shapes)}); give images of shape "
        "[n, channels, height, width]"
    )


def with_leaf(batch: Any, path: str, value: Any) -> Any:
    paths = iter([path for path, _ in leaves(batch)])

    def value_or_leaf(leaf: Any) -> Any:
        return value if next(paths) == path else leaf

    return mapped(value_or_leaf, batch)


def as_dtype(images: npt.NDArray[Any], dtype: np.dtype[Any]) -> Images:
    """Images, computed in floats, in the dtype of the input: rounded and clipped for integers."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.clip(np.rint(images), info.min, info.max).astype(dtype)
    return images.astype(dtype, copy=False)


@dataclass(frozen=True)
class RandomFlip(ImageTransform):
    """Flips images at random, horizontally (left to right) and vertically.

    Args:
        horizontal: the probability of a horizontal flip.
        vertical: the probability of a vertical flip.

    >>> from phlox.data import Draws
    >>> images = np.arange(4.0).reshape(1, 1, 2, 2)
    >>> RandomFlip(1.0)(images, Draws(0, 0, np.array([0]))).tolist()
    [[[[1.0, 0.0], [3.0, 2.0]]]]
    """

    horizontal: float = 0.5
    vertical: float = 0.0

    def __post_init__(self) -> None:
        _check_probabilities(self, self.horizontal, self.vertical)

    def apply(self, images: Images, draws: Draws) -> Images:
        out = images.copy()
        for name, probability, axis in (("horizontal", self.horizontal, -1), ("vertical", self.vertical, -2)):
            if probability:
                flipped = draws.happens(name, probability)
                out[flipped] = np.flip(out[flipped], axis)
        return out


@dataclass(frozen=True)
class RandomCrop(ImageTransform):
    """Crops each image to a fixed size at a random position.

    Args:
        size: height and width of the crop.
        padding: the number of pixels of `value` that are added on each side of the image first.
        value: the value of the padding.

    Raises:
        DataError: the padded image is smaller than the crop.

    >>> from phlox.data import Draws
    >>> RandomCrop((2, 2), padding=1)(np.ones((1, 1, 3, 3)), Draws(0, 0, np.array([0]))).shape
    (1, 1, 2, 2)
    """

    size: tuple[int, int]
    padding: int = 0
    value: float = 0

    def apply(self, images: Images, draws: Draws) -> Images:
        images = _pad(images, self.padding, self.value)
        room = _room(self, images, self.size)
        top, left = draws.integers("top", 0, room[0] + 1), draws.integers("left", 0, room[1] + 1)
        return _crop(images, top, left, self.size)


@dataclass(frozen=True)
class CenterCrop(ImageTransform):
    """Crops each image to its centre of the given size, `(height, width)`.

    >>> from phlox.data import Draws
    >>> CenterCrop((1, 1))(np.arange(9.0).reshape(1, 1, 3, 3), Draws(0, 0, np.array([0]))).item()
    4.0
    """

    size: tuple[int, int]

    def apply(self, images: Images, draws: Draws) -> Images:
        down, right = _room(self, images, self.size)
        height, width = self.size
        return images[:, :, down // 2 : down // 2 + height, right // 2 : right // 2 + width]


def _pad(images: Images, padding: int, value: float) -> Images:
    if not padding:
        return images
    if padding < 0:
        raise DataError(f"RandomCrop: padding is {padding}; give a number of pixels, 0 or more")
    # This takes a quarter of the time of `np.pad`.
    out = np.full((*images.shape[:2], *[size + 2 * padding for size in images.shape[2:]]), value, images.dtype)
    out[:, :, padding:-padding, padding:-padding] = images
    return out


def _room(crop: Any, images: Images, size: tuple[int, int]) -> tuple[int, int]:
    room = images.shape[2] - size[0], images.shape[3] - size[1]
    if min(room) < 0:
        raise DataError(f"{crop}: images of {images.shape[2]}x{images.shape[3]} have no part of {size[0]}x{size[1]}")
    return room


def _crop(images: Images, top: npt.NDArray[Any], left: npt.NDArray[Any], size: tuple[int, int]) -> Images:
    windows = np.lib.stride_tricks.sliding_window_view(images, size, (2, 3))
    return windows[np.arange(len(images)), :, top, left]


@dataclass(frozen=True)
class Resize(ImageTransform):
    """Resizes images by bilinear or bicubic interpolation, with half-pixel centres.

    If an image becomes smaller, each pixel averages all pixels that it covers (as with antialias in PyTorch and
    Pillow). Values equal PyTorch's `interpolate(mode=filter, align_corners=False, antialias=True)`.

    Args:
        size: height and width.
        antialias: False uses only the two nearest pixels along each axis, also if the image becomes smaller.
        filter: "bilinear", or "bicubic" (with antialias).

    >>> from phlox.data import Draws
    >>> Resize((1, 1))(np.arange(4.0).reshape(1, 1, 2, 2), Draws(0, 0, np.array([0]))).item()
    1.5
    """

    size: tuple[int, int]
    antialias: bool = True
    filter: Literal["bilinear", "bicubic"] = "bilinear"

    def __post_init__(self) -> None:
        if self.filter not in _FILTERS or (self.filter == "bicubic" and not self.antialias):
            raise DataError(f'{self}: filter must be "bilinear" or, with antialias, "bicubic"')

    def apply(self, images: Images, draws: Draws) -> Images:
        return resize(images, self.size, self.antialias, self.filter)


def resize(images: Images, size: tuple[int, int], antialias: bool = True, filter: str = "bilinear") -> Images:
    """Images `[..., height, width]` at another size: one product with a matrix for each axis."""
    if images.shape[-2:] == tuple(size):
        return images
    floats = images.astype(np.float64 if images.dtype == np.float64 else np.float32, copy=False)
    rows, columns = (
        _weights(old, new, antialias, filter).astype(floats.dtype)
        for old, new in zip(images.shape[-2:], size, strict=True)
    )
    return as_dtype(rows @ floats @ columns.T, images.dtype)


def _triangle(distance: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.maximum(0.0, 1.0 - distance)


def _cubic(distance: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The kernel of Keys (1981) with a = -1/2, as in Pillow."""
    near = (1.5 * distance - 2.5) * distance**2 + 1.0
    far = ((-0.5 * distance + 2.5) * distance - 4.0) * distance + 2.0
    return np.where(distance < 1.0, near, np.where(distance < 2.0, far, 0.0))


_FILTERS = {"bilinear": _triangle, "bicubic": _cubic}


def _weights(old: int, new: int, antialias: bool, filter: str = "bilinear") -> npt.NDArray[np.float64]:
    """The weight of each old pixel in each new one, [new, old].

    A filter reaches one new pixel to each side ("bicubic": two), and at least one old pixel.
    """
    scale = old / new
    support = max(scale, 1.0) if antialias else 1.0
    centres = (np.arange(new) + 0.5) * scale
    if antialias:
        distance = np.abs(np.arange(old) + 0.5 - centres[:, None]) / support
        weights = _FILTERS[filter](distance)
        return weights / weights.sum(axis=1, keepdims=True)
    centres = np.clip(centres - 0.5, 0.0, old - 1.0)
    below = np.minimum(centres.astype(int), max(old - 2, 0))
    weights = np.zeros((new, old))
    index = np.arange(new)
    weights[index, below] += 1.0 - (centres - below)
    weights[index, np.minimum(below + 1, old - 1)] += centres - below
    return weights


@dataclass(frozen=True)
class RandomResizedCrop(ImageTransform):
    """Crops each image to a part of random area, aspect ratio and position, and resizes it to a fixed size.

    Args:
        size: height and width of the result.
        scale: the smallest and largest area of the part, as fractions of the image's area.
        ratio: the smallest and largest aspect ratio, width / height.

    Source: "Going deeper with convolutions" (Szegedy and others, 2015).

    >>> from phlox.data import Draws
    >>> RandomResizedCrop((4, 4))(np.ones((1, 3, 8, 8)), Draws(0, 0, np.array([0]))).shape
    (1, 3, 4, 4)
    """

    size: tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        if not (0.0 < self.scale[0] <= self.scale[1] <= 1.0 and 0.0 < self.ratio[0] <= self.ratio[1]):
            raise DataError(f"{self}: give 0 < scale[0] <= scale[1] <= 1, and 0 < ratio[0] <= ratio[1]")

    def apply(self, images: Images, draws: Draws) -> Images:
        _, channels, height, width = images.shape
        area = draws.uniform("area", *self.scale) * (height * width)
        ratio = np.exp(draws.uniform("ratio", *np.log(self.ratio).tolist()))
        tall = np.clip(np.rint(np.sqrt(area / ratio)), 1, height).astype(int)
        wide = np.clip(np.rint(np.sqrt(area * ratio)), 1, width).astype(int)
        top, left = draws.integers("top", 0, height - tall + 1), draws.integers("left", 0, width - wide + 1)
        out = np.empty((len(images), channels, *self.size), images.dtype)
        for number, image in enumerate(images):
            part = image[:, top[number] : top[number] + tall[number], left[number] : left[number] + wide[number]]
            out[number] = resize(part, self.size)
        return out


@dataclass(frozen=True)
class Normalize(ImageTransform):
    """Normalizes each channel to (x * scale - mean) / std, as float32.

    Args:
        mean: the mean of each channel, or one for all.
        std: the standard deviation of each channel, or one for all.
        scale: a factor that is applied first; 1/255 maps uint8 to the range 0 to 1.

    >>> from phlox.data import Draws
    >>> images = np.full((1, 1, 1, 1), 255, np.uint8)
    >>> Normalize(0.5, 0.5, scale=1 / 255)(images, Draws(0, 0, np.array([0]))).item()
    1.0
    """

    mean: float | Sequence[float] = 0.0
    std: float | Sequence[float] = 1.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not np.all(np.asarray(self.std) > 0.0):
            raise DataError(f"{self}: std must be positive")

    def apply(self, images: Images, draws: Draws) -> Images:
        std = np.asarray(self.std, np.float64)
        factor, offset = self.scale / std, -np.asarray(self.mean, np.float64) / std
        for name, values in (("mean", self.mean), ("std", self.std)):
            if np.ndim(values) and np.shape(values) != (images.shape[1],):
                raise DataError(f"Normalize: {np.size(values)} values of {name} for {images.shape[1]} channels")
        factor, offset = (np.reshape(np.float32(x), (-1, 1, 1)) for x in (factor, offset))
        out = images * factor
        out += offset
        return cast("Images", out)

    @staticmethod
    def of(images: Images, scale: float = 1.0) -> Normalize:
        """Make the transform that gives images, [n, channels, height, width], mean 0 and standard deviation 1."""
        values = np.asarray(images, np.float64) * scale
        return Normalize(values.mean(axis=(0, 2, 3)).tolist(), values.std(axis=(0, 2, 3)).tolist(), scale)


@dataclass(frozen=True)
class ColorJitter(ImageTransform):
    """Changes brightness, contrast, saturation and hue of each image at random.

    Args:
        brightness: each image is multiplied by a factor from 1 - brightness to 1 + brightness.
        contrast: the difference of each image from its mean grey is multiplied by such a factor.
        saturation: the difference of each image from its grey image is multiplied by such a factor; for three channels.
        hue: the hue is shifted by at most this fraction of the colour circle, up to 0.5; for three channels.

    Pixels are clipped to 0 to 255 (integers) or 0 to 1 (floats).

    >>> from phlox.data import Draws
    >>> ColorJitter(brightness=0.2, hue=0.1)(np.ones((1, 3, 4, 4)), Draws(0, 0, np.array([0]))).shape
    (1, 3, 4, 4)
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def __post_init__(self) -> None:
        if not (min(self.brightness, self.contrast, self.saturation) >= 0.0 and 0.0 <= self.hue <= 0.5):
            raise DataError(f"{self}: give numbers of at least 0, and a hue of at most 0.5")

    def apply(self, images: Images, draws: Draws) -> Images:
        if (self.saturation or self.hue) and images.shape[1] != 3:
            raise DataError(
                f"ColorJitter: saturation and hue are for 3 channels, and these images have {images.shape[1]}"
            )
        is_integer = images.dtype.kind in "iu"
        x = images.astype(np.float32) / np.float32(255.0 if is_integer else 1.0)

        def factor(name: str, strength: float) -> npt.NDArray[np.float32]:
            return draws.uniform(name, max(0.0, 1.0 - strength), 1.0 + strength).reshape(-1, 1, 1, 1)

        if self.brightness:
            x = np.clip(x * factor("brightness", self.brightness), 0.0, 1.0)
        if self.contrast:
            mean = _grey(x).mean(axis=(1, 2, 3), keepdims=True)
            x = np.clip(mean + (x - mean) * factor("contrast", self.contrast), 0.0, 1.0)
        if self.saturation:
            grey = _grey(x)
            x = np.clip(grey + (x - grey) * factor("saturation", self.saturation), 0.0, 1.0)
        if self.hue:
            x = _rotate_hue(x, draws.uniform("hue", -self.hue, self.hue).reshape(-1, 1, 1))
        return as_dtype(x * 255.0, images.dtype) if is_integer else x.astype(images.dtype)


def _grey(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The luma of Rec. 601, `[n, 1, height, width]`; without three channels, the mean of the channels."""
    if x.shape[1] != 3:
        return x.mean(axis=1, keepdims=True)
    return (x * np.array([0.299, 0.587, 0.114], np.float32).reshape(3, 1, 1)).sum(axis=1, keepdims=True)


def _rotate_hue(x: npt.NDArray[np.float32], turn: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Rotate the hue by `turn`, a fraction of the colour circle: to HSV and back."""
    high, low = x.max(axis=1), x.min(axis=1)
    spread = high - low
    safe = np.where(spread == 0.0, np.float32(1.0), spread)
    red, green, blue = ((high - x[:, i]) / safe for i in range(3))
    first: AnyArray = np.equal(high, x[:, 0])
    second: AnyArray = np.equal(high, x[:, 1])
    sector = np.empty_like(high)
    np.copyto(sector, 4.0 + green - red)
    np.copyto(sector, 2.0 + red - blue, where=second)
    np.copyto(sector, blue - green, where=first)
    hue = np.asarray((sector / 6.0 + turn) % 1.0, np.float32)
    channels: list[AnyArray] = []
    for offset in (5.0, 3.0, 1.0):
        position = (offset + hue * 6.0) % 6.0
        channels.append(high - spread * np.clip(np.minimum(position, 4.0 - position), 0.0, 1.0))
    return np.where((spread == 0.0)[:, None], x, np.stack(channels, axis=1)).astype(np.float32)


def _check_probabilities(transform: Any, *values: float) -> None:
    if not all(0.0 <= value <= 1.0 for value in values):
        raise DataError(f"{transform}: give probabilities from 0 to 1")
