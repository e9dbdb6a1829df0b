# pyright: reportMissingImports=false
# The other libraries are installed only for the benchmarks.
"""The transformer in Equinox, on its attention: of one text, mapped over the batch."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from benchmarks.models import gpt


def _keys(key: Any, n: int) -> Any:
    """`n` keys, or `n` times None if nothing is drawn."""
    return [None] * n if key is None else jax.random.split(key, n)


class Block(eqx.Module):
    """Attention and an MLP."""

    norm_1: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    norm_2: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear
    dropout: eqx.nn.Dropout

    def __init__(self, sizes: gpt.Sizes, key: Any) -> None:
        width, biases = sizes.width, dict.fromkeys(("query", "key", "value", "output"), True)
        self.norm_1 = eqx.nn.LayerNorm(width, eps=gpt.EPSILON)
        self.attention = eqx.nn.MultiheadAttention(
            sizes.heads,
            width,
            **{f"use_{name}_bias": value for name, value in biases.items()},
            dropout_p=sizes.dropout,
            key=key,
        )
        self.norm_2 = eqx.nn.LayerNorm(width, eps=gpt.EPSILON)
        self.up = eqx.nn.Linear(width, 4 * width, key=key)
        self.down = eqx.nn.Linear(4 * width, width, key=key)
        self.dropout = eqx.nn.Dropout(sizes.dropout)

    def __call__(self, x: jax.Array, mask: jax.Array, key: Any) -> jax.Array:
        keys = _keys(key, 3)
        h = jax.vmap(self.norm_1)(x)
        x = x + self.dropout(self.attention(h, h, h, mask=mask, key=keys[0]), key=keys[1])
        h = jax.vmap(lambda row: self.down(jax.nn.gelu(self.up(self.norm_2(row)))))(x)
        return x + self.dropout(h, key=keys[2])


class Gpt(eqx.Module):
    """Tokens [n] to logits [n, vocabulary]."""

    tokens: eqx.nn.Embedding
    places: eqx.nn.Embedding
    dropout: eqx.nn.Dropout
    blocks: list[Block]
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, sizes: gpt.Sizes, key: Any) -> None:
        self.tokens = eqx.nn.Embedding(sizes.vocabulary, sizes.width, key=key)
        self.places = eqx.nn.Embedding(sizes.context, sizes.width, key=key)
        self.dropout = eqx.nn.Dropout(sizes.dropout)
        self.blocks = [Block(sizes, key) for _ in range(sizes.layers)]
        self.norm = eqx.nn.LayerNorm(sizes.width, eps=gpt.EPSILON)
        self.head = eqx.nn.Linear(sizes.width, sizes.vocabulary, use_bias=False, key=key)

    def __call__(self, tokens: jax.Array, key: Any = None) -> jax.Array:
        n = tokens.shape[0]
        first, *keys = _keys(key, 1 + len(self.blocks))
        x = self.dropout(jax.vmap(self.tokens)(tokens) + jax.vmap(self.places)(jnp.arange(n)), key=first)
        mask = jnp.tril(jnp.ones((n, n), bool))
        for block, at in zip(self.blocks, keys, strict=True):
            x = block(x, mask, at)
        return jax.vmap(lambda row: self.head(self.norm(row)))(x)


def model(sizes: gpt.Sizes, weights: dict[str, Any]) -> tuple[Gpt, None]:
    """The model with these weights; it has no state."""
    w = weights

    def found(net: Gpt) -> list[Any]:
        layers: list[Any] = [net.norm]
        for block in net.blocks:
            at = block.attention
            layers += [at.query_proj, at.key_proj, at.value_proj, at.output_proj]
            layers += [block.up, block.down, block.norm_1, block.norm_2]
        arrays = [array for layer in layers for array in (layer.weight, layer.bias)]
        return [net.tokens.weight, net.places.weight, net.head.weight, *arrays]

    pairs = [(w["norm"], w["norm_bias"])]
    for i in range(sizes.layers):
        pairs += gpt.projections(w, i)
        pairs += [(w[f"{i}.{name}"], w[f"{i}.{name}_bias"]) for name in ("out", "up", "down", "norm_1", "norm_2")]
    new = [w["tokens"], w["places"], w["head"].T, *[array.T for pair in pairs for array in pair]]
    net = Gpt(sizes, jax.random.key(0))
    return eqx.tree_at(found, net, [jnp.asarray(array) for array in new]), None


def forward(module: Gpt, state: None, x: Any, key: Any, train: bool) -> tuple[jax.Array, None]:
    """Tokens [batch, n] to logits [batch, n, vocabulary]."""
    if not train or not module.dropout.p:
        return jax.vmap(eqx.nn.inference_mode(module, not train))(x), state
    return jax.vmap(module)(x, jax.random.split(key, x.shape[0])), state
