from __future__ import annotations

import io
import os
import pickle
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from phlox.data import load_digits, read_images
from phlox.errors import DataError

DIGITS = load_digits()
EXPECTED = (DIGITS.images[:3].astype(np.float64) / 16.0).astype(np.float32)[:, None]


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def csv_text(rows: Any, header: str = "") -> str:
    return header + "".join(",".join(str(value) for value in row) + "\n" for row in rows)


class TestNpz:
    @pytest.mark.parametrize("shape", [(3, 8, 8), (3, 1, 8, 8), (3, 64)])
    @pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float16, np.float32, np.float64])
    def test_shapes_and_types(self, tmp_path: Path, shape: tuple[int, ...], dtype: Any) -> None:
        got = read_images(npz(tmp_path / "x.npz", anything=DIGITS.images[:3].reshape(shape).astype(dtype)))
        np.testing.assert_array_equal(got.images, EXPECTED)
        assert got.images.dtype == np.float32
        assert got.labels is None

    def test_a_single_image(self, tmp_path: Path) -> None:
        got = read_images(npz(tmp_path / "x.npz", images=DIGITS.images[0]))
        np.testing.assert_array_equal(got.images, EXPECTED[:1])

    def test_labels_and_other_arrays_beside_images(self, tmp_path: Path) -> None:
        path = npz(tmp_path / "x.NPZ.npz", images=DIGITS.images[:3], labels=DIGITS.labels[:3], note=np.zeros(2))
        images, labels = read_images(str(path))
        np.testing.assert_array_equal(images, EXPECTED)
        assert labels is not None
        assert labels.tolist() == [0, 1, 2]
        assert labels.dtype == np.int64

    def test_another_size_and_scale(self, tmp_path: Path) -> None:
        values = np.arange(12).reshape(2, 2, 3)
        got = read_images(npz(tmp_path / "x.npz", images=values), size=(2, 3), maximum=11.0)
        np.testing.assert_array_equal(got.images, (values / 11.0).astype(np.float32)[:, None])

    @pytest.mark.parametrize(("arrays", "message"), [
        ({"images": np.zeros((2, 28, 28))}, r"'images' has shape \(2, 28, 28\); the model takes 8x8"),
        ({"images": np.zeros((2, 3, 8, 8))}, r"shape \(2, 3, 8, 8\)"),
        ({"images": np.zeros(64)}, r"shape \(64,\)"),
        ({"images": np.float32(1.0)}, r"shape \(\)"),
        ({"images": np.zeros((0, 8, 8))}, "has no images"),
        ({"images": np.full((1, 8, 8), "a")}, "<U1; give numbers"),
        ({"images": np.zeros((1, 8, 8), dtype=complex)}, "complex128; give numbers"),
        ({"a": np.zeros((1, 8, 8)), "b": np.zeros((1, 8, 8))}, r"\['a', 'b'\]; name the one"),
        ({"labels": np.zeros(1, dtype=int)}, r"\['labels'\]; name the one"),
        ({}, r"\[\]; name the one"),
        ({"images": np.zeros((2, 8, 8)), "labels": np.zeros(3, dtype=int)}, r"'labels' is int64 of shape \(3,\)"),
        ({"images": np.zeros((2, 8, 8)), "labels": np.zeros(2)}, "'labels' is float64"),
    ])  # fmt: skip
    def test_arrays_that_do_not_fit(self, tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
        with pytest.raises(DataError, match=message) as caught:
            read_images(npz(tmp_path / "x.npz", **arrays))
        assert str(tmp_path / "x.npz") in str(caught.value)

    @pytest.mark.parametrize("value", [-1.0, 16.5, np.nan, np.inf, -np.inf])
    def test_values_out_of_range_are_named_with_their_place(self, tmp_path: Path, value: float) -> None:
        images = DIGITS.images[:3].astype(np.float64)
        images[2, 5, 1] = value
        with pytest.raises(DataError, match=f"image 2, row 5, column 1 is {value}; values must go from 0 to 16"):
            read_images(npz(tmp_path / "x.npz", images=images))

    def test_pickles_are_never_loaded(self, tmp_path: Path) -> None:
        path = npz(tmp_path / "x.npz", images=np.array([Bomb()], dtype=object))
        with pytest.raises(DataError, match="contains Python objects"):
            read_images(path)
        path.write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(DataError, match="not a NumPy archive"):
            read_images(path)
        assert not Bomb.exploded

    def test_an_entry_that_is_no_array(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            archive.writestr("readme.txt", "hello")
        with pytest.raises(DataError, match=r"entry 'readme.txt' is not an array"):
            read_images(tmp_path / "x.npz")

    def test_a_header_that_promises_too_much(self, tmp_path: Path) -> None:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**50,)})
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            archive.writestr("images.npy", header.getvalue())
        with pytest.raises(DataError, match="damaged NumPy archive"):
            read_images(tmp_path / "x.npz")


class Bomb:
    exploded = False

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return setattr, (Bomb, "exploded", True)


class TestCsv:
    def read(self, folder: Path, text: str | bytes, **options: Any) -> Any:
        path = folder / "x.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_images(path, **options)

    @pytest.mark.parametrize("header", ["", "\n\n", ",".join(f"pixel_{i}" for i in range(64)) + "\n", "the digits\n"])
    @pytest.mark.parametrize("ending", ["\n", "\r\n"])
    @pytest.mark.parametrize("mark", ["", "\ufeff"])
    def test_rows(self, tmp_path: Path, header: str, ending: str, mark: str) -> None:
        text = mark + csv_text(DIGITS.images[:3].reshape(3, 64), header).replace("\n", ending)
        got = self.read(tmp_path, text)
        np.testing.assert_array_equal(got.images, EXPECTED)
        assert got.labels is None

    def test_numbers_may_be_spaced_quoted_and_decimal(self, tmp_path: Path) -> None:
        text = ' 0.0 ,"16",8e0, 4 \n\n   \n'
        assert self.read(tmp_path, text, size=(2, 2)).images.tolist() == [[[[0.0, 1.0], [0.5, 0.25]]]]

    def test_a_last_column_holds_labels(self, tmp_path: Path) -> None:
        rows = np.column_stack([DIGITS.images[:3].reshape(3, 64), DIGITS.labels[:3]])
        got = self.read(tmp_path, csv_text(rows))
        np.testing.assert_array_equal(got.images, EXPECTED)
        assert got.labels.tolist() == [0, 1, 2]
        assert got.labels.dtype == np.int64

    @pytest.mark.parametrize(("text", "message"), [
        ("1,2,3,4\n1,2,x,4\n", "line 2, column 3 is 'x'; give a number from 0 to 16"),
        ("a,b,c,d\n1,2,3,4\n1,2,x,4\n", "line 3, column 3 is 'x'"),
        ("a,b,c,d\na,b,c,d\n", "line 2, column 1 is 'a'"),
        ("1,b,c,d\n", "line 1, column 2 is 'b'"),
        ("1,2,3,\n", "line 1, column 4 is ''"),
        ("1,2,3,nan\n", "line 1, column 4 is 'nan'"),
        ("1,2,3,inf\n", "line 1, column 4 is 'inf'"),
        ("\n1,2,3,-1\n", "line 2, column 4 is '-1'"),
        ("1,2,3,16.01\n", "line 1, column 4 is '16.01'"),
        ("1,2,3\n", "line 1 has 3 values; the model takes 2x2: give 4 values separated by commas, or 5"),
        ("1\n", "line 1 has 1 value;"),
        ("1,2,3,4,5,6\n", "line 1 has 6 values"),
        ("1;2;3;4\n1;2;3;4\n", "line 2 has 1 value; .*separated by commas"),
        ("1,2,3,4\n1,2,3,4,5\n", "line 2 has 5 values, but those before have 4"),
        ("1,2,3,4,0.5\n", "line 1, column 5 is '0.5'; give a label"),
        ("1,2,3,4,-1\n", "line 1, column 5 is '-1'; give a label"),
        ("1,2,3,4,1e300\n", "line 1, column 5 is '1e300'; give a label"),
        ("1,2,3,4,seven\n", "line 1, column 5 is 'seven'; give a label"),
        ("a,b,c,d\n", "contains no images"),
        ("\n \n", "contains no images"),
        (b"\xff\xfe1\x00", "not a text file in UTF-8"),
        ("9" * 200_000, "line 1 is not comma-separated text"),
    ])  # fmt: skip
    def test_bad_rows_are_named_with_their_line(self, tmp_path: Path, text: str | bytes, message: str) -> None:
        with pytest.raises(DataError, match=message) as caught:
            self.read(tmp_path, text, size=(2, 2))
        assert str(tmp_path / "x.csv") in str(caught.value)


class TestPng:
    def test_every_grey_level(self, tmp_path: Path) -> None:
        levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
        Image.fromarray(levels).save(tmp_path / "x.PNG")
        got = read_images(tmp_path / "x.PNG", size=(16, 16))
        np.testing.assert_array_equal(got.images, (levels / 255.0).astype(np.float32)[None, None])
        assert got.images.dtype == np.float32
        assert got.labels is None

    def test_sixteen_bit_levels(self, tmp_path: Path) -> None:
        levels = (np.arange(64, dtype=np.uint16) * 1040).reshape(8, 8)
        Image.fromarray(levels).save(tmp_path / "x.png")
        got = read_images(tmp_path / "x.png")
        np.testing.assert_array_equal(got.images, (levels / 65535.0).astype(np.float32)[None, None])

    @pytest.mark.parametrize("mode", ["1", "P", "RGB", "RGBA", "LA"])
    def test_other_kinds_of_points(self, tmp_path: Path, mode: str) -> None:
        ink = np.zeros((8, 8), dtype=np.uint8)
        ink[2:5, 3] = 255
        Image.fromarray(ink).convert(mode).save(tmp_path / "x.png")
        np.testing.assert_array_equal(read_images(tmp_path / "x.png").images[0, 0], ink / np.float32(255))

    def test_transparent_points_are_paper(self, tmp_path: Path) -> None:
        points = np.full((8, 8, 4), 255, dtype=np.uint8)
        points[:4, :, 3] = 0
        Image.fromarray(points).save(tmp_path / "x.png")
        got = read_images(tmp_path / "x.png").images[0, 0]
        assert (got[:4] == 0).all()
        assert (got[4:] == 1).all()

    def test_another_size(self, tmp_path: Path) -> None:
        path = tmp_path / "image.png"
        Image.new("L", (28, 20)).save(path)
        with pytest.raises(DataError) as caught:
            read_images(path)
        assert str(caught.value) == f"{path} is 28x20 pixels; the model takes 8x8; resize it first"

    def test_a_huge_picture_is_refused_unread(self, tmp_path: Path) -> None:
        header = b"IHDR" + struct.pack(">IIBBBBB", 2**31 - 1, 2**31 - 1, 8, 0, 0, 0, 0)
        chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
        (tmp_path / "x.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk)
        with pytest.raises(DataError, match="2147483647x2147483647 pixels"):
            read_images(tmp_path / "x.png")

    def test_a_picture_cut_off_in_its_header(self, tmp_path: Path) -> None:
        (tmp_path / "x.png").write_bytes(GOOD_FILES["x.png"][:20])
        with pytest.raises(DataError, match="not a PNG image"):
            read_images(tmp_path / "x.png")

    def test_another_format_under_this_name(self, tmp_path: Path) -> None:
        Image.new("L", (8, 8)).save(tmp_path / "x.png", format="GIF")
        with pytest.raises(DataError, match="not a PNG image"):
            read_images(tmp_path / "x.png")

    def test_without_pillow(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        Image.new("L", (8, 8)).save(tmp_path / "x.png")
        monkeypatch.setitem(sys.modules, "PIL", None)
        with pytest.raises(DataError, match=r"needs Pillow; install Phlox with the extra 'data'"):
            read_images(tmp_path / "x.png")


@pytest.mark.parametrize(("name", "message"), [
    ("x.jpg", r"cannot read files of type '\.jpg'; give a \.npz, \.csv or \.png file"),
    ("x", "cannot read a file without a suffix"),
    ("x.png", "there is no such file"),
])  # fmt: skip
def test_unknown_and_missing_files(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_images(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("suffix", ["npz", "csv", "png"])
def test_empty_files_and_folders(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    path.touch()
    with pytest.raises(DataError, match="the file is empty"):
        read_images(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        read_images(path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("1")
    path.chmod(0)
    with pytest.raises(DataError, match="cannot be read"):
        read_images(path)


def good_files() -> dict[str, bytes]:
    archive, compressed, picture = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.savez(archive, images=DIGITS.images[:3])
    np.savez_compressed(compressed, images=DIGITS.images[:3])
    Image.fromarray(DIGITS.images[0] * 15).save(picture, format="PNG")
    return {
        "stored.npz": archive.getvalue(),
        "deflated.npz": compressed.getvalue(),
        "x.png": picture.getvalue(),
        "x.csv": csv_text(DIGITS.images[:3].reshape(3, 64)).encode(),
    }


GOOD_FILES = good_files()


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(GOOD_FILES)), data=st.data())
def test_damage_is_an_error_of_ours_or_harmless(tmp_path: Path, name: str, data: st.DataObject) -> None:
    content = bytearray(GOOD_FILES[name])
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        for _ in range(data.draw(st.integers(1, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path / name
    path.write_bytes(content)
    try:
        got = read_images(path)
    except DataError as error:
        assert str(error).startswith(str(path))
        assert "\n" not in str(error)
    else:
        assert got.images.shape[1:] == (1, 8, 8)
        assert got.images.min() >= 0.0
        assert got.images.max() <= 1.0
        if path.suffix == ".npz":  # both a checksum and the lengths guard the values
            np.testing.assert_array_equal(got.images, EXPECTED)
