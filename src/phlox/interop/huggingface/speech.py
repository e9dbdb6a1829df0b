"""What the folder of a Whisper model says about audio and special tokens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from phlox.interop.huggingface.settings import Settings, read_settings
from phlox.models import LogMelConfig, SpeechTokens

__all__ = ["load_speech"]

_HARMLESS = frozenset({
    "feature_extractor_type", "image_processor_type", "mel_filters", "n_samples", "nb_max_frames", "processor_class",
    "return_attention_mask", "return_tensors", "tokenizer",
})  # fmt: skip


def load_speech(folder: str | os.PathLike[str]) -> tuple[LogMelConfig, SpeechTokens]:
    """The spectrogram and the special tokens of a Whisper model, for `phlox.models.transcribe`.

    They are read from `preprocessor_config.json` (or `processor_config.json`) and `generation_config.json`; what a
    missing file would say has its default.

    Raises `ConfigError` for a setting of the spectrogram that is not supported.
    """
    path = Path(folder)
    return _log_mel(path), _tokens(path)


def _log_mel(path: Path) -> LogMelConfig:
    if (path / "preprocessor_config.json").is_file():
        settings = read_settings(path, "preprocessor_config.json")
    elif (path / "processor_config.json").is_file():
        whole = read_settings(path, "processor_config.json")
        settings = whole.table("feature_extractor") or Settings({}, whole.location)
    else:
        return LogMelConfig()
    settings.only("dither", 0.0, "noise would be added")
    settings.only("do_normalize", False, "the audio would be normalized")
    settings.only("padding_value", 0.0, "pieces would not be filled with silence")
    settings.only("padding_side", "right", "silence would come before the audio")
    config = LogMelConfig(
        n_mels=settings.whole("feature_size", 80),
        rate=settings.whole("sampling_rate", 16000),
        n_fft=settings.whole("n_fft", 400),
        hop=settings.whole("hop_length", 160),
        seconds=settings.whole("chunk_length", 30),
    )
    settings.check_all_read(_HARMLESS)
    return config


def _tokens(path: Path) -> SpeechTokens:
    names = ("generation_config.json", "config.json")  # former versions have some of it in the second one
    tables = [read_settings(path, name) for name in names if (path / name).is_file()]

    def value(key: str) -> Any:
        return next((entry for table in tables if (entry := table.get(key, None)) is not None), None)

    languages: dict[str, int] = value("lang_to_id") or {}
    return SpeechTokens(
        languages={name.strip("<|>"): token for name, token in languages.items()},
        tasks=dict(value("task_to_id") or {}),
        no_timestamps=value("no_timestamps_token_id"),
        banned=tuple(value("suppress_tokens") or ()),
        banned_first=tuple(value("begin_suppress_tokens") or ()),
        latest_first=value("max_initial_timestamp_index"),
    )
