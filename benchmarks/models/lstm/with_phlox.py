"""The language model of LSTMs in Phlox."""

from __future__ import annotations

from typing import Any

import phlox as px
from benchmarks.models import lstm
from phlox import nn
from phlox.record import Record


class Language(px.Module):
    """Tokens [batch, n] to logits [batch, n, vocabulary]."""

    def __init__(self, sizes: lstm.Sizes, device: px.Device) -> None:
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.embedding, device=device)
        self.lstm = nn.Lstm(sizes.embedding, sizes.width, n_layers=sizes.layers, device=device)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, device=device)

    def __call__(self, tokens: Any) -> px.Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0])

    def loss(self, x: Any, y: Any) -> px.Tensor:
        return nn.cross_entropy_loss(self(x), y)


def model(sizes: lstm.Sizes, weights: dict[str, Any], device: px.Device) -> Language:
    """The model with these weights."""
    found = {
        "embedding.weight": weights["embedding"],
        "head.weight": weights["head"],
        "head.bias": weights["head_bias"],
    }
    for layer in range(sizes.layers):
        names = {"input": "weight", "hidden": "recurrent", "bias": "bias"}
        found |= {f"lstm.layers.{layer}.{ours}": weights[f"{layer}.{name}"] for name, ours in names.items()}
    net = Language(sizes, device)
    net.load_record(Record(found))
    return net
