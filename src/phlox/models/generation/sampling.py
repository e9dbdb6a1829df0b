"""How a token is drawn from logits: temperature, top_k, top_p."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from phlox import random
from phlox.backend import Int
from phlox.errors import KindError, RangeError
from phlox.models.generation.prompts import integer_of
from phlox.tensor import Tensor, arange, where


class Sampling(NamedTuple):
    """How tokens are drawn. A compiled function has one program for all values of a number."""

    temperature: float | None
    """The logits are divided by it; None: the most likely token is chosen."""
    top_k: int | None
    """Only the k most likely tokens are drawn, and those as likely as the k-th; None: any."""
    top_p: float | None
    """Of these, only the most likely ones that together reach this probability, and those as likely as the last."""


_EVERY = 2**31 - 1
"""More tokens than any vocabulary has."""


def sampling_of(what: str, temperature: float, top_k: int | None, top_p: float | None) -> Sampling:
    """These settings, checked; `what` begins an error message."""
    for name, value in (("temperature", temperature), ("top_p", 1.0 if top_p is None else top_p)):
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise KindError(f"{what}: {name} must be a number, got {value!r}")
    temperature = float(temperature)
    if not 0.0 <= temperature < math.inf:
        raise RangeError(f"{what}: temperature must be finite and at least zero, got {temperature}")
    if top_k is not None:
        top_k = min(integer_of(what, "top_k", top_k, 1), _EVERY)
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise RangeError(f"{what}: top_p is a probability, above 0 and at most 1, got {top_p}")
    if temperature == 0.0:
        return Sampling(None, None, None)
    return Sampling(temperature, top_k, None if top_p is None or top_p == 1.0 else float(top_p))


def sample(logits: Tensor, how: Sampling) -> Tensor[Any, Any, Int]:
    """One token for each row of logits [..., vocabulary]: [...]."""
    if how.temperature is None:
        return logits.argmax(-1)
    # A small temperature may be zero at half precision, and makes large numbers: so the largest logit stays at zero.
    gaps = logits - logits.max(-1, keepdims=True)
    logits = where(gaps == 0.0, 0.0, gaps / how.temperature)
    if how.top_k is not None or how.top_p is not None:
        # One sort serves both. k may be a traced scalar, so no slice can end at it.
        ranked = logits.sort(descending=True)
        if how.top_k is not None:
            ranks = arange(logits.shape[-1], device=logits.device)
            least = where(ranks < how.top_k, ranked, math.inf).min(-1, keepdims=True)
            ranked = where(ranked < least, -math.inf, ranked)
        if how.top_p is not None:
            likely = ranked.softmax(-1)
            # A token stays while those before it do not reach top_p; the first one always does.
            ranked = where(likely.cumsum(-1) - likely < how.top_p, ranked, -math.inf)
        kept = where(ranked == -math.inf, math.inf, ranked).min(-1, keepdims=True)
        logits = where(logits < kept, -math.inf, logits)
    return random.categorical(logits)
