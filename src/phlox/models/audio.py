"""Audio: the spectrogram that Whisper hears, and files of samples."""

from __future__ import annotations

import math
import os
import wave
from functools import lru_cache
from typing import Any

import numpy as np

from phlox.backend import Float
from phlox.config import Config
from phlox.errors import RangeError, RecordError
from phlox.models.parts import check_counts
from phlox.tensor import Tensor, signal, tensor
from phlox.tensor.functional.operands import check_kind
from phlox.tensor.functions import at_full_precision

__all__ = ["LogMelConfig", "log_mel", "read_wav", "resample"]

HIGHEST = 8000.0
"""The highest frequency of the filters, in hertz."""


class LogMelConfig(Config):
    """How `log_mel` computes a spectrogram. The defaults are those of the first Whisper models."""

    n_mels: int = 80
    """The number of filters."""
    rate: int = 16000
    """Samples in a second."""
    n_fft: int = 400
    """Samples in a frame."""
    hop: int = 160
    """Samples from one frame to the next."""
    seconds: int = 30
    """The length of the pieces in which a model hears long audio."""

    def validate(self) -> None:
        check_counts(n_mels=self.n_mels, rate=self.rate, n_fft=self.n_fft, hop=self.hop, seconds=self.seconds)


@at_full_precision
def log_mel(samples: Tensor, config: LogMelConfig = LogMelConfig()) -> Tensor:  # noqa: B008  (configs are immutable)
    """The spectrogram of audio, as Whisper reads it: [..., samples] to [..., n_mels, samples // hop].

    The logarithms of the energies of mel filters (Slaney's scale), cut off at 8 below the largest, which is taken over
    each signal [samples], and scaled to about -1 to 1. Whisper hears pieces of 30 seconds, see `transcribe`.

    Args:
        samples: numbers from -1 to 1, at the rate of the config.
        config: the sizes.

    Raises `ShapeError` for less than half a frame.

    >>> import phlox as px
    >>> log_mel(px.ones((2, 16000)) * 0.1).shape
    (2, 80, 100)
    """
    check_kind("log_mel", Float, samples=samples)
    window = signal.hann_window(config.n_fft, device=samples.device)
    spectrum = signal.stft(samples, config.n_fft, config.hop, window=window)
    energy = (spectrum.real.square() + spectrum.imag.square())[..., :-1]
    filters = tensor(_mel_filters(config.n_mels, config.n_fft, config.rate), device=samples.device, kind=Float)
    levels = (filters @ energy).clip(1e-10, None).log10()
    largest = levels.max(-1, keepdims=True).max(-2, keepdims=True)
    return (levels.maximum(largest - 8.0) + 4.0) * 0.25


@lru_cache(maxsize=8)
def _mel_filters(count: int, n_fft: int, rate: int) -> np.ndarray[Any, Any]:
    """Triangles over the frequencies, of equal area: [count, n_fft // 2 + 1]."""
    linear, step = 1000.0, math.log(6.4) / 27.0  # linear up to 1000 hertz, 15 mels; then logarithmic
    mels = np.linspace(0.0, 15.0 + math.log(HIGHEST / linear) / step, count + 2)
    edges = np.where(mels < 15.0, mels * linear / 15.0, linear * np.exp(step * (mels - 15.0)))
    slopes = (edges[:, None] - np.linspace(0.0, rate // 2, n_fft // 2 + 1)) / 1.0
    widths = np.diff(edges)[:, None]
    triangles = np.minimum(-slopes[:-2] / widths[:-1], slopes[2:] / widths[1:]).clip(0.0)
    return (triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32)


def read_wav(path: str | os.PathLike[str], rate: int | None = 16000) -> np.ndarray[Any, Any]:
    """The samples of a WAV file, from -1 to 1: float32 [samples]. Several channels are averaged.

    Args:
        path: a file of integers of 8, 16, 24 or 32 bits (PCM).
        rate: the rate to `resample` to; None leaves that of the file.

    Raises `RecordError` for another file.
    """
    try:
        with wave.open(os.fspath(path), "rb") as file:
            channels, width, own_rate, frames = file.getparams()[:4]
            data = file.readframes(frames)
    except (wave.Error, EOFError) as error:
        raise RecordError(f"{path}: not a WAV file of integers (PCM): {error}") from None
    data = data[: len(data) // (channels * width) * (channels * width)]
    if width == 1:
        samples = np.frombuffer(data, np.uint8) / 128.0 - 1.0
    else:  # the bytes become the highest ones of 32 bits
        words = np.zeros((len(data) // width, 4), np.uint8)
        words[:, 4 - width :] = np.frombuffer(data, np.uint8).reshape(-1, width)
        samples = words.view("<i4")[:, 0] / 2.0**31
    samples = samples.reshape(-1, channels).mean(1)
    return (samples if rate is None else resample(samples, own_rate, rate)).astype(np.float32)


def resample(samples: np.ndarray[Any, Any], rate: int, new_rate: int) -> np.ndarray[Any, Any]:
    """Samples at another rate: the same frequencies, without those that the new rate cannot hold.

    The signal counts as periodic, so that its ends may swing for some samples.

    >>> resample(np.ones(441), 44100, 16000).shape
    (160,)
    """
    if min(rate, new_rate) < 1:
        raise RangeError(f"resample: rates must be at least one, got {rate} and {new_rate}")
    if rate == new_rate or not len(samples):
        return samples
    size = max(1, round(len(samples) * new_rate / rate))
    spectrum = np.fft.rfft(samples)[: size // 2 + 1]
    return np.fft.irfft(spectrum, size) * (size / len(samples))
