"""Folders of images, made by Pillow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from phlox.data import ImageFolder, Loader
from phlox.errors import DataError

Image = pytest.importorskip("PIL.Image")


def made(path: Path, size: tuple[int, int] = (6, 4), seed: int = 0) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3)).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return pixels


def test_classes_are_subfolders(tmp_path: Path) -> None:
    pixels = [made(tmp_path / kind / f"{i}.png", seed=i) for i, kind in enumerate(["cat", "cat", "dog", "zebra"])]
    folder = ImageFolder(tmp_path)
    assert folder.classes == ("cat", "dog", "zebra") and len(folder) == 4
    (batch,) = Loader(tmp_path, 4, workers=2)
    assert batch["label"].tolist() == [0, 0, 1, 2] and batch["image"].dtype == np.uint8
    np.testing.assert_array_equal(batch["image"], np.stack(pixels).transpose(0, 3, 1, 2))
    grey = ImageFolder(tmp_path, channels=1, size=(3, 3))[np.array([1])]["image"]
    assert grey.shape == (1, 1, 3, 3)


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_pixels_of_16_bits_keep_their_upper_8(name: str, tmp_path: Path) -> None:
    grey = (np.arange(12) * 5_000).astype(np.uint16).reshape(3, 4)
    if name == "a.pgm":  # which older versions of Pillow read, and cannot write
        (tmp_path / name).write_bytes(b"P5\n4 3\n65535\n" + grey.astype(">u2").tobytes())
    else:
        Image.fromarray(grey).save(tmp_path / name)
    for upright in (False, True):
        for channels in (1, 3):
            image = ImageFolder(tmp_path, channels=channels, upright=upright)[0]["image"]
            assert image.shape == (channels, 3, 4) and (image == grey >> 8).all()


def test_pixels_whose_range_is_not_known(tmp_path: Path) -> None:
    for name, pixels, said in (
        ("fractions", np.ones((2, 2), np.float32), "its pixels are fractions"),
        ("large", np.full((2, 2), 70_000, np.int32), "its pixels have 32 bits, from 70000 to 70000"),
    ):
        Image.fromarray(pixels).save(tmp_path / f"{name}.tif")
        with pytest.raises(DataError, match=rf"{name}\.tif: cannot be read as an image \({said}.*save it with 8 or 16"):
            ImageFolder(tmp_path)[0]
        (tmp_path / f"{name}.tif").unlink()
    Image.fromarray(np.full((2, 2), 70, np.int32)).save(tmp_path / "small.tif")
    assert (ImageFolder(tmp_path)[0]["image"] == 70).all()


def test_photos_are_turned_upright_if_asked(tmp_path: Path) -> None:
    pixels, exif = np.random.default_rng(0).integers(0, 256, (3, 4, 3), np.uint8), Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(ImageFolder(tmp_path)[0]["image"], pixels.transpose(2, 0, 1))
    upright = ImageFolder(tmp_path, upright=True)[0]["image"]
    np.testing.assert_array_equal(upright, np.rot90(pixels, -1).transpose(2, 0, 1))


def test_without_subfolders_there_are_no_labels(tmp_path: Path) -> None:
    made(tmp_path / "a.png")
    assert ImageFolder(tmp_path)[np.array([0])].keys() == {"image"}


def test_what_is_wrong_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no image"):
        ImageFolder(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        ImageFolder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="channels is 2"):
        ImageFolder(tmp_path, channels=2)
    made(tmp_path / "a.png")
    made(tmp_path / "b.png", (5, 5))
    (tmp_path / "c.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"row 1 of the batch has shape \(3, 5, 5\)"):
        list(Loader(tmp_path, 2))
    with pytest.raises(DataError, match=r"row 2 of the source cannot be read.*c\.png: cannot be read as an image"):
        list(Loader(ImageFolder(tmp_path, size=(4, 4)), 3))
