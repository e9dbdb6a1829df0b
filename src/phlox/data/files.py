"""Reads images of one channel from a user's files: `.npz`, `.csv` and `.png`."""

from __future__ import annotations

import csv
import io
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from phlox.errors import DataError

_PNG_START = b"\x89PNG\r\n\x1a\n"
_ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")


class Images(NamedTuple):
    """Images from a file.

    Attributes:
        images: `float32 [n, 1, height, width]`, from 0 (paper) to 1 (ink).
        labels: `int64 [n]`, or None if the file has no labels.
    """

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64] | None


def read_images(path: str | os.PathLike[str], *, size: tuple[int, int] = (8, 8), maximum: float = 16.0) -> Images:
    """Read images of one channel, scaled to [0, 1], from a file; its suffix selects the format.

    - `.npz`, a NumPy archive: the array named `images`, or the only array besides `labels`, of shape `[n, h, w]`,
      `[n, 1, h, w]`, `[n, h * w]`, or `[h, w]` for a single image. An array `labels`, `[n]`, is optional.
    - `.csv`, comma-separated text in UTF-8: one line for each image, with `h * w` values row by row, and the label as
      an optional last value (the layout of the UCI digits). Empty lines, and a first line without numbers, are skipped.
    - `.png`: one image, with grey levels from 0 (black, paper) to the brightest (white, ink). Colours are converted to
      grey, transparent pixels are paper. Needs Pillow, which comes with the extra `data`.

    Nothing in a file is ever executed: archives with Python objects (pickles) are an error.

    Args:
        path: the file.
        size: the height and width, in pixels, that each image must have.
        maximum: the value of full ink in `.npz` and `.csv` files; values go from 0 to it. It is not used for PNG.

    Raises:
        DataError: the file is missing, damaged, empty, of another format or size, or contains something that is not a
            number from 0 to `maximum`; the message says where.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "two.csv"
    ...     _ = path.write_text("0,16,8,0\\n4,0,0,16\\n")
    ...     read_images(path, size=(2, 2)).images[0, 0].tolist()
    [[0.0, 1.0], [0.5, 0.0]]
    """
    path = Path(path)
    reader = {".npz": _read_npz, ".csv": _read_csv, ".png": _read_png}.get(path.suffix.lower())
    if reader is None:
        kind = f"files of type '{path.suffix}'" if path.suffix else "a file without a suffix"
        raise DataError(f"{path}: cannot read {kind}; give a .npz, .csv or .png file")
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file; check the path") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give a file that can") from error
    if not data:
        raise DataError(f"{path}: the file is empty; give one with images")
    return reader(path, data, size, maximum)


def _read_npz(path: Path, data: bytes, size: tuple[int, int], maximum: float) -> Images:
    arrays = _load_npz(path, data)
    candidates = ["images"] if "images" in arrays else [name for name in arrays if name != "labels"]
    if len(candidates) != 1:
        raise DataError(f"{path}: contains the arrays {sorted(arrays)}; name the one with the images 'images'")
    images = _as_images(path, candidates[0], arrays[candidates[0]], size, maximum)
    labels = arrays.get("labels")
    if labels is None:
        return Images(images, None)
    if labels.dtype.kind not in "iu" or labels.shape != images.shape[:1]:
        raise DataError(
            f"{path}: array 'labels' is {labels.dtype} of shape {labels.shape}; "
            f"give one integer for each image, shape ({len(images)},), or omit the array"
        )
    return Images(images, labels.astype(np.int64))


def _load_npz(path: Path, data: bytes) -> Mapping[str, npt.NDArray[Any]]:
    if not data.startswith(_ZIP_STARTS):
        raise DataError(f"{path}: not a NumPy archive; write one with numpy.savez(path, images=...)")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            contents: dict[str, Any] = {name: archive[name] for name in archive.files}
    # A damaged archive fails in many ways: zip structure, checksum, inflating, array header, length, memory.
    except Exception as error:
        if "allow_pickle" in str(error):
            raise DataError(
                f"{path}: contains Python objects (a pickle), which Phlox never loads; save arrays of numbers"
            ) from error
        raise DataError(f"{path}: a damaged NumPy archive ({error or type(error).__name__}); write it again") from error
    for name, array in contents.items():
        if not isinstance(array, np.ndarray):
            raise DataError(f"{path}: entry '{name}' is not an array; write the archive with numpy.savez")
    return contents


def _as_images(
    path: Path, name: str, values: npt.NDArray[Any], size: tuple[int, int], maximum: float
) -> npt.NDArray[np.float32]:
    height, width = size
    if values.shape == size:
        values = values[None]
    if values.shape[1:] not in (size, (1, *size), (height * width,)):
        raise DataError(
            f"{path}: array '{name}' has shape {values.shape}; the model takes {_pixels(size)}: "
            f"give shape (n, {height}, {width}), resized if necessary"
        )
    if len(values) == 0:
        raise DataError(f"{path}: array '{name}' has no images; give one or more")
    if values.dtype.kind not in "biuf":
        raise DataError(f"{path}: array '{name}' is {values.dtype}; give numbers from 0 to {maximum:g}")
    values = values.reshape(len(values), height, width)
    wrong = np.argwhere(~((values >= 0) & (values <= maximum)))  # written so that NaN counts as wrong too
    if len(wrong) > 0:
        image, row, column = wrong[0].tolist()
        raise DataError(
            f"{path}: array '{name}', image {image}, row {row}, column {column} is {values[image, row, column]}; "
            f"values must go from 0 to {maximum:g}"
        )
    return _scale(values, maximum)


def _read_csv(path: Path, data: bytes, size: tuple[int, int], maximum: float) -> Images:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text file in UTF-8; give comma-separated numbers") from error
    count = size[0] * size[1]
    rows: list[list[float]] = []
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header_allowed = True
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if header_allowed and all(_number(cell) is None for cell in cells):
                header_allowed = False
                continue
            header_allowed = False
            location = f"{path}: line {reader.line_num}"
            if len(cells) not in (count, count + 1):
                raise DataError(
                    f"{location} has {len(cells)} value{'s' * (len(cells) != 1)}; the model takes {_pixels(size)}: "
                    f"give {count} values separated by commas, or {count + 1} with the label last"
                )
            if rows and len(rows[0]) != len(cells):
                raise DataError(
                    f"{location} has {len(cells)} values, but those before have {len(rows[0])}; "
                    "give the same number in every line"
                )
            rows.append(_parse_row(location, cells, count, maximum))
    except csv.Error as error:
        raise DataError(f"{path}: line {reader.line_num} is not comma-separated text ({error})") from error
    if not rows:
        raise DataError(f"{path}: contains no images; give a line of {count} values for each")
    values = np.array(rows, dtype=np.float64)
    labels = values[:, count].astype(np.int64) if values.shape[1] > count else None
    return Images(_scale(values[:, :count].reshape(-1, *size), maximum), labels)


def _parse_row(location: str, cells: list[str], count: int, maximum: float) -> list[float]:
    numbers: list[float] = []
    for column, cell in enumerate(cells, start=1):
        number = _number(cell)
        if column <= count:
            good, expected = number is not None and 0.0 <= number <= maximum, f"a number from 0 to {maximum:g}"
        else:
            good, expected = (
                number is not None and 0.0 <= number < 2**31 and number.is_integer(),
                "a label, 0, 1, 2, ...",
            )
        if number is None or not good:
            raise DataError(f"{location}, column {column} is '{cell.strip()[:40]}'; give {expected}")
        numbers.append(number)
    return numbers


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _read_png(path: Path, data: bytes, size: tuple[int, int], maximum: float) -> Images:
    del maximum  # the pixel format of a PNG determines its brightest level
    if not data.startswith(_PNG_START) or len(data) < 24:
        raise DataError(f"{path}: not a PNG image; save it as PNG again")
    # The size is at a fixed position in the header. Reading it here rejects a huge image before it is decompressed.
    width, height = struct.unpack(">II", data[16:24])
    if (height, width) != size:
        raise DataError(f"{path} is {width}x{height} pixels; the model takes {_pixels(size)}; resize it first")
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(f"{path}: reading PNG images needs Pillow; install Phlox with the extra 'data'") from error
    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            if image.mode.startswith("I"):  # 16 bits per pixel, which a conversion to 8 would clip
                return Images(_scale(np.asarray(image)[None], 65535.0), None)
            paper = Image.new("RGBA", image.size, "black")
            grey = Image.alpha_composite(paper, image.convert("RGBA")).convert("L")
    # A damaged image raises any error of the decoder: OSError, SyntaxError, ValueError, zlib.error, ...
    except Exception as error:
        raise DataError(f"{path}: a damaged image ({error or type(error).__name__}); save it again") from error
    return Images(_scale(np.asarray(grey)[None], 255.0), None)


def _scale(values: npt.NDArray[Any], maximum: float) -> npt.NDArray[np.float32]:
    return np.divide(values, maximum, dtype=np.float64).astype(np.float32)[:, None]


def _pixels(size: tuple[int, int]) -> str:
    return f"{size[1]}x{size[0]}"
