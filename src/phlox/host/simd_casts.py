"""Casts between float32 and the 16-bit floats by the processor's own instructions, which the library `numkong` has."""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from phlox.host.dtypes import HOST_DTYPES
from phlox.host.mmap import address_of

Cast = Callable[[NDArray[Any], NDArray[Any]], Callable[[int, int], object]]
"""`cast(source, target)(start, stop)` for a part of two contiguous 1-d arrays."""

_SINGLE, _HALF, _BRAIN = HOST_DTYPES["f32"], HOST_DTYPES["f16"], HOST_DTYPES["bf16"]
_CODES = {_SINGLE: 1 << 11, _HALF: 1 << 12, _BRAIN: 1 << 13}
"""Of `nk_dtype_t`, in numkong/types.h."""
_SAMPLES = np.array([0.0, -1.5, 57344.0, 2.0**-24, np.inf, *range(64)], np.float32)
"""Values that show whether the codes still have their meaning."""
_CAST, _UNKNOWN, _AVX2 = ord("-"), 0, 1 << 2
"""Of `nk_kernel_kind_t`, `nk_dtype_t` and `nk_capability_t`, the last as it is in version 7."""
_PARAMETERS = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int)
"""Source address and type, count, target address and type."""


@functools.cache
def get_cast() -> Cast | None:
    """The cast between any two of the three types; None without the library."""
    try:
        numkong = importlib.import_module("numkong")
    except ImportError:
        return None
    return _by_address(numkong) or _by_name(numkong)


def _by_name(numkong: ModuleType) -> Cast:
    """The cast by the library's Python interface."""

    def cast(source: NDArray[Any], target: NDArray[Any]) -> Callable[[int, int], object]:
        name = target.dtype.name
        return lambda start, stop: numkong.astype(source[start:stop], name, out=target[start:stop])

    return cast


def _by_address(numkong: ModuleType) -> Cast | None:
    """The cast by the library's C interface, which releases the interpreter lock; None without it."""
    try:
        library = ctypes.CDLL(numkong._numkong.__file__)
        function = _by_avx2(library, numkong.__version__) or library.nk_cast
    except (AttributeError, OSError):
        return None
    function.argtypes, function.restype = _PARAMETERS, None

    def cast(source: NDArray[Any], target: NDArray[Any]) -> Callable[[int, int], object]:
        source_ptr, step, source_kind = address_of(source), source.itemsize, _CODES[source.dtype]
        target_ptr, width, target_kind = address_of(target), target.itemsize, _CODES[target.dtype]

        def part(start: int, stop: int, _held: object = (source, target)) -> None:
            function(source_ptr + start * step, source_kind, stop - start, target_ptr + start * width, target_kind)

        return part

    return cast if _is_correct(cast) else None


def _is_correct(cast: Cast) -> bool:
    for dtype in (_HALF, _BRAIN):
        half, single = np.zeros(_SAMPLES.shape, dtype), np.zeros_like(_SAMPLES)
        cast(_SAMPLES, half)(0, _SAMPLES.size)
        cast(half, single)(0, _SAMPLES.size)
        if not (half == _SAMPLES.astype(dtype)).all() or not (single == _SAMPLES).all():
            return False
    return True


def _by_avx2(library: ctypes.CDLL, version: str) -> Any:
    """The function for AVX2, if this processor has AVX2 and the library has the known version.

    By default the library uses AVX-512 if possible, with masked writes. These take two to three times as long if the
    target is not in the cache: 280 ps for an element that becomes a float32, and 400 ps for one that becomes a float16,
    while AVX2 takes 150 ps (AMD Zen 5).
    """
    library.nk_capabilities.restype = ctypes.c_uint64
    if version.split(".")[0] != "7" or not library.nk_capabilities() & _AVX2:
        return None
    function, chosen = ctypes.c_void_p(), ctypes.c_uint64()
    library.nk_find_kernel_punned(_CAST, _UNKNOWN, ctypes.c_uint64(_AVX2), ctypes.byref(function), ctypes.byref(chosen))
    return ctypes.CFUNCTYPE(None, *_PARAMETERS)(function.value or 0) if chosen.value == _AVX2 else None
