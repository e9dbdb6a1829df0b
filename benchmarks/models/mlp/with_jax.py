# pyright: reportMissingImports=false
# The other libraries are installed only for the benchmarks.
"""In plain JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.models.mlp import Sizes


def parameters(sizes: Sizes, weights: dict[str, Any]) -> tuple[Any, Any]:
    """The weights by name; nothing else is kept."""
    return jax.tree.map(jnp.asarray, weights), None


def forward(
    sizes: Sizes, params: dict[str, jax.Array], stats: Any, x: jax.Array, key: Any, train: bool
) -> tuple[jax.Array, Any]:
    """The logits."""
    last = len(sizes.widths) - 2
    for i in range(last):
        x = jax.nn.relu(x @ params[f"{i}.weight"] + params[f"{i}.bias"])
    return x @ params[f"{last}.weight"] + params[f"{last}.bias"], stats
