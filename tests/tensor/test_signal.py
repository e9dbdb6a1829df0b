"""What signal processing says of input that it cannot take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import phlox as px
from phlox import signal
from phlox.errors import KindError, ShapeError

X = px.ones((2, 12))
WHOLE: Any = px.ones((2, 12)).int()
PAIR = (px.ones((5, 3)), px.ones((5, 3)))


@pytest.mark.parametrize(
    "call, error, what",
    [
        (lambda: signal.rfft(WHOLE), KindError, r"rfft takes Float tensors, got Int"),
        (lambda: signal.rfft([1.0]), KindError, r"rfft takes a Float tensor, got list"),  # type: ignore[arg-type]
        (lambda: signal.rfft(px.ones(())), ShapeError, r"rfft: needs a tensor with at least one axis"),
        (lambda: signal.rfft(X, 0), ShapeError, r"length of the transform must be at least 1, got 0"),
        (lambda: signal.rfft(px.ones((0,))), ShapeError, r"length of the transform must be at least 1, got 0"),
        (lambda: signal.rfft(X, axis=2), ShapeError, r"axis 2 is out of range"),
        (lambda: signal.rfft(X, norm="none"), ShapeError, r"norm must be 'backward', 'ortho' or 'forward'"),  # type: ignore[arg-type]
        (lambda: signal.irfft(X), KindError, r"takes a pair of Float tensors \(real, imag\), got Tensor"),  # type: ignore[arg-type]
        (lambda: signal.irfft((X, X.mT)), ShapeError, r"shape \(2, 12\), but the imaginary part has shape \(12, 2\)"),
        (lambda: signal.irfft((px.ones((1,)), px.ones((1,)))), ShapeError, r"at least 1, got 0"),
        (lambda: signal.fft(WHOLE), KindError, r"fft takes a pair"),
        (lambda: signal.frame(X, 13, 1), ShapeError, r"a signal of 12 samples is shorter than a frame of 13"),
        (lambda: signal.frame(X, 3, 0), ShapeError, r"length and hop must be at least 1, got 3 and 0"),
        (lambda: signal.overlap_add(px.ones((4,)), 1), ShapeError, r"takes frames \[..., count, length\]"),
        (lambda: signal.stft(X, 8, win_length=9), ShapeError, r"win_length from 1 to n_fft, got 8, 2 and 9"),
        (lambda: signal.stft(X, 8, window=px.ones((7,))), ShapeError, r"window must be of shape \(8,\), got \(7,\)"),
        (lambda: signal.stft(X, 14, center=False), ShapeError, r"a signal of 12 samples is shorter than n_fft = 14"),
        (lambda: signal.stft(X, 24), ShapeError, r"is too short to be mirrored by 12 samples; use pad_mode"),
        (lambda: signal.stft(X, 8, pad_mode="edge"), ShapeError, r"pad_mode must be 'reflect' or 'constant'"),  # type: ignore[arg-type]
        (lambda: signal.istft(PAIR, 6), ShapeError, r"needs a pair of \[..., 4, frames\], got shape \(5, 3\)"),
        (
            lambda: signal.istft(PAIR, 8, 2, window=signal.hann_window(8), center=False),
            ShapeError,
            r"the windows leave samples uncovered",
        ),
        (lambda: signal.convolve(X, px.ones((0,))), ShapeError, r"both signals need at least one sample"),
        (lambda: signal.convolve(X, X, mode="most"), ShapeError, r"mode must be 'full', 'same' or 'valid'"),  # type: ignore[arg-type]
        (lambda: signal.hann_window(-1), ShapeError, r"the number of samples must not be negative, got -1"),
        (lambda: signal.gaussian_window(4, std=0.0), ShapeError, r"std must be positive"),
    ],
)
def test_bad_input(call: Callable[[], Any], error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        call()
