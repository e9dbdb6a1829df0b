"""The language model of LSTMs in plain JAX: `lax.scan` over input products, computed for all steps at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.models import lstm

Arrays = dict[str, Any]


def parameters(sizes: lstm.Sizes, weights: Arrays) -> tuple[Arrays, Arrays]:
    """The trained parameters; there are no statistics."""
    return {name: jnp.asarray(array) for name, array in weights.items()}, {}


def _layer(x: jax.Array, hidden: jax.Array) -> jax.Array:
    """From the input products [n, batch, 4 width] to the states [n, batch, width]."""

    def step(carry: tuple[jax.Array, jax.Array], x: jax.Array) -> Any:
        h, c = carry
        i, f, g, o = jnp.split(x + h @ hidden, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((x.shape[1], hidden.shape[0]))
    return jax.lax.scan(step, (zero, zero), x)[1]


def forward(
    sizes: lstm.Sizes, params: Arrays, stats: Arrays, x: Any, key: Any, train: bool
) -> tuple[jax.Array, Arrays]:
    """Tokens [batch, n] to logits [batch, n, vocabulary]; the statistics as they were."""
    x = params["embedding"][x.T]
    for i in range(sizes.layers):
        x = _layer(x @ params[f"{i}.input"] + params[f"{i}.bias"], params[f"{i}.hidden"])
    return x.swapaxes(0, 1) @ params["head"] + params["head_bias"], stats
