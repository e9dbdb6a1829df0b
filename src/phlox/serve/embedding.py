"""Texts as vectors, for /v1/embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from phlox.tensor import tensor


def embed(model: Any, texts: Sequence[Sequence[int]]) -> np.ndarray[Any, Any]:
    """A vector of length one for each text: the mean of the last hidden states of its tokens. [texts, d_model].

    The model is a `CausalModel`, or a `SentenceEncoder`-like module with a method `embed` from tokens to vectors.
    """
    model = model.valid()
    device = model.tokens.weight.device
    rows = [model.hidden(tensor([list(text)], device=device))[0].mean(0).numpy() for text in texts]
    vectors = np.stack(rows).astype(np.float32)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
