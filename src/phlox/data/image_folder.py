"""A folder of images, one subfolder a class."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from phlox.data.images import resized
from phlox.data.order import Rows
from phlox.data.sources import RowSource
from phlox.data.structure import stack
from phlox.errors import DataError, ExtraNotInstalledError

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


class ImageFolder(RowSource):
    """A source of the images in a folder, whose subfolders are the classes; without subfolders there are no labels.

    A row is `{"image": uint8 [channels, height, width], "label": int64}`. Pillow decodes an image when it is read, so a
    loader with `workers` decodes several at a time.

    Args:
        path: the path of the folder.
        size: the height and width to which every image is resized; if not given, all must have the same size.
        channels: 3 for colour, 1 for grey.

    Attributes:
        classes: the names of the subfolders, in alphabetical order; label i is `classes[i]`.
        files: the path of each row.

    Raises:
        DataError: there is no such folder, or no image in it.
    """

    def __init__(self, path: str | os.PathLike[str], *, size: tuple[int, int] | None = None, channels: int = 3) -> None:
        self.path, self.size, self.channels = Path(path), size, channels
        if channels not in (1, 3):
            raise DataError(f"ImageFolder: channels is {channels}; give 3 for colour, or 1 for grey")
        if not self.path.is_dir():
            raise DataError(f"{self.path}: there is no such folder; check the path")
        folders = sorted(
            entry.name for entry in self.path.iterdir() if entry.is_dir() and not entry.name.startswith(".")
        )
        self.classes: tuple[str, ...] = tuple(folders)
        self.files: list[Path] = []
        labels: list[int] = []
        for label, folder in enumerate(folders or [""]):
            found = sorted(
                f for f in (self.path / folder).rglob("*" if folders else "*.*") if f.suffix.lower() in _SUFFIXES
            )
            self.files += found
            labels += [label] * len(found)
        self.labels: npt.NDArray[np.int64] | None = np.array(labels, np.int64) if folders else None
        if not self.files:
            raise DataError(f"{self.path}: there is no image ({', '.join(_SUFFIXES)}) in it or in its subfolders")

    def __len__(self) -> int:
        return len(self.files)

    def take(self, rows: Rows, /) -> dict[str, npt.NDArray[Any]]:
        batch: dict[str, npt.NDArray[Any]] = {"image": stack([self._decoded(self.files[int(row)]) for row in rows])}
        if self.labels is not None:
            batch["label"] = self.labels[rows]
        return batch

    def _decoded(self, path: Path) -> npt.NDArray[np.uint8]:
        try:
            from PIL import Image
        except ImportError as error:
            raise ExtraNotInstalledError(f"{path}: reading images needs Pillow; pip install 'phlox[data]'") from error
        try:
            with Image.open(path) as image:
                pixels = np.asarray(image.convert("RGB" if self.channels == 3 else "L"))
        except Exception as error:  # a damaged image raises whatever the decoder meets
            raise DataError(f"{path}: cannot be read as an image ({error or type(error).__name__})") from error
        pixels = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[None]
        return np.ascontiguousarray(pixels if self.size is None else resized(pixels, self.size))
