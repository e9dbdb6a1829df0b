"""Fourier transforms, spectrograms, windows and convolution.

There is no complex kind: a complex tensor is a `Complex`, a pair of Float tensors of one shape. All functions have
gradients with respect to the real and imaginary parts.
"""

from __future__ import annotations

import sys
from typing import Literal

from phlox.errors import ShapeError
from phlox.lazy import lazily
from phlox.tensor.argument_errors import guard_functions
from phlox.tensor.fourier import (
    Complex,
    fft,
    fftfreq,
    fftshift,
    float_of,
    ifft,
    ifftshift,
    irfft,
    rfft,
    rfftfreq,
)
from phlox.tensor.functions import at_full_precision
from phlox.tensor.spectrogram import frame, istft, overlap_add, stft
from phlox.tensor.tensor import Tensor
from phlox.tensor.windows import (
    bartlett_window,
    blackman_window,
    gaussian_window,
    hamming_window,
    hann_window,
    kaiser_window,
    rectangular_window,
)

__all__ = [
    "Complex", "bartlett_window", "blackman_window", "convolve", "correlate", "fft", "fftfreq", "fftshift", "frame",
    "gaussian_window", "hamming_window", "hann_window", "ifft", "ifftshift", "irfft", "istft", "kaiser_window",
    "overlap_add", "rectangular_window", "rfft", "rfftfreq", "stft",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__, {})


def _full_convolution(name: str, x: Tensor, y: Tensor) -> Tensor:
    x, y = float_of(name, x), float_of(name, y)
    if not x.shape[-1] or not y.shape[-1]:
        raise ShapeError(f"{name}: both signals need at least one sample, got shapes {x.shape} and {y.shape}")
    size = x.shape[-1] + y.shape[-1] - 1
    n = _fast_length(size)
    return irfft(rfft(x, n) * rfft(y, n), n)[..., :size]


def _fast_length(size: int) -> int:
    """The smallest length >= `size` with no prime factors other than 2, 3 and 5."""
    while True:
        remainder = size
        for prime in (2, 3, 5):
            while remainder % prime == 0:
                remainder //= prime
        if remainder == 1:
            return size
        size += 1


@at_full_precision
def convolve(x: Tensor, y: Tensor, *, mode: Literal["full", "same", "valid"] = "full") -> Tensor:
    """The convolution sum of x_s y_{t - s} along the last axis, by Fourier transforms; the other axes broadcast.

    For signals of n and m samples, "full" gives all n + m - 1 values, "same" the middle n, and "valid" the |n - m| + 1
    values where the shorter signal lies within the longer one.

    >>> import phlox as px
    >>> px.signal.convolve(px.tensor([1.0, 2.0, 3.0]), px.tensor([1.0, 1.0])).numpy().round(4)
    array([1., 3., 5., 3.], dtype=float32)
    """
    whole = _full_convolution("convolve", x, y)
    n, m = x.shape[-1], y.shape[-1]
    if mode == "full":
        return whole
    if mode == "same":
        return whole[..., (m - 1) // 2 : (m - 1) // 2 + n]
    if mode == "valid":
        return whole[..., min(n, m) - 1 : max(n, m)]
    raise ShapeError(f"convolve: mode must be 'full', 'same' or 'valid', got {mode!r}")


@at_full_precision
def correlate(x: Tensor, y: Tensor, *, mode: Literal["full", "same", "valid"] = "full") -> Tensor:
    """The correlation sum of x_{s + t} y_s: `convolve` with y reversed.

    >>> import phlox as px
    >>> px.signal.correlate(px.tensor([1.0, 2.0, 3.0]), px.tensor([1.0, 1.0]), mode="valid").numpy().round(4)
    array([3., 5.], dtype=float32)
    """
    return convolve(x, float_of("correlate", y).flip(-1), mode=mode)


guard_functions(sys.modules[__name__], __all__)
