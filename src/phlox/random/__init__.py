"""Random numbers without explicit keys: draws come from an ambient stream and are bit-identical on every backend.

The generator is Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw 2011). It is counter-based, so it has no
hidden state: a draw is a function of the stream's key and of the draw's position in the stream.
"""

from __future__ import annotations

import sys

from phlox.lazy import lazily
from phlox.random.distributions import bernoulli, categorical, choice, exponential, gumbel, laplace, truncated_normal
from phlox.random.draws import integers, normal, normal_like, permutation, shuffle, uniform, uniform_like
from phlox.random.probability import Bernoulli, Categorical, Distribution, Normal, Uniform
from phlox.random.stream import Key, Stream, TracedStream, current, restore, seed, state, stream
from phlox.tensor.argument_errors import guard_functions

__all__ = [
    "Bernoulli", "Categorical", "Distribution", "Key", "Normal", "Stream", "TracedStream", "Uniform", "bernoulli",
    "categorical", "choice", "current", "exponential", "gumbel", "integers", "laplace", "normal", "normal_like",
    "permutation", "restore", "seed", "shuffle", "state", "stream", "truncated_normal", "uniform", "uniform_like",
]  # fmt: skip

__getattr__, __dir__ = lazily(__name__, {})

guard_functions(sys.modules[__name__], __all__)
