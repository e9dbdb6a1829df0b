"""Positions of tokens in encoders and encoder-decoders: learned scores of distances, and sinusoids."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from phlox.backend import Device, DeviceLike, Float
from phlox.models.parts import Tokens
from phlox.module import Module, Param
from phlox.nn import Normal
from phlox.tensor import Tensor, tensor


class RelativePositions(Module):
    """A learned score for each head and each group of distances between two tokens (Raffel et al. 2020)."""

    def __init__(
        self, count: int, max_distance: int, heads: int, std: float, *, both_ways: bool, device: DeviceLike | None
    ) -> None:
        self.weight = Param.deferred((count, heads), Normal(std=std), device=device)
        self.groups = (count, max_distance, both_ways)

    def __call__(self, queries: Tokens, keys: Tokens) -> Tensor:
        """The scores of positions Int [n] and [m]: [1, heads, n, m]."""
        largest = self.groups[1]
        distances = (keys - queries.expand_dims(-1)).clip(-largest, largest) + largest
        buckets = tensor(buckets_of(*self.groups), device=keys.device).take(distances)
        return self.weight.val().take(buckets).permute_dims(2, 0, 1).expand_dims(0)


@lru_cache(maxsize=8)
def buckets_of(count: int, max_distance: int, both_ways: bool) -> np.ndarray[Any, Any]:
    """The groups of the distances from -max_distance to max_distance, of a key from its query.

    Half of the groups have one distance each, the others grow with its logarithm. Keys after the query have groups of
    their own if they are seen.
    """
    distance = np.arange(-max_distance, max_distance + 1, dtype=np.int32)
    side = count // 2 if both_ways else count
    size = np.abs(distance) if both_ways else np.maximum(-distance, 0)
    exact = side // 2
    # In float32, as others compute it: at a border between two groups, rounding decides.
    ratio = np.log((np.maximum(size, 1) / np.float32(exact)).astype(np.float32).astype(np.float64)).astype(np.float32)
    grown = ratio / np.float32(math.log(max_distance / exact)) * np.float32(side - exact)
    bucket = np.where(size < exact, size, np.minimum(exact + grown.astype(np.int32), side - 1))
    return np.where((distance > 0) & both_ways, bucket + side, bucket).astype(np.int32)


@lru_cache(maxsize=8)
def sinusoid_table(n: int, width: int) -> np.ndarray[Any, Any]:
    """Positions as sines, then cosines, of geometric frequencies (Vaswani et al. 2017): float32 [n, width]."""
    angles = np.arange(n)[:, None] / 10000.0 ** (np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angles), np.cos(angles)[:, : width // 2]], 1).astype(np.float32)


def sinusoids(shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
    """The table as an initializer."""
    n, width = shape
    return tensor(sinusoid_table(n, width), device=device, kind=Float)
