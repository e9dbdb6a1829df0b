"""Speech to text with Whisper: the rules of its tokens, and transcripts of audio of any length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from phlox.backend import Float
from phlox.errors import RangeError, ShapeError
from phlox.models.audio import LogMelConfig, log_mel
from phlox.models.encoder_decoder import EncoderDecoder
from phlox.models.parts import Tokens
from phlox.tensor import Tensor, arange, concat, tensor, where

__all__ = ["BannedFirst", "SpeechSegment", "SpeechTokens", "TimestampRules", "detect_language", "transcribe"]


@dataclass(frozen=True)
class BannedFirst:
    """A processor (see `generate`) that bans tokens as the first ones after prompts of `begin` tokens."""

    begin: int
    banned: tuple[int, ...]

    def __call__(self, tokens: Tokens, logits: Tensor) -> Tensor:
        banned = np.zeros(logits.shape[-1], np.bool_)
        banned[list(self.banned)] = True
        is_first = (tokens >= 0).int().sum(-1, keepdims=True) == self.begin
        return where(is_first & tensor(banned, device=logits.device), -math.inf, logits)


@dataclass(frozen=True)
class TimestampRules:
    """A processor (see `generate`) of Whisper's timestamps, the tokens after `no_timestamps`.

    They come in pairs, except before the end, and never decrease; a text begins with one, of at most `latest_first`;
    and if together they are more likely than each other token, one of them is written.
    """

    begin: int
    """The number of tokens of each prompt."""
    no_timestamps: int
    end: int
    """The token that ends a text; all smaller ones are text."""
    latest_first: int | None = 50

    def __call__(self, tokens: Tokens, logits: Tensor) -> Tensor:
        n, first = tokens.shape[1], self.no_timestamps + 1
        drawn = (tokens >= 0).int().sum(-1, keepdims=True) - self.begin
        before = tokens if n > 1 else concat([tokens, tokens], 1)
        is_last = (drawn >= 1) & (tokens[:, -1:] >= first)
        is_paired = (drawn < 2) | (before[:, -2:-1] >= first)
        is_new = arange(n, device=tokens.device) >= -drawn + n
        latest = where(is_new & (tokens >= first), tokens, first - 1).max(-1, keepdims=True)
        least = where(is_last & ~is_paired, latest, latest + 1)
        ids = arange(logits.shape[-1], device=tokens.device).expand_dims(0)
        is_time = ids >= first
        allowed = first + logits.shape[-1] if self.latest_first is None else first + self.latest_first
        banned = (ids == self.no_timestamps) | (is_time & (ids < least)) | (is_last & is_paired & is_time)
        banned = banned | (is_last & ~is_paired & (ids < self.end))
        banned = banned | ((drawn == 0) & (~is_time | (ids > allowed)))
        logits = where(banned, -math.inf, logits)
        times = logits[:, first:].logsumexp(-1, keepdims=True)
        return where((times > logits[:, :first].max(-1, keepdims=True)) & ~is_time, -math.inf, logits)


@dataclass(frozen=True)
class SpeechTokens:
    """The tokens of a Whisper model that are not text; `phlox.interop.huggingface.load_speech` reads them."""

    languages: Mapping[str, int] = field(default_factory=dict[str, int])
    """The token of each language, as "en"; none for a model of one language."""
    tasks: Mapping[str, int] = field(default_factory=dict[str, int])
    """Those of "transcribe" and "translate" (to English)."""
    no_timestamps: int | None = None
    banned: tuple[int, ...] = ()
    """Tokens that are never written."""
    banned_first: tuple[int, ...] = ()
    """Tokens that no text begins with."""
    latest_first: int | None = None
    """See `TimestampRules`."""


def detect_language(model: EncoderDecoder, features: Tensor, tokens: SpeechTokens) -> list[str]:
    """The most likely language of each spectrogram [batch, n_mels, frames]."""
    if not tokens.languages:
        raise RangeError("detect_language: this model has no tokens of languages")
    start = tensor([[model.config.start_token]] * features.shape[0], device=features.device)
    logits = model.start(features)(start)[:, 0].numpy()
    names = list(tokens.languages)
    return [names[row] for row in logits[:, [tokens.languages[name] for name in names]].argmax(-1)]


class SpeechSegment(NamedTuple):
    """A piece of what `transcribe` hears."""

    start: float
    """In seconds from the beginning of the audio."""
    end: float
    tokens: list[int]
    """Without timestamps."""


def transcribe(
    model: EncoderDecoder,
    samples: Tensor | np.ndarray[Any, Any],
    *,
    config: LogMelConfig = LogMelConfig(),  # noqa: B008
    tokens: SpeechTokens = SpeechTokens(),
    language: str | None = None,
    task: str | None = None,
    timestamps: bool = False,
    prompt: Sequence[int] | None = None,
    max_new_tokens: int | None = None,
    temperature: float = 0.0,
    **options: Any,
) -> list[SpeechSegment]:
    """The text of speech of any length, as tokens, with times.

    The model hears pieces of 30 seconds, one after the other. With timestamps, the next piece begins where the last
    finished sentence ended; without them, it begins after 30 seconds, and a word across the border may be lost or
    written twice. No piece is heard again at a higher temperature, none is left out as silence, and no piece sees the
    text of those before it.

    Args:
        model: a Whisper model.
        samples: audio [samples], at the rate of the config; see `read_wav`.
        config: the spectrogram.
        tokens: the special tokens of the model.
        language: the language of the speech, as "en"; by default the most likely one in the first piece.
        task: "transcribe", or "translate" to English; by default the former, if the model has tasks.
        timestamps: whether each sentence is a segment with its times; otherwise each piece is one.
        prompt: the first tokens, in the place of those of language, task and timestamps.
        max_new_tokens: the largest number of tokens of a piece; by default what the context holds.
        temperature, options: see `EncoderDecoder.generate`.

    Raises `RangeError` for a language or a task that the model does not have, or for timestamps if it has none.
    """
    device, size = model.tokens.weight.device, config.seconds * config.rate
    audio = (samples if isinstance(samples, Tensor) else tensor(samples, device=device, kind=Float)).to_device(device)
    if audio.ndim != 1:
        raise ShapeError(f"transcribe: audio must be [samples], got shape {audio.shape}")
    features = log_mel(audio.pad(((0, max(0, size - audio.shape[0])),)), config)
    width = size // config.hop
    if prompt is None:
        prompt = _prompt(model, features[:, :width], tokens, language, task, timestamps)
    processors = list(options.pop("processors", ()))
    if tokens.banned_first:
        processors.append(BannedFirst(len(prompt), tokens.banned_first))
    if timestamps:
        if tokens.no_timestamps is None:
            raise RangeError("transcribe: this model has no timestamps: `no_timestamps` of its tokens is None")
        end = model.config.stop_tokens[0] if model.config.stop_tokens else tokens.no_timestamps
        processors.append(TimestampRules(len(prompt), tokens.no_timestamps, end, tokens.latest_first))
    options = {"banned": tokens.banned or None, "temperature": temperature, "processors": processors, **options}
    most = model.config.context - len(prompt) if max_new_tokens is None else max_new_tokens
    segments, position, frames = list[SpeechSegment](), 0, features.shape[1]
    while position < frames:
        count = min(width, frames - position)
        piece = features[:, position : position + count].pad(((0, 0), (0, width - count)))
        text: list[int] = model.generate(piece, most, prompt=prompt, **options).tolist()[len(prompt) :]
        first = tokens.no_timestamps + 1 if timestamps and tokens.no_timestamps is not None else None
        parts, heard = _parts(text, count, first)
        for start, end, part in parts:
            begin, stop = ((position + frame) * config.hop / config.rate for frame in (start, end))
            segments.append(SpeechSegment(begin, stop, part))
        position += heard
    return segments


FRAMES = 2
"""The number of frames from one timestamp to the next."""


def _parts(text: list[int], frames: int, first: int | None) -> tuple[list[tuple[int, int, list[int]]], int]:
    """The segments of a text, with their first and last frames, and how many frames they take; `first` is the token
    of time zero, if there are timestamps.
    """
    times = {n: (token - first) * FRAMES for n, token in enumerate(text) if first is not None and token >= first}

    def words(start: int, end: int) -> list[int]:
        return [text[n] for n in range(start, end) if n not in times]

    ends = [n for n in times if n + 1 in times]
    if not ends:
        return [(0, max(times.values(), default=0) or frames, words(0, len(text)))], frames
    heard = times[ends[-1]]
    if len(text) - 1 in times and len(text) - 2 not in times:  # silence follows the last timestamp
        ends.append(len(text) - 1)
        heard = frames
    starts = [0, *[n + 1 for n in ends[:-1]]]
    parts = [(times.get(a, 0), times[b], words(a, b)) for a, b in zip(starts, ends, strict=True)]
    return parts, heard or frames


def _prompt(
    model: EncoderDecoder,
    features: Tensor,
    tokens: SpeechTokens,
    language: str | None,
    task: str | None,
    timestamps: bool,
) -> list[int]:
    prompt = [model.config.start_token]
    if tokens.languages:
        language = detect_language(model, features[None], tokens)[0] if language is None else language
        prompt.append(_token_of("language", language, tokens.languages))
    if tokens.tasks and (tokens.languages or task is not None):
        prompt.append(_token_of("task", "transcribe" if task is None else task, tokens.tasks))
    if tokens.no_timestamps is not None and not timestamps:
        prompt.append(tokens.no_timestamps)
    return prompt


def _token_of(name: str, value: str, tokens: Mapping[str, int]) -> int:
    if value not in tokens:
        raise RangeError(f"transcribe: this model has no {name} {value!r}; it has {', '.join(tokens)}")
    return tokens[value]
