# pyright: reportMissingImports=false
# The other libraries are installed only for the benchmarks.
"""The transformer in Flax NNX, on its attention."""

# Flax says of its arrays that they may be None, and of its cells only what their base has.
# pyright: reportOptionalSubscript=false

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from benchmarks.models import gpt


class Block(nnx.Module):
    """Attention and an MLP."""

    def __init__(self, sizes: gpt.Sizes, rngs: nnx.Rngs) -> None:
        width, rate = sizes.width, sizes.dropout
        self.norm_1 = nnx.LayerNorm(width, epsilon=gpt.EPSILON, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            sizes.heads, width, dropout_rate=rate, broadcast_dropout=False, decode=False, rngs=rngs
        )
        self.norm_2 = nnx.LayerNorm(width, epsilon=gpt.EPSILON, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)
        self.dropout = nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = x + self.dropout(self.attention(self.norm_1(x), mask=mask))
        return x + self.dropout(self.down(nnx.gelu(self.up(self.norm_2(x)))))


class Gpt(nnx.Module):
    """Tokens [batch, n] to logits [batch, n, vocabulary]."""

    def __init__(self, sizes: gpt.Sizes, rngs: nnx.Rngs) -> None:
        width = sizes.width
        self.tokens = nnx.Embed(sizes.vocabulary, width, rngs=rngs)
        self.places = nnx.Embed(sizes.context, width, rngs=rngs)
        self.dropout = nnx.Dropout(sizes.dropout, rngs=rngs)
        self.blocks = nnx.List([Block(sizes, rngs) for _ in range(sizes.layers)])
        self.norm = nnx.LayerNorm(width, epsilon=gpt.EPSILON, rngs=rngs)
        self.head = nnx.Linear(width, sizes.vocabulary, use_bias=False, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = self.dropout(self.tokens(tokens) + self.places(jnp.arange(tokens.shape[1])))
        mask = nnx.make_causal_mask(tokens)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def model(sizes: gpt.Sizes, weights: dict[str, Any]) -> nnx.Module:
    """The model with these weights."""
    net, w = Gpt(sizes, nnx.Rngs(0)), weights
    net.tokens.embedding[...], net.places.embedding[...], net.head.kernel[...] = w["tokens"], w["places"], w["head"]
    norms, linears = {"norm": net.norm}, {}
    for i, block in enumerate(net.blocks):
        norms |= {f"{i}.{name}": getattr(block, name) for name in ("norm_1", "norm_2")}
        linears |= {f"{i}.{name}": getattr(block, name) for name in ("up", "down")}
        attention = block.attention
        parts = (attention.query, attention.key, attention.value)
        for part, (matrix, bias) in zip(parts, gpt.by_head(sizes, w, i), strict=True):
            part.kernel[...], part.bias[...] = matrix, bias
        attention.out.kernel[...] = w[f"{i}.out"].reshape(sizes.heads, -1, sizes.width)
        attention.out.bias[...] = w[f"{i}.out_bias"]
    for name, norm in norms.items():
        norm.scale[...], norm.bias[...] = w[name], w[f"{name}_bias"]
    for name, linear in linears.items():
        linear.kernel[...], linear.bias[...] = w[name], w[f"{name}_bias"]
    return net
