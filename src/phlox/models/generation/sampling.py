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
    """Only the k most likely tokens, and those as likely as the k-th, may be drawn; None: all tokens."""
    top_p: float | None
    """Of these, only the most likely that together reach this probability, and those as likely as the last."""


_EVERY = 2**31 - 1
"""More tokens than any vocabulary has."""


def sampling_of(call: str, temperature: float, top_k: int | None, top_p: float | None) -> Sampling:
    """These settings, checked; `call` begins an error message."""
    for name, value in (("temperature", temperature), ("top_p", 1.0 if top_p is None else top_p)):
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise KindError(f"{call}: {name} must be a number, got {value!r}")
    temperature = float(temperature)
    if not 0.0 <= temperature < math.inf:
        raise RangeError(f"{call}: temperature must be finite and at least zero, got {temperature}")
    if top_k is not None:
        top_k = min(integer_of(call, "top_k", top_k, 1), _EVERY)
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise RangeError(f"{call}: top_p is a probability, above 0 and at most 1, got {top_p}")
    if temperature == 0.0:
        return Sampling(None, None, None)
    return Sampling(temperature, top_k, None if top_p is None or top_p == 1.0 else float(top_p))


def sample(logits: Tensor, sampling: Sampling) -> Tensor[Any, Any, Int]:
    """One token for each row of logits [..., vocabulary]: [...]."""
    if sampling.temperature is None:
        return logits.argmax(-1)
    # A small temperature may round to zero at half precision, or give large quotients: the largest logit is set to 0.
    gaps = logits - logits.max(-1, keepdims=True)
    logits = where(gaps == 0.0, 0.0, gaps / sampling.temperature)
    if sampling.top_k is not None or sampling.top_p is not None:
        # Both use one sort. k may be a traced scalar, so it cannot be the end of a slice.
        ranked = logits.sort(descending=True)
        if sampling.top_k is not None:
            ranks = arange(logits.shape[-1], device=logits.device)
            least = where(ranks < sampling.top_k, ranked, math.inf).min(-1, keepdims=True)
            ranked = where(ranked < least, -math.inf, ranked)
        if sampling.top_p is not None:
            likely = ranked.softmax(-1)
            # A token stays if the tokens before it do not reach top_p; the first token always stays.
            ranked = where(likely.cumsum(-1) - likely < sampling.top_p, ranked, -math.inf)
        threshold = where(ranked == -math.inf, math.inf, ranked).min(-1, keepdims=True)
        logits = where(logits < threshold, -math.inf, logits)
    return random.categorical(logits)
