"""Randomness without keys: draws come from an ambient stream and are bit-identical on every backend.

The generator is Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw 2011), counter-based and so without hidden
state: a draw is a function of the stream's key and its position in the stream.
"""

from __future__ import annotations

from phlox.random.draws import bernoulli, integers, normal, permutation, uniform
from phlox.random.stream import Key, Stream, TracedStream, current, seed, stream

__all__ = [
    "Key", "Stream", "TracedStream", "bernoulli", "current", "integers", "normal", "permutation", "seed", "stream",
    "uniform",
]  # fmt: skip
