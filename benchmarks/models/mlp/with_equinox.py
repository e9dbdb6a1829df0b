# pyright: reportMissingImports=false
# The other libraries are installed only for the benchmarks.
"""In Equinox."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from benchmarks.models.mlp import Sizes


class Mlp(eqx.Module):
    """Linear layers, for one example."""

    layers: list[eqx.nn.Linear]

    def __init__(self, widths: tuple[int, ...], key: jax.Array) -> None:
        keys = jax.random.split(key, len(widths) - 1)
        self.layers = [eqx.nn.Linear(a, b, key=key) for (a, b), key in zip(pairwise(widths), keys, strict=True)]

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return self.layers[-1](x)


def model(sizes: Sizes, weights: dict[str, Any]) -> tuple[Mlp, None]:
    """With these weights; there is no other state."""
    new = [jnp.asarray(array.T) for array in weights.values()]
    found = Mlp(sizes.widths, jax.random.key(0))
    return eqx.tree_at(lambda m: [a for layer in m.layers for a in (layer.weight, layer.bias)], found, new), None


def forward(module: Mlp, state: None, x: jax.Array, key: Any, train: bool) -> tuple[jax.Array, None]:
    """The logits of a batch."""
    return jax.vmap(module)(x), state
