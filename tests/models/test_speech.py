"""The rules of the tokens of Whisper, and its transcripts, are those of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phlox as px
from phlox.interop import huggingface
from phlox.models import BannedFirst, TimestampRules, transcribe
from tests.models.test_audio import sound

BACKENDS = ("numpy", "jax", "torch")


def test_rules_of_tokens_are_those_of_transformers() -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from transformers.generation.logits_process import (
        SuppressTokensAtBeginLogitsProcessor,
        WhisperTimeStampLogitsProcessor,
    )

    settings = transformers.GenerationConfig(eos_token_id=20, bos_token_id=20)
    settings.no_timestamps_token_id, settings.max_initial_timestamp_index = 24, 3
    generator = np.random.default_rng(0)
    begin, vocabulary = 3, 40
    theirs = WhisperTimeStampLogitsProcessor(settings, begin_index=begin)
    ours = TimestampRules(begin, no_timestamps=24, end=20, latest_first=3)
    first = SuppressTokensAtBeginLogitsProcessor([5, 7], begin)
    for drawn in range(7):
        rows = generator.integers(0, 20, (64, begin + drawn))
        times = np.sort(generator.integers(25, 40, rows[:, begin:].shape), 1)
        rows[:, begin:] = np.where(generator.random(times.shape) < 0.6, times, rows[:, begin:])
        logits = generator.normal(size=(64, vocabulary)).astype(np.float32) * 2
        padded = np.concatenate([np.full((64, 4), -1), rows], 1)
        expected = theirs(torch.tensor(rows), torch.tensor(logits)).numpy()
        for history in (rows, padded):
            result = ours(px.tensor(history, device="numpy"), px.tensor(logits, device="numpy")).numpy()
            np.testing.assert_array_equal(result, expected)
            banned = BannedFirst(begin, (5, 7))(px.tensor(history), px.tensor(logits)).numpy()
            np.testing.assert_array_equal(banned, first(torch.tensor(rows), torch.tensor(logits)).numpy())


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.WhisperConfig(
        vocab_size=60, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, num_mel_bins=8, max_source_positions=50,
        max_target_positions=40, pad_token_id=20, bos_token_id=20, eos_token_id=20, decoder_start_token_id=21,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.3
    settings = model.generation_config
    settings.lang_to_id, settings.task_to_id = {"<|de|>": 22, "<|en|>": 23}, {"translate": 24, "transcribe": 25}
    settings.no_timestamps_token_id, settings.is_multilingual = 29, True
    settings.suppress_tokens, settings.begin_suppress_tokens = [3, 4, 9, 22, 23, 24, 25], [5, 20]
    settings.max_initial_timestamp_index = 10
    folder = tmp_path_factory.mktemp("whisper")
    model.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(folder)
    return model, folder


@pytest.mark.parametrize("seconds", [0.9, 2.7])
@pytest.mark.parametrize("timestamps", [False, True])
def test_transcripts_are_those_of_transformers(whisper: tuple[Any, Path], timestamps: bool, seconds: float) -> None:
    from transformers import WhisperFeatureExtractor

    if seconds > 1.0 and not timestamps:
        pytest.skip("theirs takes long audio with timestamps alone")
    reference, folder = whisper
    config, tokens = huggingface.load_speech(folder)
    assert tokens.languages == {"de": 22, "en": 23} and tokens.banned_first == (5, 20) and config.n_mels == 8
    audio = sound(seconds)
    features = WhisperFeatureExtractor.from_pretrained(folder)(
        audio, sampling_rate=16000, return_tensors="pt", padding="max_length" if seconds < 1.0 else "longest",
        truncation=seconds < 1.0,
    ).input_features  # fmt: skip
    for language in ("en", None):
        expected = reference.generate(
            features, language=language, task="translate", return_timestamps=timestamps, max_new_tokens=12,
            do_sample=False, return_segments=True,
        )  # fmt: skip
        for backend in BACKENDS if timestamps else ("numpy",):
            model = huggingface.load(folder, device=backend)
            segments = transcribe(
                model, audio, config=config, tokens=tokens, language=language, task="translate",
                timestamps=timestamps, max_new_tokens=12,
            )  # fmt: skip
            theirs = expected["segments"][0]
            assert len(segments) == len(theirs)
            for segment, other in zip(segments, theirs, strict=True):
                is_text = [token for token in other["tokens"].tolist() if token < 30 and token != 20]
                assert segment.tokens == is_text
                if timestamps:
                    np.testing.assert_allclose(segment[:2], [float(other["start"]), float(other["end"])], atol=1e-6)
