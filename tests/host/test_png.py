"""Arrays as PNG pictures: read back by an imaging library."""

from __future__ import annotations

import io
import math
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

from phlox.errors import DataError
from phlox.host.png import heat_map, image, png


@pytest.mark.parametrize(("image", "expected"), [
    (np.array([[0, 128], [255, 7]], np.uint8), [[0, 128], [255, 7]]),
    (np.array([[0.0, 0.5], [1.0, 0.1]]), [[0, 128], [255, 26]]),
    (np.array([[-1.0, 0.0], [1.0, math.nan]]), [[0, 128], [255, 128]]),
    (np.array([[True, False]]), [[255, 0]]),
    (np.array([[[1], [2]]], np.uint8), [[1, 2]]),
    (np.arange(12, dtype=np.uint8).reshape(2, 2, 3), np.arange(12).reshape(2, 2, 3).tolist()),
    (np.arange(12, dtype=np.uint8).reshape(3, 2, 2), np.arange(12).reshape(3, 2, 2).transpose(1, 2, 0).tolist()),
    (np.arange(16, dtype=np.int64).reshape(2, 2, 4), np.arange(16).reshape(2, 2, 4).tolist()),
    (np.full((320, 4), 9, np.uint8), [[9, 9]] * 160),
], ids=range(9))  # fmt: skip
def test_images(image: Any, expected: Any) -> None:
    with Image.open(io.BytesIO(png(image))) as read:
        assert np.asarray(read).tolist() == expected


@pytest.mark.parametrize("shape", [(4,), (2, 2, 2), (0, 4), (1, 2, 3, 4)])
def test_what_is_no_image(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=re.escape(f"an image of shape {shape} cannot be shown; give [H, W]")):
        png(np.zeros(shape))


def test_a_heat_map() -> None:
    with Image.open(io.BytesIO(heat_map([[0.0, 2.0, -2.0], [math.nan, math.inf, 1.0]]))) as read:
        pixels = np.asarray(read)
    assert pixels.shape == (2, 3, 4)
    assert pixels[0, 0, 3] == 0 and pixels[0, 1, 3] == pixels[0, 2, 3] == 255 and pixels[1, 2, 3] in range(120, 136)
    assert pixels[0, 1, 2] > pixels[0, 1, 0] and pixels[0, 2, 0] > pixels[0, 2, 2], "blue is above zero"
    assert pixels[1, 0].tolist() == pixels[1, 1].tolist() and pixels[1, 0, 3] == 255


@pytest.mark.parametrize("values", [
    np.zeros((3, 3)), np.full((2, 2), math.nan), np.zeros((500, 2)), np.full((2, 2), 1e308), np.ones((2, 2), bool),
    np.random.default_rng(0).normal(size=(300, 1000)).astype(np.float16),
], ids=range(6))  # fmt: skip
def test_heat_maps_are_small(values: Any) -> None:
    data = heat_map(values)
    with Image.open(io.BytesIO(data)) as read:
        assert max(read.size) <= 64
    assert len(data) < 8000 and image(data, 64, 64).startswith('<img alt="" width="64"')
