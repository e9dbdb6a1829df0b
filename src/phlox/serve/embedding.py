"""Texts as vectors, for /v1/embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from phlox.errors import ConfigError
from phlox.models import CausalModel, Encoder, SentenceEncoder, pool
from phlox.tensor import functional, tensor


class Embedder:
    """Makes one vector of a text.

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

    def __call__(self, tokens: Sequence[int], size: int | None = None) -> np.ndarray[Any, Any]:
        """The vector of a text, as float32. With `size`, its first numbers, of length one again if the vector was."""
        _, param = next(iter(self._model.named_params()))
        text = tensor([list(tokens)], device=param.device)
        hidden = self._model.hidden(text) if self._is_causal else self._model(text)
        vector = hidden if self._is_sentences else pool(hidden)
        vector = vector if size is None else vector[:, :size]
        if not self._is_sentences or (size is not None and self._model.config.normalized):
            vector = functional.normalize(vector)
        return vector[0].numpy().astype(np.float32)
