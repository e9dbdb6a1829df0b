"""Casts between float32 and the 16-bit floats: the same bits as NumPy's casts, in a fraction of the time.

They use the processor's own instructions if it has them (`simd_casts`), and otherwise, for float16, integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phlox.host import memory
from phlox.host.dtypes import HOST_DTYPES
from phlox.host.simd_casts import get_cast
from phlox.host.thread_pool import parallel_for

_BLOCK = 1 << 16
"""The elements of a block: few enough to stay in the cache, many enough to wait little for the interpreter lock."""
SHARE = 1 << 18
"""The number of elements that is worth a thread."""
_QUICKER = 8
"""The factor by which blocks and shares are larger with the processor's instructions."""
THREADS = 2
"""The largest number of threads: each needs ten bytes for an element of its block."""
_EXPONENT = np.uint32(0x7F800000)
_LEAST = np.full(_BLOCK, 0x38800000, np.uint32)
"""The exponent of 2**-14, the least normal float16; the spacing of smaller float16 numbers is constant."""
_MOST = np.uint32(0x47000000)
"""The exponent of 2**15, the largest exponent of float16."""
_THIRTEEN = np.uint32(13)
"""The number of bits by which the mantissa of float32 is longer than that of float16."""
_UP = np.uint32(13 << 23)
_REBIASED = np.uint16((0x38800000 + (13 << 23) >> 13) & 0xFFFF)
_SIGN = np.uint16(0x8000)
_SINGLE, _HALF, _BRAIN = HOST_DTYPES["f32"], HOST_DTYPES["f16"], HOST_DTYPES["bf16"]
_INFINITE = {_HALF: 0x7C00, _BRAIN: 0x7F80}
"""The bits of infinity."""
_SCALE = np.float32(2.0**112)
"""The factor from a float16's bits, read as a float32, to its value: it corrects the exponent bias."""
_IN_PLACE = np.uint32(0x8FFFE000)
"""A mask: the sign of a float32, and the other bits of a float16, shifted up by 13."""


Part = Callable[[int, int], bool]
"""Casts the elements from `start` to `stop` (by integers, at most a block); False if NumPy has to cast them."""


def _prepare_cast(source: NDArray[Any], target: NDArray[Any]) -> Part:
    """The cast from one contiguous array to the other, rounding to nearest even.

    NumPy has to cast if a float16 or bfloat16 result is not finite; with integers also if an input is not.
    """
    prepare, is_rounded = get_cast(), target.dtype != _SINGLE
    if prepare is None:
        by_integers = _to_half_by_integers if is_rounded else _from_half_by_integers
        return lambda start, stop: by_integers(source[start:stop], target[start:stop])
    cast = prepare(source, target)

    def cast_part(start: int, stop: int) -> bool:
        cast(start, stop)
        return not is_rounded or _is_finite(target[start:stop])

    return cast_part


def _is_finite(half: NDArray[Any]) -> bool:
    signed, unsigned, infinite = half.view(np.int16), half.view(np.uint16), _INFINITE[half.dtype]
    return not half.size or bool(signed.max() < infinite and unsigned.max() < infinite | _SIGN)


def has_instructions() -> bool:
    """Is there a library that casts by the processor's instructions?"""
    return get_cast() is not None


def _from_half_by_integers(half: NDArray[np.float16], single: NDArray[np.float32]) -> bool:
    """Cast exactly; False if not all elements are finite."""
    if not _is_finite(half):
        return False
    bits = single.view(np.uint32)
    np.copyto(bits.view(np.int32), half.view(np.int16))  # the sign fills all upper bits
    bits <<= _THIRTEEN
    bits &= _IN_PLACE
    single *= _SCALE
    return True


def _to_half_by_integers(single: NDArray[np.float32], half: NDArray[np.float16]) -> bool:
    """Round to nearest, ties to even; False if an element is not finite before or after.

    Adding 2**13 times the power of two below a number lets the hardware round its last 13 bits away.
    """
    rounded = np.abs(single)
    power = rounded.view(np.uint32) & _EXPONENT
    np.maximum(power, _LEAST[: power.size], out=power)  # NumPy has a fast loop only for two arrays
    if power.size and power.max() > _MOST:
        return False
    power += _UP
    rounded += power.view(np.float32)
    power >>= _THIRTEEN
    bits = rounded.view(np.uint32)
    bits += power
    result = half.view(np.uint16)
    np.copyto(result, bits, casting="unsafe")  # the lower half, where the larger power has no bits
    result -= _REBIASED
    if result.size and result.max() >= _INFINITE[_HALF]:
        return False
    np.right_shift(single.view(np.uint32), np.uint32(16), out=bits)  # reuses `bits`, to save memory
    sign = bits.astype(np.uint16)
    sign &= _SIGN
    result |= sign
    return True


_FAST = {(_SINGLE, _HALF), (_HALF, _SINGLE), (_SINGLE, _BRAIN), (_BRAIN, _SINGLE)}


def recast(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """`array.astype(dtype)`; None for other element types, and if an element is not finite before or after.

    With the processor's instructions a cast to float32 takes infinities and NaN too.
    """
    pair = (array.dtype, dtype)
    if pair not in _FAST or (_BRAIN in pair and not has_instructions()):
        return None
    times = _QUICKER if has_instructions() else 1
    result, buffer, before = memory.empty(array.shape, dtype)
    if not (array.flags.c_contiguous and array.flags.aligned):
        array = np.require(array, requirements=["C", "A"])
    cast = _prepare_cast(array.reshape(-1), result.reshape(-1))
    refused: list[bool] = []
    step, width = times * _BLOCK, dtype.itemsize

    def work(start: int, stop: int) -> None:
        for begin in range(start, stop, step):
            end = min(begin + step, stop)
            buffer.populate(before + begin * width, before + end * width)
            if refused or not cast(begin, end):
                refused.append(True)
                return

    parallel_for(work, array.size, times * SHARE, THREADS)
    return None if refused else result
