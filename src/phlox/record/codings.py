"""How the codes of a packed matrix become numbers, and how words hold them.

To be replaced by an import of `phlox.backend.contract.nn.packed`, whose table this is a part of.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from phlox.record.dtypes import Array


class Coding(NamedTuple):
    """The number of bits of a code, and the number that each code stands for, as float32."""

    bits: int
    levels: Array


def _levels(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


_BYTES = np.arange(256, dtype=np.uint8)
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
with np.errstate(invalid="ignore"):  # signalling NaNs
    _HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)

CODINGS: dict[str, Coding] = {
    "int8": Coding(8, _BYTES.view(np.int8).astype(np.float32)),
    "uint8": Coding(8, _BYTES.astype(np.float32)),
    "int4": Coding(4, np.arange(-8, 8, dtype=np.float32)),
    "uint4": Coding(4, np.arange(16, dtype=np.float32)),
    "e2m1": Coding(4, _levels(*_MAGNITUDES, *(-size for size in _MAGNITUDES))),
    "e8m0": Coding(8, np.append(np.ldexp(np.float32(1), np.arange(-127, 128)), np.float32(np.nan))),
    "iq4nl": Coding(4, _levels(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)),
    "f16": Coding(16, _HALVES),
}
"""Name of a coding -> its bits and levels."""


def words_of(codes: Array, bits: int) -> Array:
    """Codes, unsigned [rows, columns], in words, int32 [rows, words]; the first code has the lowest bits."""
    if bits == 4:
        codes = _padded(codes, 2)
        codes = codes[:, ::2] | codes[:, 1::2] << 4
    codes = np.ascontiguousarray(codes, codes.dtype.newbyteorder("<"))
    return _padded(codes.view(np.uint8), 4).view("<i4").astype(np.int32, copy=False)


def codes_of(words: Array, bits: int, columns: int) -> Array:
    """The inverse of `words_of`: uint8 or uint16 [rows, columns]."""
    data = np.ascontiguousarray(words, "<i4").view(np.uint8)
    if bits == 4:
        data = np.stack([data & 15, data >> 4], axis=-1).reshape(len(data), 2 * data.shape[1])
    elif bits == 16:
        data = data.view("<u2").astype(np.uint16, copy=False)
    return data[:, :columns]


def _padded(codes: Array, multiple: int) -> Array:
    missing = -codes.shape[1] % multiple
    return np.pad(codes, ((0, 0), (0, missing))) if missing else codes
