"""How a token is drawn from logits: temperature, top_k, top_p, min_p, typical_p."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from phlox import random
from phlox.backend import Device, Float, Int
from phlox.backend.contract.backend import without_autodiff
from phlox.errors import RangeError
from phlox.models.generation.prompts import integer_of, number_of
from phlox.tensor import Tensor, arange, tensor, where


class Sampling(NamedTuple):
    """How tokens are drawn. A compiled function has one program for all values of a number."""

    temperature: float | None
    """The logits are divided by it; None: the most likely token is chosen."""
    top_k: int | None
    """Only the k most likely tokens, and those as likely as the k-th, may be drawn; None: all tokens."""
    top_p: float | None
    """Of these, only the most likely that together reach this probability, and those as likely as the last."""


class Cuts(NamedTuple):
    """More restrictions of what may be drawn."""

    min_p: float | None
    """Only tokens with at least this part of the probability of the most likely."""
    typical_p: float | None
    """Of these, only those of most typical information that together reach this probability."""


_EVERY = 2**31 - 1
"""More tokens than any vocabulary has."""


def sampling_of(
    call: str,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None = None,
    typical_p: float | None = None,
) -> tuple[Sampling, Cuts | None]:
    """These settings, checked; no cuts if they remove nothing. `call` begins an error message."""
    temperature = number_of(call, "temperature", temperature)
    if not 0.0 <= temperature < math.inf:
        raise RangeError(f"{call}: temperature must be finite and at least zero, got {temperature}")
    if top_k is not None:
        top_k = min(integer_of(call, "top_k", top_k, 1), _EVERY)
    parts: list[float | None] = []
    for name, value in (("top_p", top_p), ("typical_p", typical_p)):
        part = number_of(call, name, 1.0 if value is None else value)
        if not 0.0 < part <= 1.0:
            raise RangeError(f"{call}: {name} is a probability, above 0 and at most 1, got {value}")
        parts.append(None if part == 1.0 else part)
    least = number_of(call, "min_p", 0.0 if min_p is None else min_p)
    if not 0.0 <= least <= 1.0:
        raise RangeError(f"{call}: min_p is a part of a probability, from 0 to 1, got {min_p}")
    if temperature == 0.0:
        return Sampling(None, None, None), None
    cuts = Cuts(least or None, parts[1])
    return Sampling(temperature, top_k, parts[0]), None if cuts == (None, None) else cuts


def sample(
    logits: Tensor, sampling: Sampling, cuts: Cuts | None = None, units: Tensor[Any, Any, Int] | None = None
) -> Tensor[Any, Any, Int]:
    """One token for each row of logits [..., vocabulary]: [...].

    `units` are the random numbers to use, of 24 bits, one for each row; by default they come from the ambient stream.
    """
    if sampling.temperature is None:
        return logits.argmax(-1)
    logits = filtered(logits, sampling, cuts, sampling.temperature)
    return random.categorical(logits) if units is None else _chosen(logits, units)


def units_of(streams: Sequence[random.Stream], device: Device) -> Tensor[Any, Any, Int]:
    """The next random number of 24 bits of each stream: [batch, 1]."""
    return tensor([[next_unit(stream)] for stream in streams], device=device)


def next_unit(stream: random.Stream) -> int:
    """The next random number of 24 bits of a stream."""
    with random.stream(stream):
        return int(random.uniform((), device="numpy").item() * 2**24)


def filtered(logits: Tensor, sampling: Sampling, cuts: Cuts | None, temperature: float) -> Tensor:
    """The logits of the distribution that tokens are drawn from: those that cannot be drawn are minus infinity."""
    # A small temperature may round to zero at half precision, or give large quotients: the largest logit is set to 0.
    gaps = logits - logits.max(-1, keepdims=True)
    logits = where(gaps == 0.0, 0.0, gaps / temperature)
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
    if cuts is not None and cuts.min_p is not None:
        logits = where(logits.exp() < cuts.min_p, -math.inf, logits)  # the largest is 0
    return logits if cuts is None or cuts.typical_p is None else _typical(logits, cuts.typical_p)


def _typical(logits: Tensor, mass: float) -> Tensor:
    """The tokens whose information is nearest to its mean, until they together have this probability."""
    information = -logits.log_softmax(-1)
    likely = (-information).exp()
    mean = (where(likely > 0.0, information, 0.0) * likely).sum(-1, keepdims=True)
    distances = (information - mean).abs()
    order = distances.argsort()
    # A token stays if those before it, which are nearer, do not reach the mass; so do those as near as the last.
    before = likely.take_along_axis(order).cumsum(-1) < mass
    last = before.int().sum(-1, keepdims=True).minimum(logits.shape[-1] - 1)
    return where(distances > distances.take_along_axis(order).take_along_axis(last), -math.inf, logits)


def _chosen(logits: Tensor, units: Tensor[Any, Any, Int]) -> Tensor[Any, Any, Int]:
    """What `random.categorical` draws from these logits with these random numbers, [...] and of 24 bits."""
    engine = without_autodiff(logits.backend)
    wide = engine.full_precision()
    values = logits.backend.strip(logits.primitive)
    if wide is not engine:
        values = engine.cast(values, wide, logits.device.on(wide))
    weights = Tensor.from_primitive(values, wide, Float).exp()  # the largest logit is 0
    sums = where(weights > 0.0, weights.cumsum(-1), 0.0).cummax(-1)
    unit = Tensor.from_primitive(units.primitive, wide, Int).float() * 2.0**-24
    sought = (-unit + 1.0).expand_dims(-1) * sums[..., -1:]
    classes = wide.float_searchsorted(sums.primitive, sought.primitive, False)
    return Tensor.from_primitive(classes, logits.backend, Int)[..., 0]
