"""A causal transformer as GPT-2 is one, as every library here writes it.

It has pre-normalization, learned positions, gelu by tanh, and a bias in every linear layer except the head. Dropout, if
there is any, applies to the embeddings, the attention weights, and the output of each half of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

EPSILON = 1e-5
"""The epsilon of the normalizations."""


@dataclass(frozen=True)
class Sizes:
    """The sizes, which determine the amount of work."""

    layers: int = 4
    width: int = 256
    heads: int = 4
    context: int = 128
    batch: int = 16
    vocabulary: int = 512
    dropout: float = 0.0


def weights(sizes: Sizes) -> dict[str, Any]:
    """The parameters by name; the columns of `qkv` are those of queries, keys and values, head by head."""
    rng, width = np.random.default_rng(0), sizes.width

    def matrix(*shape: int) -> Any:
        return rng.normal(size=shape, scale=0.02).astype(np.float32)

    def norm(name: str) -> dict[str, Any]:
        return {name: 1.0 + matrix(width), f"{name}_bias": matrix(width)}

    found = {"tokens": matrix(sizes.vocabulary, width), "places": matrix(sizes.context, width)}
    products = {"qkv": (width, 3 * width), "out": (width, width), "up": (width, 4 * width), "down": (4 * width, width)}
    for layer in range(sizes.layers):
        for name, shape in products.items():
            found |= {f"{layer}.{name}": matrix(*shape), f"{layer}.{name}_bias": matrix(shape[1])}
        found |= norm(f"{layer}.norm_1") | norm(f"{layer}.norm_2")
    return found | norm("norm") | {"head": matrix(width, sizes.vocabulary)}


def projections(weights: dict[str, Any], layer: int) -> list[tuple[Any, Any]]:
    """The matrices [width, width] and biases [width] of queries, keys and values, where each has one of its own."""
    matrices, biases = (np.split(weights[f"{layer}.{name}"], 3, -1) for name in ("qkv", "qkv_bias"))
    return list(zip(matrices, biases, strict=True))


def by_head(sizes: Sizes, weights: dict[str, Any], layer: int) -> list[tuple[Any, Any]]:
    """As `projections`, where they are [width, heads, size] and [heads, size]."""
    heads = sizes.heads
    pairs = projections(weights, layer)
    return [(matrix.reshape(sizes.width, heads, -1), bias.reshape(heads, -1)) for matrix, bias in pairs]


def batch(sizes: Sizes) -> tuple[Any, Any]:
    """Tokens int32 [batch, context], and the next tokens."""
    tokens = np.random.default_rng(1).integers(0, sizes.vocabulary, (sizes.batch, sizes.context + 1)).astype(np.int32)
    return tokens[:, :-1].copy(), tokens[:, 1:].copy()


def example(sizes: Sizes) -> Any:
    """The tokens of one text, as a batch."""
    return batch(sizes)[0][:1].copy()


def flops(sizes: Sizes) -> float:
    """The operations of the matrix products of a training step: one forward, two backward.

    As usual, attention counts fully, although half of the scores are masked.
    """
    dense = 12 * sizes.width**2 * sizes.layers + sizes.width * sizes.vocabulary
    scores = 2 * sizes.context * sizes.width * sizes.layers
    return 3.0 * 2.0 * sizes.batch * sizes.context * (dense + scores)
