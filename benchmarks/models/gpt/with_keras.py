# pyright: reportMissingImports=false
# The other libraries are installed only for the benchmarks.
"""The transformer in Keras, on its attention."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from benchmarks.models import gpt


class Embedding(layers.Layer):
    """Tokens [batch, n] to [batch, n, width]: the token embedding plus the position embedding."""

    def __init__(self, sizes: gpt.Sizes) -> None:
        super().__init__()
        self.tokens = layers.Embedding(sizes.vocabulary, sizes.width)
        self.places = layers.Embedding(sizes.context, sizes.width)

    def call(self, tokens: Any) -> Any:
        return self.tokens(tokens) + self.places(keras.ops.arange(tokens.shape[-1]))


def model(sizes: gpt.Sizes, weights: dict[str, Any]) -> keras.Model:
    """The model with these weights."""
    w, width, rate = weights, sizes.width, sizes.dropout
    named: dict[str, Any] = {}

    def norm(name: str, x: Any) -> Any:
        named[name] = layers.LayerNormalization(epsilon=gpt.EPSILON)
        return named[name](x)

    def dense(name: str, size: int, x: Any) -> Any:
        named[name] = layers.Dense(size)
        return named[name](x)

    def dropped(x: Any) -> Any:
        return layers.Dropout(rate)(x) if rate else x

    tokens = keras.Input((sizes.context,), dtype="int32")
    embedding = Embedding(sizes)
    attentions = [
        layers.MultiHeadAttention(sizes.heads, width // sizes.heads, dropout=rate) for _ in range(sizes.layers)
    ]
    x = dropped(embedding(tokens))
    for i, attention in enumerate(attentions):
        h = norm(f"{i}.norm_1", x)
        x = x + dropped(attention(h, h, use_causal_mask=True))
        h = dense(f"{i}.up", 4 * width, norm(f"{i}.norm_2", x))
        x = x + dropped(dense(f"{i}.down", width, keras.activations.gelu(h, approximate=True)))
    head = layers.Dense(sizes.vocabulary, use_bias=False)
    net = keras.Model(tokens, head(norm("norm", x)))
    embedding.set_weights([w["tokens"], w["places"]])
    head.set_weights([w["head"]])
    for name, layer in named.items():
        layer.set_weights([w[name], w[f"{name}_bias"]])
    for i, attention in enumerate(attentions):
        pairs = [array for pair in gpt.by_head(sizes, w, i) for array in pair]
        attention.set_weights([*pairs, w[f"{i}.out"].reshape(sizes.heads, -1, width), w[f"{i}.out_bias"]])
    return net
