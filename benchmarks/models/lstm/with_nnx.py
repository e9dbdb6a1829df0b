# pyright: reportMissingImports=false
# The other libraries are installed only for the benchmarks.
"""The language model of LSTMs in Flax NNX, on the cell that its documentation recommends for speed."""

# Flax says of its arrays that they may be None, and of its cells only what their base has.
# pyright: reportOptionalSubscript=false, reportArgumentType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from benchmarks.models import lstm


class Language(nnx.Module):
    """Tokens [batch, n] to logits [batch, n, vocabulary]."""

    def __init__(self, sizes: lstm.Sizes, rngs: nnx.Rngs) -> None:
        self.embedding = nnx.Embed(sizes.vocabulary, sizes.embedding, rngs=rngs)
        self.layers = nnx.List(
            [nnx.RNN(nnx.OptimizedLSTMCell(inputs, sizes.width, rngs=rngs), rngs=rngs) for inputs in sizes.inputs]
        )
        self.head = nnx.Linear(sizes.width, sizes.vocabulary, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def model(sizes: lstm.Sizes, weights: dict[str, Any]) -> nnx.Module:
    """The model with these weights."""
    net = Language(sizes, nnx.Rngs(0))
    net.embedding.embedding[...] = weights["embedding"]
    for i, layer in enumerate(net.layers):
        layer.cell.dense_i.kernel[...] = weights[f"{i}.input"]
        layer.cell.dense_h.kernel[...], layer.cell.dense_h.bias[...] = weights[f"{i}.hidden"], weights[f"{i}.bias"]
    net.head.kernel[...], net.head.bias[...] = weights["head"], weights["head_bias"]
    return net
