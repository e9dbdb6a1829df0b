"""A folder of images, one subfolder a class."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from phlox.data.images import resize
from phlox.data.order import Rows, check_number
from phlox.data.rows import RowSource
from phlox.data.structure import stack
from phlox.errors import DataError, ExtraNotInstalledError

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


class ImageFolder(RowSource):
    """A source of the images in a folder, whose subfolders are the classes; without subfolders there are no labels.

    A row is `{"image": uint8 [channels, height, width], "label": int64}`. Pillow decodes an image when it is read, so a
    loader with `workers` decodes several at a time. Pixels are those of Pillow's `convert`, as in torchvision's
    `ImageFolder`, except for pixels of 16 bits: `convert` clips them to white, and here they keep their upper 8 bits,
    as in Pillow's colours of 16 bits and in torchvision's `ToDtype(uint8, scale=True)`.

    Args:
        path: the path of the folder.
        size: the height and width to which every image is resized; if not given, all must have the same size.
        channels: 3 for colour, 1 for grey.
        upright: whether a photo is turned upright by its EXIF orientation; by default pixels stay as they are stored,
            as in torchvision's `ImageFolder`.

    Attributes:
        classes: the names of the subfolders, in alphabetical order; label i is `classes[i]`.
        files: the path of each row.

    Raises:
        DataError: there is no such folder, or no image in it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        size: tuple[int, int] | None = None,
        channels: int = 3,
        upright: bool = False,
    ) -> None:
        self.path, self.size, self.channels, self.upright = Path(path), size, channels, upright
        if channels not in (1, 3):
            raise DataError(f"ImageFolder: channels is {channels}; give 3 for colour, or 1 for grey")
        if size is not None:
            if not isinstance(cast("Any", size), (tuple, list)) or len(size) != 2:
                raise DataError(f"ImageFolder: size is {size!r}; give a height and a width, such as (224, 224)")
            for name, length in zip(("height", "width"), size, strict=True):
                check_number(f"ImageFolder: the {name} of size", length, 1)
        if not self.path.is_dir():
            raise DataError(f"{self.path}: there is no such folder; check the path")
        folders = sorted(
            entry.name for entry in self.path.iterdir() if entry.is_dir() and not entry.name.startswith(".")
        )
        self.classes: tuple[str, ...] = tuple(folders)
        self.files: list[Path] = []
        labels: list[int] = []
        for label, folder in enumerate(folders or [""]):
            paths = sorted(
                f for f in (self.path / folder).rglob("*" if folders else "*.*") if f.suffix.lower() in _SUFFIXES
            )
            self.files += paths
            labels += [label] * len(paths)
        self.labels: npt.NDArray[np.int64] | None = np.array(labels, np.int64) if folders else None
        if not self.files:
            raise DataError(f"{self.path}: there is no image ({', '.join(_SUFFIXES)}) in it or in its subfolders")

    def __len__(self) -> int:
        return len(self.files)

    def take(self, rows: Rows, /) -> dict[str, npt.NDArray[Any]]:
        batch: dict[str, npt.NDArray[Any]] = {"image": stack([self._decode(self.files[int(row)]) for row in rows])}
        if self.labels is not None:
            batch["label"] = self.labels[rows]
        return batch

    def _decode(self, path: Path) -> npt.NDArray[np.uint8]:
        try:
            from PIL import Image, ImageOps
        except ImportError as error:
            raise ExtraNotInstalledError(
                f"{path}: reading images needs Pillow; install Phlox with the extra 'data'"
            ) from error
        try:
            with Image.open(path) as image:
                narrowed = of_8_bits(ImageOps.exif_transpose(image) if self.upright else image, image.format)
                pixels = np.asarray(narrowed.convert("RGB" if self.channels == 3 else "L"))
        except Exception as error:  # a damaged image raises whatever the decoder meets
            raise DataError(f"{path}: cannot be read as an image ({error or type(error).__name__})") from error
        pixels = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[None]
        return np.ascontiguousarray(pixels if self.size is None else resize(pixels, self.size))


def of_8_bits(image: Any, format: str | None) -> Any:
    """A Pillow image with 8 bits for each value: of 16 bits, which `convert` would clip, the upper 8.

    Args:
        image: the image.
        format: the format of its file.

    Raises:
        ValueError: its pixels are fractions, or have 32 bits.
    """
    if image.mode == "F":
        raise ValueError("its pixels are fractions of unknown range; save it with 8 or 16 bits")
    if not image.mode.startswith("I"):
        return image
    from PIL import Image

    pixels = np.asarray(image).astype(np.int64)
    # A PNG or PGM of 16 bits is read with 16 bits or 32, depending on the version of Pillow.
    if image.mode.startswith("I;16") or format in ("PNG", "PPM"):
        return Image.fromarray((pixels >> 8).astype(np.uint8))
    if pixels.min() < 0 or pixels.max() > 255:
        raise ValueError(f"its pixels have 32 bits, from {pixels.min()} to {pixels.max()}; save it with 8 or 16 bits")
    return image
