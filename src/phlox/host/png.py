"""Arrays as PNG images, without an imaging library."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np

from phlox.errors import DataError

LARGEST_IMAGE = 160
"""Larger images are shown with fewer pixels."""
LARGEST_HEAT_MAP = 64
_POSITIVE, _NEGATIVE, _NOT_FINITE = (37, 99, 235), (232, 89, 12), (219, 39, 119)
_LEVELS = 24
"""The levels of strength: more cannot be distinguished, and take more bytes."""


def png(image: Any, largest: int | None = LARGEST_IMAGE) -> bytes:
    """An image as a PNG, see `pixels_of`; if a side has more than `largest` pixels, only every k-th pixel is shown."""
    pixels = pixels_of(image)
    stride = 1 if largest is None else -(-max(pixels.shape[:2]) // largest)
    return _encode(pixels[::stride, ::stride])


def pixels_of(image: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """An image as uint8 [H, W, C]: [H, W], [H, W, C] or [C, H, W] with 1, 3 or 4 channels.

    Integers are 0 to 255. Floats are 0 to 1; if some are outside, all are stretched from their least to their greatest.
    NaN is 0, infinities the least and the greatest.

    Raises `DataError` for another shape.
    """
    pixels = np.asarray(image)
    shape = pixels.shape
    if pixels.ndim == 3 and shape[2] not in (1, 3, 4) and shape[0] in (1, 3, 4):
        pixels = np.moveaxis(pixels, 0, 2)
    pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3, 4) or not pixels.size:
        raise DataError(f"an image of shape {shape} cannot be shown; give [H, W], [H, W, C] or [C, H, W], C = 1, 3, 4")
    if pixels.dtype == np.bool_:
        pixels = pixels * np.uint8(255)
    elif not np.issubdtype(pixels.dtype, np.integer):
        values = pixels.astype(np.float64)
        values[np.isnan(values)] = 0.0
        finite = values[np.isfinite(values)]
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
        low, high = (low, high) if low < 0.0 or high > 1.0 else (0.0, 1.0)
        values = (np.clip(values, low, high) - low) / max(high - low, 1e-300)
        pixels = np.rint(255.0 * values)
    return np.clip(pixels, 0, 255).astype(np.uint8)


def heat_map(matrix: Any) -> bytes:
    """A matrix as a PNG for light and dark pages: the larger a value, the less transparent; positive values are blue.

    Values that are not finite are pink. Of a large matrix every k-th row and column is shown.
    """
    values = np.asarray(matrix)
    rows, columns = (-(-size // LARGEST_HEAT_MAP) for size in values.shape)
    values = values[::rows, ::columns].astype(np.float64)
    finite = np.isfinite(values)
    sizes = np.abs(np.where(finite, values, 0.0))
    strength = np.rint(_LEVELS * (sizes / (sizes.max(initial=0.0) or 1.0))) / _LEVELS
    pixels = np.empty((*values.shape, 4), np.uint8)
    pixels[..., :3] = np.where((values > 0.0)[..., None], _POSITIVE, _NEGATIVE)
    pixels[..., 3] = np.rint(255.0 * strength)
    pixels[~finite] = (*_NOT_FINITE, 255)
    pixels[finite & (strength == 0.0)] = 0
    return _encode(pixels)


def image(data: bytes, width: int, height: int, alt: str = "") -> str:
    """The HTML element of a PNG, of this size on the screen; `alt` is text without special characters."""
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return f'<img alt="{alt}" width="{width}" height="{height}" src="{url}">'


def _encode(pixels: np.ndarray[Any, Any]) -> bytes:
    height, width, channels = pixels.shape
    lines = b"".join(b"\0" + row.tobytes() for row in pixels)
    color = {1: 0, 3: 2, 4: 6}[channels]
    head = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    chunks = (b"IHDR", head), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
