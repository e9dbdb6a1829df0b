# pyright: reportMissingImports=false, reportUnknownMemberType=false
# The other libraries are installed only for the benchmarks.
"""In Flax NNX."""

# Flax says of its arrays that they may be None, and of its cells only what their base has.
# pyright: reportOptionalSubscript=false

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
from flax import nnx

from benchmarks.models.mlp import Sizes


class Mlp(nnx.Module):
    """Linear layers."""

    def __init__(self, widths: tuple[int, ...], rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in pairwise(widths)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


def model(sizes: Sizes, weights: dict[str, Any]) -> nnx.Module:
    """The model with these weights."""
    found = Mlp(sizes.widths, nnx.Rngs(0))
    for i, layer in enumerate(found.layers):
        layer.kernel[...], layer.bias[...] = weights[f"{i}.weight"], weights[f"{i}.bias"]
    return found
