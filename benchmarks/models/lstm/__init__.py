"""A language model of stacked LSTMs, as every library here writes it (Hochreiter, Schmidhuber 1997).

The gates are i, f, g, o in this order: c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c'). There is one
bias a layer, and the state begins at zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Sizes:
    """The sizes, which determine the amount of work."""

    batch: int = 32
    steps: int = 64
    vocabulary: int = 256
    embedding: int = 256
    width: int = 256
    layers: int = 2

    @property
    def inputs(self) -> tuple[int, ...]:
        """The input width of each layer."""
        return (self.embedding, *[self.width] * (self.layers - 1))


def weights(sizes: Sizes) -> dict[str, Any]:
    """The parameters by name; `0.input` [inputs, 4 width], `0.hidden` [width, 4 width] and `0.bias` gate by gate."""
    rng, width = np.random.default_rng(0), sizes.width

    def draw(*shape: int, bound: float = width**-0.5) -> Any:
        return rng.uniform(-bound, bound, shape).astype(np.float32)

    found = {"embedding": rng.normal(size=(sizes.vocabulary, sizes.embedding)).astype(np.float32)}
    for layer, inputs in enumerate(sizes.inputs):
        found |= {f"{layer}.input": draw(inputs, 4 * width), f"{layer}.hidden": draw(width, 4 * width)}
        found[f"{layer}.bias"] = draw(4 * width)
    # Larger than usual, so that gradients are large against Adam's epsilon, which libraries add at different places.
    return found | {"head": draw(width, sizes.vocabulary, bound=0.5), "head_bias": draw(sizes.vocabulary)}


def batch(sizes: Sizes) -> tuple[Any, Any]:
    """Tokens int32 [batch, steps], and the next tokens."""
    tokens = np.random.default_rng(1).integers(0, sizes.vocabulary, (sizes.batch, sizes.steps + 1)).astype(np.int32)
    return tokens[:, :-1].copy(), tokens[:, 1:].copy()


def example(sizes: Sizes) -> Any:
    """The tokens of one text, as a batch."""
    return batch(sizes)[0][:1].copy()


def flops(sizes: Sizes) -> float:
    """Of the products of a training step, one forwards and two backwards."""
    recurrent = sum((inputs + sizes.width) * 4 * sizes.width for inputs in sizes.inputs)
    return 3.0 * 2.0 * sizes.batch * sizes.steps * (recurrent + sizes.width * sizes.vocabulary)
