"""Casts between float32 and the 16-bit floats by PyTorch, which uses CPU instructions for it that NumPy does not use.

If `float_casts` has these instructions, it does all casts: several threads that cast parts then need not wait for the
threads of PyTorch.
"""

# PyTorch's annotations leave much unsaid.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from phlox.host import float_casts, memory
from phlox.host.dtypes import HOST_DTYPES

_BLOCK = 1 << 21
"""Elements at a time: enough for all threads, and few enough to stay in the cache for the check that follows."""
_SINGLE = HOST_DTYPES["f32"]
_INFINITE = {HOST_DTYPES["f16"]: 0x7C00, HOST_DTYPES["bf16"]: 0x7F80}
"""The bits of infinity by dtype. Without the sign, the bits of finite numbers are less."""
_UNSIGNED = 0x7FFF
_PAIRS = [{_SINGLE, half} for half in _INFINITE]
_TYPES = {_SINGLE: torch.float32, HOST_DTYPES["f16"]: torch.float16, HOST_DTYPES["bf16"]: torch.bfloat16}


class _Readable:
    """The bytes of an array for PyTorch, which would warn about a read-only array even if nothing writes to it."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        address = array.__array_interface__["data"][0]
        self.__array_interface__ = {"data": (address, False), "shape": (array.nbytes,), "typestr": "|u1", "version": 3}
        self._array = array  # kept alive as long as its bytes are used


def casts_on_all_cores() -> bool:
    """Do PyTorch's threads share the cast of a large array?"""
    return not float_casts.has_instructions()


def recast(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
    """`array.astype(dtype)`; None for other dtypes, and if a float32 is not finite, or would not be after the cast.

    An infinity may then be an error, and libraries differ in the bits of a NaN after a cast.
    """
    if {array.dtype, dtype} not in _PAIRS:
        return None
    if float_casts.has_instructions():
        return float_casts.recast(array, dtype)
    result, _, _ = memory.empty(array.shape, dtype)
    if not array.size:
        return result
    source = torch.from_numpy(np.asarray(_Readable(np.ascontiguousarray(array)))).view(_TYPES[array.dtype])
    target = torch.from_numpy(result.reshape(-1).view(np.uint8)).view(_TYPES[dtype])
    if dtype == _SINGLE:  # it holds all numbers of the 16-bit types
        target.copy_(source)
        return result
    for start in range(0, len(source), _BLOCK):
        part = slice(start, start + _BLOCK)
        bits = target[part].copy_(source[part]).view(torch.int16)
        if int((bits & _UNSIGNED).amax()) >= _INFINITE[dtype]:
            return None
    return result
