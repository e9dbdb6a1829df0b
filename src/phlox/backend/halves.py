"""float32 to float16 and back by integers: the same bits as NumPy's casts give, in less time (measured: half)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 15
_EXPONENT = np.uint32(0x7F800000)
_LEAST = np.full(_BLOCK, 0x38800000, np.uint32)
"""The exponent of 2**-14, the least normal float16; below, float16 has the same spacing all the way."""
_MOST = np.uint32(0x47000000)
"""The exponent of 2**15, the largest of float16."""
_THIRTEEN = np.uint32(13)
"""By so many bits a float32 is longer, and has the exponents to add as many to one."""
_UP = np.uint32(13 << 23)
_REBIASED = np.uint16((0x38800000 + (13 << 23) >> 13) & 0xFFFF)
_SIGN = np.uint16(0x8000)
_INFINITE = 0x7C00
_SCALE = np.float32(2.0**112)
"""From the exponents of float16, read as those of float32, to what they mean."""


def to_half(array: NDArray[np.float32]) -> NDArray[np.float16] | None:
    """`array`, contiguous, rounded to the nearest float16, ties to even; None if not all are finite, before and after.

    Adding 2**13 times the power of two below a number lets the hardware round its last 13 bits away.
    """
    power = array.view(np.uint32) & _EXPONENT
    least = _LEAST[: power.size] if power.size <= _LEAST.size else np.full_like(power, _LEAST[0])
    np.maximum(power, least, out=power)  # which has a fast loop for two arrays only
    if power.size and power.max() > _MOST:
        return None
    power += _UP
    rounded = np.abs(array)
    rounded += power.view(np.float32)
    bits = rounded.view(np.uint32)
    bits -= power
    power >>= _THIRTEEN
    bits += power
    half = bits.astype(np.uint16)
    half -= _REBIASED
    if half.size and half.max() >= _INFINITE:
        return None
    np.right_shift(array.view(np.uint32), np.uint32(16), out=power)  # no longer needed, and memory is what counts
    sign = power.astype(np.uint16)
    sign &= _SIGN
    half |= sign
    return half.view(np.float16)


def from_half(array: NDArray[np.float16]) -> NDArray[np.float32] | None:
    """`array`, contiguous, as float32; None if not all are finite."""
    half: Any = array.view(np.uint16)
    magnitude = half & np.uint16(0x7FFF)
    if magnitude.size and magnitude.max() >= _INFINITE:
        return None
    bits = magnitude.astype(np.uint32)
    bits <<= _THIRTEEN
    single = bits.view(np.float32)
    single *= _SCALE
    bits |= (half & _SIGN).astype(np.uint32) << np.uint32(16)
    return single


_FAST: dict[tuple[np.dtype[Any], np.dtype[Any]], Callable[[NDArray[Any]], NDArray[Any] | None]] = {
    (np.dtype(np.float32), np.dtype(np.float16)): to_half,
    (np.dtype(np.float16), np.dtype(np.float32)): from_half,
}


def recast(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """`array.astype(dtype)`; None for other element types, and if not all are finite, before and after."""
    fast = _FAST.get((array.dtype, dtype))
    if fast is None:
        return None
    result = np.empty(array.shape, dtype)
    source, target = np.ascontiguousarray(array).reshape(-1), result.reshape(-1)
    for start in range(0, source.size, _BLOCK):
        done = fast(source[start : start + _BLOCK])
        if done is None:
            return None
        target[start : start + _BLOCK] = done
    return result
