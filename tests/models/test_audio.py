"""Spectrograms are those of transformers; files of audio, and samples at another rate."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.errors import RangeError, RecordError
from phlox.interop import huggingface
from phlox.models import log_mel, read_wav, resample


def sound(seconds: float, rate: int = 16000) -> np.ndarray[Any, Any]:
    t = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(0).normal(size=len(t))
    return (0.4 * np.sin(2 * np.pi * (300 + 200 * t) * t) + 0.02 * noise).astype(np.float32)


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_spectrograms_are_those_of_transformers(backend: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    for sizes in ({"feature_size": 80}, {"feature_size": 128, "chunk_length": 2, "hop_length": 100, "n_fft": 800}):
        extractor = transformers.WhisperFeatureExtractor(**{"chunk_length": 3, **sizes})
        extractor.save_pretrained(tmp_path)
        config, _ = huggingface.load_speech(tmp_path)
        audio = sound(1.7)
        expected = extractor(audio, sampling_rate=16000, return_tensors="np").input_features
        padded = np.pad(audio, (0, config.seconds * config.rate - len(audio)))[None]
        result = log_mel(px.tensor(padded, device=backend), config).numpy()
        np.testing.assert_allclose(result, expected, atol=5e-5)


def test_audio_files(tmp_path: Path) -> None:
    audio = sound(0.1)
    for width, error in ((1, 1 / 127), (2, 1e-4), (3, 1e-6), (4, 1e-6)):
        scaled = np.round(audio.astype(np.float64) * (2 ** (8 * width - 1) - 1)).astype(np.int64)
        words = (scaled + 128 if width == 1 else scaled).astype("<i8")
        both = np.stack([words, words], 1).reshape(-1)  # two channels
        with wave.open(str(tmp_path / "a.wav"), "wb") as file:
            file.setparams((2, width, 16000, 0, "NONE", ""))
            file.writeframes(both.view(np.uint8).reshape(-1, 8)[:, :width].tobytes())
        np.testing.assert_allclose(read_wav(tmp_path / "a.wav"), audio, atol=error)
    assert len(read_wav(tmp_path / "a.wav", 8000)) == 800 and len(read_wav(tmp_path / "a.wav", None)) == 1600
    (tmp_path / "b.wav").write_bytes(b"RIFF....")
    with pytest.raises(RecordError, match="b.wav"):
        read_wav(tmp_path / "b.wav")
    # A tone keeps its frequency and height; one that is too high for the new rate goes.
    t = np.arange(44100) / 44100
    low = resample(np.sin(2 * np.pi * 100 * t) + np.sin(2 * np.pi * 9000 * t), 44100, 16000)
    np.testing.assert_allclose(low, np.sin(2 * np.pi * 100 * np.arange(16000) / 16000), atol=1e-9)
    np.testing.assert_allclose(resample(low, 16000, 48000)[::3], low, atol=1e-9)
    with pytest.raises(RangeError):
        resample(low, 0, 16000)
