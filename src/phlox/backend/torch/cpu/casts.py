"""Between float32 and the 16-bit floats by PyTorch, which has instructions for it that NumPy has not.

Where there is another library that has them it does all of it: several threads that cast parts need not wait for those
of PyTorch then.
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
"""Elements at a time: enough for all threads, and few enough to stay in the cache while they are looked at again."""
_SINGLE = HOST_DTYPES["f32"]
_INFINITE = {HOST_DTYPES["f16"]: 0x7C00, HOST_DTYPES["bf16"]: 0x7F80}
"""By the element type: the bits of infinity. Those of what is finite are less, without the sign."""
_UNSIGNED = 0x7FFF
_PAIRS = [{_SINGLE, half} for half in _INFINITE]
_TYPES = {_SINGLE: torch.float32, HOST_DTYPES["f16"]: torch.float16, HOST_DTYPES["bf16"]: torch.bfloat16}


class _Readable:
    """The bytes of an array for PyTorch, which warns of what is read-only even where it does not write."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        place = array.__array_interface__["data"][0]
        self.__array_interface__ = {"data": (place, False), "shape": (array.nbytes,), "typestr": "|u1", "version": 3}
        self._array = array  # which must stay as long as its bytes are looked at


def casts_on_all_cores() -> bool:
    """Do PyTorch's threads share what is large?"""
    return not float_casts.has_instructions()


def recast(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
    """`array.astype(dtype)`; None for other element types, and where a float32 is not finite, or would not be after.

    An infinity may be an error then, and there is no one answer to which NaN becomes of another.
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
    if dtype == _SINGLE:  # which has all numbers of the others
        target.copy_(source)
        return result
    for start in range(0, len(source), _BLOCK):
        here = slice(start, start + _BLOCK)
        bits = target[here].copy_(source[here]).view(torch.int16)
        if int((bits & _UNSIGNED).amax()) >= _INFINITE[dtype]:
            return None
    return result
