"""A perceptron with relu between its linear layers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sizes:
    """From the inputs to the classes."""

    widths: tuple[int, ...] = (64, 128, 10)
    batch: int = 64


def weights(sizes: Sizes) -> dict[str, Array]:
    """`0.weight` [in, out], `0.bias` [out], and so on."""
    rng = np.random.default_rng(0)
    found: dict[str, Array] = {}
    for i, (a, b) in enumerate(pairwise(sizes.widths)):
        found[f"{i}.weight"] = (rng.normal(size=(a, b)) / a**0.5).astype(np.float32)
        found[f"{i}.bias"] = rng.normal(size=b, scale=0.1).astype(np.float32)
    return found


def batch(sizes: Sizes) -> tuple[Array, Array]:
    """Inputs [batch, in] and their classes."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(sizes.batch, sizes.widths[0])).astype(np.float32)
    return x, rng.integers(0, sizes.widths[-1], sizes.batch).astype(np.int32)


def example(sizes: Sizes) -> Array:
    """One input."""
    return batch(sizes)[0][:1].copy()


def flops(sizes: Sizes) -> float:
    """Of the products of a training step; the inputs need no gradient."""
    products = [a * b for a, b in pairwise(sizes.widths)]
    return 2.0 * sizes.batch * (3 * sum(products) - products[0])
