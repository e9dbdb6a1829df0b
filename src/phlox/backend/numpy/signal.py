"""Fourier transforms on NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from phlox.backend.contract import Backend
from phlox.backend.contract.types import Array


def _complex(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Pairs as complex numbers, in the same memory where it is in order."""
    return np.ascontiguousarray(x).view(np.result_type(x.dtype, np.complex64))[..., 0]


def _pairs(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(x)[..., None].view(x.real.dtype)


class Signal(Backend):
    """See `phlox.backend.contract.signal`."""

    def rfft(self, x: Array) -> Array:
        return _pairs(np.fft.rfft(x))

    def irfft(self, x: Array, n: int) -> Array:
        return np.fft.irfft(_complex(x), n, norm="forward")

    def fft(self, x: Array, inverse: bool) -> Array:
        return _pairs(np.fft.ifft(_complex(x), norm="forward") if inverse else np.fft.fft(_complex(x)))

    def frame(self, x: Array, length: int, hop: int) -> Array:
        return np.lib.stride_tricks.sliding_window_view(x, length, -1)[..., ::hop, :]
