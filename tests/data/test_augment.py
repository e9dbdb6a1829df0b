from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import affine_transform

from phlox.data import RandomAffine, load_digits
from phlox.errors import DataError

IMAGES = (load_digits().images[:40] / 16).astype(np.float32)[:, None]


def test_nothing_to_do_leaves_the_images_as_they_are() -> None:
    (same,) = RandomAffine(shift=0.0, turn=0.0, stretch=0.0)(3, (IMAGES,))
    np.testing.assert_array_equal(same, IMAGES)
    assert same.dtype == np.float32


def test_against_scipy() -> None:
    distort = RandomAffine(shift=1.2, turn=25.0, stretch=0.2, seed=5)
    (ours,) = distort(7, (IMAGES,))
    draw = distort._draw(7, len(IMAGES)).reshape(5, -1).astype(np.float64)
    for image, got, (angle, taller, wider, down, right) in zip(IMAGES[:, 0], ours[:, 0], draw.T, strict=True):
        turn = np.deg2rad(25.0) * angle
        matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        matrix *= np.array([[1 + 0.2 * taller], [1 + 0.2 * wider]])
        offset = np.array([3.5, 3.5]) - matrix @ [3.5, 3.5] + [1.2 * down, 1.2 * right]
        expected = affine_transform(
            image.astype(np.float64), matrix, offset.tolist(), order=1, mode="grid-constant"
        )  # fmt: skip
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_a_shift_far_out_leaves_paper() -> None:
    (gone,) = RandomAffine(shift=1e6, turn=0.0, stretch=0.0)(0, (IMAGES[:8],))
    assert not gone.any()


def test_depends_on_seed_and_step_alone() -> None:
    labels = np.arange(len(IMAGES))
    first, kept = RandomAffine(seed=1)(4, (IMAGES, labels))
    assert kept is labels
    np.testing.assert_array_equal(first, RandomAffine(seed=1)(4, (IMAGES,))[0])
    assert (first != RandomAffine(seed=1)(5, (IMAGES,))[0]).any()
    assert (first != RandomAffine(seed=2)(4, (IMAGES,))[0]).any()


@pytest.mark.parametrize("wrong", [
    {"shift": -1.0}, {"shift": float("nan")}, {"turn": 181.0}, {"stretch": 1.0}, {"seed": -1}, {"seed": 2**64},
])  # fmt: skip
def test_numbers_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(DataError, match="give a"):
        RandomAffine(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("images", [np.zeros((4, 8, 8), np.float32), np.zeros((4, 1, 8, 8), np.uint8)])
def test_arrays_that_are_no_images(images: np.ndarray) -> None:
    with pytest.raises(DataError, match="n, channels, height, width"):
        RandomAffine()(0, (images,))
