"""What changes logits before a token is chosen: penalties for repeated tokens, biases, and functions of the user.

The tokens so far are one array that ends with the last token, and begins with -1 where a text has no token. So a
function sees fixed places: the last token is in the last column, in a text of any length and in a compiled program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from phlox.backend import Bool, Device, Float, Int
from phlox.errors import KindError, RangeError, ShapeError
from phlox.models.generation.prompts import Batch, Tokens, integer_of, number_of, tokens_of
from phlox.tensor import Tensor, arange, concat, full, tensor, where, zeros

Processor: TypeAlias = Callable[[Tokens, Tensor[Any, Any, Float]], Tensor[Any, Any, Float]]
"""A function of the tokens so far [batch, n] and the logits [batch, vocabulary] that returns the logits to use."""

NGRAM = 8
"""The smallest number of previous tokens that are compared: programs for n-grams of up to 9 tokens are one."""


class History(NamedTuple):
    """The texts so far."""

    tokens: Tokens
    """[batch, n]: ends with the last token; -1 before the first one."""
    new: Tokens
    """The number of tokens that were drawn: a scalar."""
    is_full: bool
    """Does each token take the place of the first column? Then the shape stays, and so does the program."""

    def add(self, token: Tokens) -> History:
        """The texts with the next tokens [batch, 1]."""
        before = self.tokens[:, 1:] if self.is_full else self.tokens
        return History(concat([before, token], 1), self.new + 1, self.is_full)


class Processing(NamedTuple):
    """What is done to logits, in this order; a None does nothing. One program serves all values of a number."""

    bias: Tensor[Any, Any, Float] | None
    """[vocabulary], or [batch, vocabulary]; minus infinity for a banned token."""
    repetition_penalty: float | None
    ngram: Tensor[Any, Any, Bool] | None
    """For each of some previous tokens, from the last: must it be equal for an n-gram to be repeated?"""
    presence_penalty: float | None
    frequency_penalty: float | None
    functions: tuple[Processor, ...]

    @property
    def needs_history(self) -> bool:
        """Does it depend on the tokens so far?"""
        return bool(self.functions) or any(part is not None for part in self[1:-1])


def processing_of(
    call: str,
    device: Device,
    vocabulary: int,
    *,
    repetition_penalty: float,
    presence_penalty: float,
    frequency_penalty: float,
    logit_bias: Mapping[int, float] | None,
    banned: int | Sequence[int] | None,
    no_repeat_ngram: int | None,
    processors: Sequence[Processor],
) -> Processing | None:
    """These settings, checked; None if they leave logits as they are. `call` begins an error message."""
    repetition = number_of(call, "repetition_penalty", repetition_penalty)
    if not 0.0 < repetition < math.inf:
        raise RangeError(f"{call}: repetition_penalty must be finite and above zero, got {repetition}")
    penalties = {"presence_penalty": presence_penalty, "frequency_penalty": frequency_penalty}
    for name, value in penalties.items():
        penalties[name] = number_of(call, name, value)
        if not math.isfinite(penalties[name]):
            raise RangeError(f"{call}: {name} must be finite, got {penalties[name]}")
    if callable(processors) or isinstance(processors, str) or not isinstance(processors, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KindError(f"{call}: processors must be a list of functions of tokens and logits, got {processors!r}")
    for function in processors:
        if not callable(function):
            raise KindError(f"{call}: a processor must be a function of tokens and logits, got {function!r}")
    ngram = None if no_repeat_ngram is None else integer_of(call, "no_repeat_ngram", no_repeat_ngram, 1)
    processing = Processing(
        _bias_of(call, device, vocabulary, logit_bias, banned),
        None if repetition == 1.0 else repetition,
        None if ngram is None else _compared_tokens(ngram, device),
        penalties["presence_penalty"] or None,
        penalties["frequency_penalty"] or None,
        tuple(processors),
    )
    return processing if processing.bias is not None or processing.needs_history else None


def history_of(batch: Batch, capacity: int | None) -> History:
    """The prompts as texts, in an array with this number of columns, or as many as they need."""
    device, rows, n = batch.tokens.device, *batch.tokens.shape
    tokens = batch.tokens
    if batch.starts is not None:
        tokens = where(arange(n, device=device) < tensor(batch.starts, device=device)[:, None], -1, tokens)
    if capacity is not None:
        tokens = concat([full((rows, capacity - n), -1, device=device), tokens], 1)
    return History(tokens, zeros((), kind=Int, device=device), capacity is not None)


def process(
    logits: Tensor[Any, Any, Float], processing: Processing, history: History | None
) -> Tensor[Any, Any, Float]:
    """Logits [batch, vocabulary], changed."""
    bias, repetition, ngram, presence, frequency, functions = processing
    if bias is not None:
        logits = logits + bias
    if history is None:
        return logits
    tokens, vocabulary = history.tokens, logits.shape[-1]
    if repetition is not None:
        penalized = where(logits < 0.0, logits * repetition, logits / repetition)
        logits = where(_counts(tokens, tokens >= 0, vocabulary) > 0, penalized, logits)
    if ngram is not None:
        logits = where(_counts(tokens, _repeating(tokens, ngram), vocabulary) > 0, -math.inf, logits)
    if presence is not None or frequency is not None:
        n = tokens.shape[1]
        drawn = (tokens >= 0) & (arange(n, device=tokens.device) >= n - history.new)
        counts = _counts(tokens, drawn, vocabulary)
        if presence is not None:
            logits = where(counts > 0, logits - presence, logits)
        if frequency is not None:
            logits = logits - counts.float() * frequency
    for function in functions:
        logits = _call(function, tokens, logits)
    return logits


def _call(function: Processor, tokens: Tokens, logits: Tensor[Any, Any, Float]) -> Tensor[Any, Any, Float]:
    result = function(tokens, logits)
    name = getattr(function, "__qualname__", repr(function))
    if not isinstance(result, Tensor) or result.kind is not Float:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KindError(f"the processor {name} must return logits, a Float tensor, got a {type(result).__name__}")
    if result.shape != logits.shape:
        raise ShapeError(f"the processor {name} must return logits of shape {logits.shape}, got shape {result.shape}")
    return result


def _counts(tokens: Tokens, counted: Tensor[Any, Any, Bool], vocabulary: int) -> Tokens:
    """How often each token is counted in each row: [batch, vocabulary]."""
    counts = zeros((tokens.shape[0], vocabulary), kind=Int, device=tokens.device)
    return counts.scatter(1, where(counted, tokens, 0), counted.int(), "add")


def _compared_tokens(size: int, device: Device) -> Tensor[Any, Any, Bool]:
    """For each of some previous tokens: is it part of an n-gram of this size?"""
    return arange(max(NGRAM, 1 << (size - 1).bit_length()), device=device) < size - 1


def _repeating(tokens: Tokens, compared: Tensor[Any, Any, Bool]) -> Tensor[Any, Any, Bool]:
    """The tokens [batch, n] before which there is what is at the end of the text."""
    (rows, n), size = tokens.shape, compared.shape[0]
    longer = concat([full((rows, size), -1, device=tokens.device), tokens], 1)
    repeating = tokens >= 0
    for back in range(1, size + 1):
        before, last = longer[:, size - back : size - back + n], longer[:, size + n - back : size + n - back + 1]
        repeating = repeating & (((before == last) & (before >= 0)) | ~compared[back - 1])
    return repeating


def _bias_of(
    call: str,
    device: Device,
    vocabulary: int,
    logit_bias: Mapping[int, float] | None,
    banned: int | Sequence[int] | None,
) -> Tensor[Any, Any, Float] | None:
    if logit_bias is not None and not isinstance(logit_bias, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KindError(f"{call}: logit_bias must be a dict from token ids to numbers, got {logit_bias!r}")
    biased = tokens_of(call, "logit_bias", tuple(logit_bias or ()), vocabulary)
    without = tokens_of(call, "banned", banned, vocabulary)
    if not biased and not without:
        return None
    bias = np.zeros(vocabulary, np.float64)
    for token, value in (logit_bias or {}).items():
        bias[token] = number_of(call, f"logit_bias[{token}]", value)
    if np.isnan(bias).any() or (bias == math.inf).any():
        raise RangeError(f"{call}: a number of logit_bias must be finite, or minus infinity, got {logit_bias}")
    bias[list(without)] = -math.inf
    if (bias == -math.inf).all():
        raise RangeError(f"{call}: all tokens of the vocabulary are banned; leave at least one")
    return tensor(bias, device=device, kind=Float)
