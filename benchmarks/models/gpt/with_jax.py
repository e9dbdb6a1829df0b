"""The transformer in plain JAX: a function of a dictionary of arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.models import gpt

Arrays = dict[str, Any]


def parameters(sizes: gpt.Sizes, weights: Arrays) -> tuple[Arrays, Arrays]:
    """The trained parameters; there are no statistics."""
    return {name: jnp.asarray(array) for name, array in weights.items()}, {}


def _norm(x: jax.Array, gamma: jax.Array, beta: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)  # `x.var` would centre it again, and take a third longer
    return centred * jax.lax.rsqrt(variance + gpt.EPSILON) * gamma + beta


def _dropout(x: jax.Array, rate: float, key: Any) -> jax.Array:
    return jnp.where(jax.random.bernoulli(key, 1.0 - rate, x.shape), x / (1.0 - rate), 0.0)


def _attention(qkv: jax.Array, rate: float, key: Any) -> jax.Array:
    """Of queries, keys and values [batch, n, 3, heads, size]."""
    q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
    if not rate:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)
    n, size = q.shape[1], q.shape[-1]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q * size**-0.5, k)
    scores = jnp.where(jnp.tril(jnp.ones((n, n), bool)), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", _dropout(jax.nn.softmax(scores), rate, key), v)


def forward(sizes: gpt.Sizes, params: Arrays, stats: Arrays, x: Any, key: Any, train: bool) -> tuple[jax.Array, Arrays]:
    """Tokens [batch, n] to logits [batch, n, vocabulary]; the statistics as they were."""
    p, tokens, rate = params, x, sizes.dropout if train else 0.0
    keys = iter(jax.random.split(key, 3 * sizes.layers + 1) if rate else [None] * (3 * sizes.layers + 1))

    def dropped(x: jax.Array) -> jax.Array:
        at = next(keys)
        return _dropout(x, rate, at) if rate else x

    batch, n = tokens.shape
    x = dropped(p["tokens"][tokens] + p["places"][:n])
    for i in range(sizes.layers):
        h = _norm(x, p[f"{i}.norm_1"], p[f"{i}.norm_1_bias"])
        qkv = (h @ p[f"{i}.qkv"] + p[f"{i}.qkv_bias"]).reshape(batch, n, 3, sizes.heads, -1)
        h = _attention(qkv, rate, next(keys)).reshape(batch, n, sizes.width)
        x = x + dropped(h @ p[f"{i}.out"] + p[f"{i}.out_bias"])
        h = _norm(x, p[f"{i}.norm_2"], p[f"{i}.norm_2_bias"])
        h = jax.nn.gelu(h @ p[f"{i}.up"] + p[f"{i}.up_bias"])
        x = x + dropped(h @ p[f"{i}.down"] + p[f"{i}.down_bias"])
    return _norm(x, p["norm"], p["norm_bias"]) @ p["head"], stats
