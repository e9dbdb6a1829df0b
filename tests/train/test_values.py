"""Histograms and images, and what loggers' rows have of other values: against NumPy, Pillow, and every engine."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import zlib
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from PIL import Image as PillowImage

import phlox as px
from phlox.errors import RecordError, RunError
from phlox.train.events import kept, plain
from phlox.train.values import Histogram, Image, from_plain, row_values

DRAWS = np.random.default_rng(0).normal(3.0, 2.0, (40, 25))


@pytest.mark.parametrize(
    "values",
    [
        DRAWS, DRAWS.astype(np.float32), np.arange(12).reshape(3, 4), DRAWS > 3.0, [1.0, 2.0], np.full(5, 7.0),
        np.array([1e30, -1e30]), np.array(2.5),
    ],
    ids=["f64", "f32", "int", "bool", "list", "equal", "large", "one"],
)  # fmt: skip
def test_a_histogram_is_numpys(values: Any) -> None:
    found, array = Histogram(values, bins=7), np.asarray(values, np.float64).reshape(-1)
    counts, edges = np.histogram(array, 7) if array.min() < array.max() else (found.counts, found.edges)
    assert found.counts.tolist() == counts.tolist() and found.size == array.size == found.counts.sum()
    np.testing.assert_allclose(found.edges, edges, rtol=1e-12, atol=1e-300)
    moments = {"mean": array.mean(), "std": array.std(), "min": array.min(), "max": array.max()}
    assert found.numbers() == pytest.approx(moments, rel=1e-12, abs=1e-15)


def test_a_histogram_of_values_at_the_edge_of_what_there_is() -> None:
    found = Histogram(np.array([np.nan, np.inf, -np.inf, 1.0, 2.0], np.float32), bins=2)
    assert found.counts.tolist() == [1, 1] and (found.size, found.nonfinite, found.mean) == (2, 3, 1.5)
    assert found.numbers()["nonfinite"] == 3
    for nothing in (np.zeros((0, 3)), [math.nan]):
        none = Histogram(nothing, bins=2)
        assert none.counts.tolist() == [0, 0] and math.isnan(none.mean) and np.diff(none.edges).min() > 0.0
    widest = Histogram(np.array([1.7e308, -1.7e308]), bins=3)
    assert widest.counts.tolist() == [1, 0, 1] and widest.std == pytest.approx(1.7e308) and widest.mean == 0.0


@pytest.mark.parametrize("one", [Histogram(DRAWS), Histogram([math.nan, 1.0]), Image(np.eye(3)), Image(DRAWS)])
def test_they_are_what_they_were_after_a_checkpoint(one: Any) -> None:
    again = type(one).from_plain(json.loads(json.dumps(one.to_plain())))
    if isinstance(one, Image):
        assert again.png == one.png
    else:
        np.testing.assert_allclose(again.edges, one.edges)
        assert repr(again.to_plain()) == repr(one.to_plain())


@pytest.mark.parametrize(("kind", "parts"), [
    ("Image", {"shape": [2, 2, 1], "pixels": "AAAA"}), ("Image", {"shape": [1, 1, 1], "pixels": "?"}), ("Image", {}),
    ("Image", {"shape": [1, 1, 1], "pixels": base64.b64encode(zlib.compress(bytes(1 << 20))[:20]).decode()[:-4]}),
    ("Histogram", {"counts": [1]}), ("Histogram", {"range": [0.0, 1.0], "counts": "x"}), ("Histogram", None),
])  # fmt: skip
def test_what_a_damaged_checkpoint_has(kind: str, parts: Any) -> None:
    try:
        found = from_plain({f"phlox.train.{kind}": parts})
    except RecordError as error:
        assert f"the record has a damaged phlox.train.{kind}" in str(error)
    else:
        assert found.pixels.size == 1  # and no more of it was unpacked


def test_an_image_is_a_png_of_all_its_pixels() -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (3, 200, 170), np.uint8)  # larger than a page would show
    for given in (pixels, pixels.transpose(1, 2, 0), px.tensor(pixels / 255.0, device="torch"), torch.tensor(pixels)):
        with PillowImage.open(io.BytesIO(Image(given).png)) as read:
            assert np.array_equal(np.asarray(read), pixels.transpose(1, 2, 0))


@pytest.mark.parametrize("make", [lambda x: x, lambda x: x[:, None], lambda x: x[..., None], px.tensor])
def test_a_grid_of_images(make: Callable[[Any], Any]) -> None:
    images = np.arange(5 * 2 * 6, dtype=np.uint8).reshape(5, 2, 6)
    page = Image.grid(make(images), columns=2).pixels[..., 0]
    expected = np.zeros((3 * 3 - 1, 2 * 7 - 1), np.uint8)
    for number, image in enumerate(images):
        expected[3 * (number // 2) :, 7 * (number % 2) :][:2, :6] = image
    assert np.array_equal(page, expected)
    wide = Image.grid(np.array([np.zeros((2, 2)), np.full((2, 2), 4.0)])).pixels[..., 0]
    assert wide.tolist() == [[0, 0, 0, 255, 255]] * 2  # stretched together


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Histogram("text"), "Histogram: a str is no array of numbers"),
    (lambda: Histogram(np.array(["a"])), "Histogram: a ndarray of <U1 is no array of numbers"),
    (lambda: Histogram([[1.0], [1.0, 2.0]]), "Histogram: a list is no array of numbers"),
    (lambda: Histogram([1.0], bins=0), "Histogram: bins is 0; give a whole number of at least 1"),
    (lambda: Image(np.zeros(3)), "Image: an image of shape (3,) cannot be shown; give [H, W]"),
    (lambda: Image(np.zeros((2, 1, 4, 4))), "Image.grid(images) makes one image of several"),
    (lambda: Image(None), "Image: a NoneType is no array of numbers"),
    (lambda: Image.grid(np.zeros((4, 4))), "Image.grid: an array of shape (4, 4) are no images"),
])  # fmt: skip
def test_what_is_none(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(RunError, match=re.escape(message)):
        make()


SCALARS: dict[str, Any] = {
    "int": 3, "float": 0.5, "bool": True, "large": 2**70, "NumPy f64": np.float64(0.5), "NumPy f32": np.float32(0.5),
    "NumPy i64": np.int64(3), "NumPy bool": np.bool_(True), "NumPy array": np.array(0.5),
    "bf16": ml_dtypes.bfloat16(0.5), "JAX": jnp.float32(0.5), "JAX bf16": jnp.array(0.5, jnp.bfloat16),
    "PyTorch": torch.tensor(0.5, requires_grad=True), "PyTorch bf16": torch.tensor(0.5, dtype=torch.bfloat16),
    **{f"{kind} on {engine}": px.tensor(value, device=engine) for engine in ("numpy", "jax", "torch")
       for kind, value in {"Float": 0.5, "Int": 3, "Bool": True}.items()},
}  # fmt: skip


@pytest.mark.parametrize("name", SCALARS)
def test_a_number_of_any_engine_is_a_number(name: str) -> None:
    value = SCALARS[name]
    [(key, found)] = row_values("x", value).items()
    expected = {"large": 2**70, "int": 3, "Int": 3, "NumPy i64": 3}.get(name.partition(" on ")[0])
    expected = expected if expected is not None else True if "bool" in name.lower() else 0.5
    assert key == "x" and found == expected and isinstance(found, (bool, int, float))
    assert kept({"x": value}) == {"x": expected} and type(plain(value)) is type(expected)


def test_arrays_dicts_and_lists() -> None:
    matrix = np.arange(6.0).reshape(2, 3)
    entries = {f"x/{i}/{j}": matrix[i, j] for i in range(2) for j in range(3)}
    for given in (matrix, matrix.tolist(), jnp.asarray(matrix), torch.tensor(matrix), px.tensor(matrix, device="jax")):
        assert row_values("x", given) == entries and kept({"x": given}) == {"x": matrix.tolist()}
    assert row_values("x", {"a": [1, 2], "b": np.float32(0.5)}) == {"x/a/0": 1, "x/a/1": 2, "x/b": 0.5}
    image, histogram = Image(np.eye(2)), Histogram([1.0])
    assert row_values("x", [image, {"h": histogram}]) == {"x/0": image, "x/1/h": histogram}
    assert len(row_values("x", np.zeros(100))) == 100
    [(name, large)] = row_values("x", px.tensor(np.arange(101.0), device="torch")).items()
    assert name == "x" and isinstance(large, Histogram) and (large.size, large.max) == (101, 100.0)
    extra = json.loads(json.dumps(kept({"large": np.zeros(101), "pair": [image, 1], "text": "a"})))
    again = {name: from_plain(value) for name, value in extra.items()}
    assert list(again) == ["large", "pair/0", "pair/1"] and again["pair/1"] == from_plain({"a": 1})["a"] == 1
    assert again["large"].size == 101 and again["pair/0"].png == image.png


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("text", "'x' is a str"), (None, "'x' is a NoneType"), (1j, "'x' is a complex"),
        (Fraction(1, 2), "'x' is a Fraction"), (np.array([1j]), "'x' is a ndarray of complex128"),
        (np.array([object()]), "'x' is a ndarray of object"), ({"a": {"b": "c"}}, "'x/a/b' is a str"),
        ([1.0, "c"], "'x/1' is a str"), (np.datetime64("2020-01-01"), "'x' is a datetime64 of datetime64[D]"),
    ],
)  # fmt: skip
def test_what_no_logger_writes(value: Any, what: str) -> None:
    with pytest.raises(RunError, match=re.escape(f"{what}, which no logger writes; give a number, an array")):
        row_values("x", value)


def test_a_value_that_is_not_known_yet() -> None:
    said: list[str] = []

    def step(x: px.Tensor) -> px.Tensor:
        with pytest.raises(RunError) as caught:
            row_values("x", x.sum())
        said.append(str(caught.value))
        return x

    px.compile(step)(px.ones((2,), device="jax"))
    assert said[0].startswith("'x': a Tensor of ") and "cannot be read" in said[0] and "\n" not in said[0]
