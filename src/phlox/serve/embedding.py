"""Texts as vectors, for /v1/embeddings, and batches of texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from phlox.backend import Device
from phlox.errors import ConfigError
from phlox.models import CausalModel, Encoder, SentenceEncoder, pool
from phlox.models.parts import Tokens
from phlox.tensor import functional, tensor

BATCH_TOKENS = 4096
"""The largest number of tokens, padding included, of a batch of several texts."""


def batches_of(texts: Sequence[Sequence[int]], most: int = BATCH_TOKENS) -> Iterator[list[int]]:
    """The numbers of the texts, in batches of similar lengths with at most so many tokens; a longer text is alone."""
    batch: list[int] = []
    for number in sorted(range(len(texts)), key=lambda number: len(texts[number])):
        n = len(texts[number])
        if batch and ((len(batch) + 1) * n > most or n > 2 * len(texts[batch[0]])):
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def padded(texts: Sequence[Sequence[int]], device: Device) -> tuple[Tokens, Tokens | None]:
    """Texts as tokens [batch, n], and their mask; None if there is no padding."""
    lengths = np.fromiter(map(len, texts), np.int64)
    mask = np.arange(max(map(len, texts))) < lengths[:, None]
    tokens = np.zeros(mask.shape, np.int32)
    tokens[mask] = np.concatenate(texts)
    return tensor(tokens, device=device), None if mask.all() else tensor(mask.astype(np.int32), device=device)


class Embedder:
    """Makes one vector of each text.

    A `SentenceEncoder` does so by itself. For a `CausalModel` or an `Encoder`, it is the mean of the last hidden states
    of the tokens, of length one.

    Raises `ConfigError` for another model.
    """

    def __init__(self, model: Any) -> None:
        if not isinstance(model, (CausalModel, Encoder, SentenceEncoder)):
            raise ConfigError(f"a {type(model).__name__} makes no vectors of texts")
        self._is_causal, self._is_sentences = isinstance(model, CausalModel), isinstance(model, SentenceEncoder)
        self._model: Any = model.valid()
        self.config: Any = self._model.config.model if self._is_sentences else self._model.config
        """The config of the model that reads the tokens."""

    def __call__(self, texts: Sequence[Sequence[int]], size: int | None = None) -> np.ndarray[Any, Any]:
        """The vectors of texts, as float32. With `size`, their first numbers, of length one again if they were."""
        _, param = next(iter(self._model.named_params()))
        tokens, mask = padded(texts, param.device)
        hidden = self._model.hidden(tokens) if self._is_causal else self._model(tokens, mask=mask)
        vectors = hidden if self._is_sentences else pool(hidden, mask)
        vectors = vectors if size is None else vectors[:, :size]
        if not self._is_sentences or (size is not None and self._model.config.normalized):
            vectors = functional.normalize(vectors)
        return vectors.numpy().astype(np.float32)
