"""Numbers as codes of few bits."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from phlox.backend import Float, Int
from phlox.backend.contract.nn.packed import CODINGS
from phlox.errors import RangeError, ShapeError
from phlox.tensor.creation import tensor
from phlox.tensor.functional.operands import check_kind
from phlox.tensor.functional.packed import check_coding
from phlox.tensor.functions import where
from phlox.tensor.tensor import Tensor

__all__ = ["encode", "pack"]

_WHOLE = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7), "uint4": (0, 15)}
"""The codings whose levels are integers: the smallest and the largest."""


def encode(x: Tensor, coding: str) -> Tensor[Any, Any, Int]:
    """The code of the level that is nearest to each element; in a tie the even code, as IEEE 754 rounds.

    Values beyond the largest level get its code. `unpack(pack(codes, coding), coding)` gives the levels back.

    Args:
        x: Float; divide by the scales before.
        coding: as for `unpack`, but "f16" and "bf16".

    Raises `RangeError` for a coding that is not known or cannot be encoded.

    >>> import phlox as px
    >>> px.functional.encode(px.tensor([-1.0, 0.1, 0.9]), "nf4").tolist()
    [0, 8, 15]
    """
    check_kind("encode", Float, x=x)
    check_coding("encode", coding)
    if coding in _WHOLE:
        low, high = _WHOLE[coding]
        codes = x.round().clip(low, high).int()
        return codes + 8 if coding == "int4" else codes & (2 ** CODINGS[coding].bits - 1)
    table = _nearest(coding)
    if table is None:
        raise RangeError(f"encode: numbers cannot be encoded as {coding!r}; cast them to that precision instead")
    bounds, codes, sign = table
    magnitudes = x.abs() if sign else x
    shape = x.shape
    number = tensor(bounds, device=x.device).searchsorted(magnitudes.reshape(x.size)).reshape(shape)
    if codes is not None:
        number = tensor(codes, device=x.device)[number]
    return number + where(x < 0.0, sign, 0) if sign else number


def pack(codes: Tensor[Any, Any, Int], coding: str) -> Tensor[Any, Any, Int]:
    """Codes [..., n] as words of 32 bits [..., ceil(n / codes in a word)], the first code in the lowest bits.

    The last word is filled with zeros. Codes must be at least zero and below 2 to the bits of the coding.

    >>> import phlox as px
    >>> px.functional.pack(px.tensor([1, 2, 3, 4, 5]), "int8").tolist()
    [67305985, 5]
    """
    check_kind("pack", Int, codes=codes)
    check_coding("pack", coding)
    bits, count = CODINGS[coding].bits, CODINGS[coding].per_word
    if not codes.shape:
        raise ShapeError("pack: expected codes with at least one axis, got a number")
    *leading, size = codes.shape
    words = -(-size // count)
    if words * count != size:
        codes = codes.pad((*((0, 0) for _ in leading), (0, words * count - size)))
    parts = codes.reshape((*leading, words, count))
    half = 1 << (bits - 1)
    last = parts[..., count - 1]
    # The last code has the sign of the word; the sum of the others stays below 2^31.
    total = where(last >= half, last - 2 * half, last) << (32 - bits)
    for index in range(count - 1):
        total = total + (parts[..., index] << (bits * index))
    return total


@lru_cache
def _nearest(coding: str) -> tuple[Any, Any, int] | None:
    """Bounds between the levels, the codes of the levels in this order (None for 0, 1, ...), and the bit of the sign.

    The bound lies below the middle where a tie goes to the upper level.
    """
    levels = CODINGS[coding].levels
    if CODINGS[coding].bits > 8:
        return None
    sign = {"e2m1": 8, "e4m3": 128, "e5m2": 128}.get(coding, 0)
    values = np.asarray(levels[:sign] if sign else levels, np.float64)
    order = np.argsort(values, kind="stable")
    order = order[np.isfinite(values[order])]
    values = values[order]
    middles = (values[1:] + values[:-1]) / 2
    bounds = middles.astype(np.float32)
    goes_up = (order[:-1] % 2 == 1) | (bounds > middles)
    bounds[goes_up] = np.nextafter(bounds[goes_up], np.float32(-np.inf))
    is_sorted = bool(np.array_equal(order, np.arange(len(order))))
    return bounds, None if is_sorted else order.astype(np.int32), sign
