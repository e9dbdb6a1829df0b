"""Texts as vectors, for /v1/embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from phlox.tensor import tensor


def embed(model: Any, tokens: Sequence[int]) -> np.ndarray[Any, Any]:
    """The vector of a text, of length one: the mean of the last hidden states of its tokens. [d_model].

    The model is a `CausalModel`.
    """
    device = model.tokens.weight.device
    hidden = model.valid().hidden(tensor([list(tokens)], device=device))[0].mean(0).numpy().astype(np.float32)
    return hidden / max(float(np.linalg.norm(hidden)), 1e-12)
