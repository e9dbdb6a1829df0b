"""Augmentation of images, against PyTorch, Python's colorsys and plain loops; each image by the number of its row."""

from __future__ import annotations

import colorsys
from typing import Any

import numpy as np
import pytest

from phlox.data import (
    CenterCrop,
    ColorJitter,
    CutMix,
    Draws,
    Mixup,
    Normalize,
    RandomAffine,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    Resize,
)  # fmt: skip
from phlox.data.images import _rotate_hue, resize
from phlox.data.loader import Loader
from phlox.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 3, 10, 14)).astype(np.uint8)
LABELS = np.arange(12) % 4
DRAWS = Draws(3, 1, np.arange(12), 12)

RANDOM: dict[str, Any] = {
    "affine": RandomAffine(2.0, 30.0),
    "flip": RandomFlip(0.5, 0.5), "crop": RandomCrop((8, 8), padding=2), "resized crop": RandomResizedCrop((6, 5)),
    "colour": ColorJitter(0.3, 0.3, 0.3, 0.2), "mixup": Mixup(4), "cutmix": CutMix(4),
}  # fmt: skip


@pytest.mark.parametrize("name", RANDOM)
def test_what_happens_to_an_image_depends_on_its_row_alone(name: str) -> None:
    images = IMAGES.astype(np.float32) if name == "affine" else IMAGES
    source = {"image": images, "label": LABELS}
    whole = next(Loader(source, 12, transform=RANDOM[name]).epoch(1))
    small = list(Loader(source, 5, transform=RANDOM[name]).epoch(1))
    for key in ("image", "label"):
        np.testing.assert_array_equal(whole[key], np.concatenate([batch[key] for batch in small]))
    assert whole["image"].dtype == images.dtype
    other = next(Loader(source, 12, transform=RANDOM[name]).epoch(2))["image"]
    assert (whole["image"] != other).mean() > 0.2
    assert (source["image"] == IMAGES).all()  # nothing is written to


@pytest.mark.parametrize("size", [(5, 7), (20, 28), (10, 14), (3, 29), (1, 1)])
@pytest.mark.parametrize("antialias", [True, False])
def test_resizing_is_pytorchs(size: tuple[int, int], antialias: bool) -> None:
    torch = pytest.importorskip("torch")
    images = IMAGES.astype(np.float64)
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(images), size, mode="bilinear", align_corners=False, antialias=antialias
    ).numpy()
    np.testing.assert_allclose(resize(images, size, antialias), expected, atol=1e-9)
    whole = Resize(size, antialias)(IMAGES, DRAWS)
    assert whole.dtype == np.uint8 and np.abs(whole - expected).max() <= 0.5 + 1e-3


def test_flips() -> None:
    found = RandomFlip(0.5, 0.25)(IMAGES, Draws(0, 0, np.arange(12)))
    kinds = [np.array(x) for x in (IMAGES, IMAGES[..., ::-1], IMAGES[..., ::-1, :], IMAGES[..., ::-1, ::-1])]
    which = [[bool((found[i] == kind[i]).all()) for kind in kinds] for i in range(12)]
    assert all(sum(row) == 1 for row in which) and len({row.index(True) for row in which}) > 1
    many = Draws(0, 0, np.arange(4000))
    assert abs(many.happens("horizontal", 0.5).mean() - 0.5) < 0.04


def test_padding_is_no_less_than_none() -> None:
    with pytest.raises(DataError, match=r"padding is -1; give a number of pixels, 0 or more"):
        RandomCrop((8, 9), padding=-1)(IMAGES, DRAWS)


def test_crops_are_parts_of_the_image() -> None:
    found = RandomCrop((8, 9), padding=1, value=7)(IMAGES, DRAWS)
    padded = np.pad(IMAGES, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=7)
    places = set()
    for i in range(12):
        fits = [(y, x) for y in range(5) for x in range(8) if (padded[i, :, y : y + 8, x : x + 9] == found[i]).all()]
        assert len(fits) == 1
        places.add(fits[0])
    assert len(places) > 4
    np.testing.assert_array_equal(CenterCrop((4, 6))(IMAGES, DRAWS), IMAGES[:, :, 3:7, 4:10])
    flat = np.full((50, 1, 20, 30), 3.0, np.float32)
    np.testing.assert_allclose(RandomResizedCrop((4, 4))(flat, Draws(0, 0, np.arange(50))), 3.0, rtol=1e-6)


def test_normalising() -> None:
    one = Normalize.of(IMAGES, 1 / 255)
    found = one(IMAGES, DRAWS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.mean(axis=(0, 2, 3)), 0.0, atol=1e-5)
    np.testing.assert_allclose(found.std(axis=(0, 2, 3)), 1.0, atol=1e-5)


def test_hue_is_that_of_colorsys() -> None:
    x = np.random.default_rng(1).random((2, 3, 4, 4)).astype(np.float32)
    x[0, :, 0, 0] = 0.5  # grey has no hue
    turn = np.array([0.3, -0.45], np.float32)
    found = _rotate_hue(x, turn.reshape(-1, 1, 1))
    for n, y, z in np.ndindex(2, 4, 4):
        h, s, v = colorsys.rgb_to_hsv(*map(float, x[n, :, y, z]))
        np.testing.assert_allclose(found[n, :, y, z], colorsys.hsv_to_rgb((h + float(turn[n])) % 1.0, s, v), atol=1e-5)


def test_colours_by_hand() -> None:
    x = np.random.default_rng(1).random((6, 3, 4, 4)).astype(np.float32)
    draws = Draws(0, 0, np.arange(6))
    factor = draws.uniform("brightness", 0.6, 1.4).reshape(-1, 1, 1, 1)
    np.testing.assert_allclose(ColorJitter(brightness=0.4)(x, draws), np.clip(x * factor, 0, 1), atol=1e-6)
    grey = 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]
    factor = draws.uniform("saturation", 0.5, 1.5).reshape(-1, 1, 1, 1)
    np.testing.assert_allclose(
        ColorJitter(saturation=0.5)(x, draws), np.clip(grey + (x - grey) * factor, 0, 1), atol=1e-6
    )
    mean = grey.mean(axis=(1, 2, 3), keepdims=True)
    factor = draws.uniform("contrast", 0.5, 1.5).reshape(-1, 1, 1, 1)
    np.testing.assert_allclose(
        ColorJitter(contrast=0.5)(x, draws), np.clip(mean + (x - mean) * factor, 0, 1), atol=1e-6
    )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: RandomFlip()({"x": LABELS}, DRAWS), "no array of the batch has four axes (['x'] (12,))"),
        (lambda: RandomFlip(1.5), "probabilities"),
        (lambda: RandomCrop((30, 3))(IMAGES, DRAWS), "images of 10x14 have no part of 30x3"),
        (lambda: Normalize([0.0, 0.0], 1.0)(IMAGES, DRAWS), "2 values of mean for 3 channels"),
        (lambda: Normalize(0.0, 0.0), "std must be positive"),
        (lambda: ColorJitter(hue=0.1)(IMAGES[:, :1], DRAWS), "for 3 channels, and these images have 1"),
        (lambda: ColorJitter(-1.0), "at least 0"),
        (lambda: RandomResizedCrop((2, 2), scale=(0.0, 1.0)), "0 < scale[0]"),
        (lambda: Mixup(1), "at least 2 classes"),
        (
            lambda: next(Loader((IMAGES, LABELS), 12, transform=Mixup(3)).epoch()),
            "label 3 is out of range; num_classes is 3",
        ),
        (lambda: next(Loader((IMAGES, LABELS, LABELS), 12, transform=Mixup(4)).epoch()), "name the labels with label="),
        (lambda: Mixup(4)((IMAGES, LABELS), DRAWS), "belong to no loader"),
    ],
)
def test_what_cannot_be_done(call: Any, said: str) -> None:
    with pytest.raises(DataError) as error:
        call()
    assert said in str(error.value)
