"""What the model computes for a batch of requests: a part of a prompt, the next logits of each row, and their choice.

The three are compiled separately: the program of the model does not depend on the options of the requests. Options are
arrays with a number for each row, so one program serves all mixes of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from phlox.backend import Bool, Device, Float, Int
from phlox.models.generation.decoding import Rule, choose
from phlox.models.generation.processing import History, Processing
from phlox.models.generation.sampling import Cuts, Sampling, next_unit
from phlox.nn.key_value_cache import KeyValueCache, OwnedKeyValueCache, Visible
from phlox.tensor import Tensor, arange, tensor
from phlox.transform import compile as compiled

if TYPE_CHECKING:
    from phlox.models.causal import CausalModel
    from phlox.serve.request import Ticket

Tokens: TypeAlias = Tensor[Any, Any, Int]
Numbers: TypeAlias = Tensor[Any, Any, Float]
Columns: TypeAlias = tuple[tuple[Tensor, Tensor], ...]
"""The keys and values of each layer: [rows, n_kv_heads, capacity, d_head]."""

ALTERNATIVES = 20
"""The largest number of alternatives to a token: those that OpenAI's protocol allows."""

PENALTIES = (("repetition_penalty", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0))
"""Options of requests, and the values that change nothing."""

EVERY, NEVER_REACHED = 2**31 - 1, 2.0
"""top_k and top_p that keep all tokens."""


def extend(
    model: CausalModel[Any, Any], tokens: Tokens, count: int, columns: Columns, start: Tokens
) -> tuple[Numbers, Columns]:
    """The logits [1, 1, vocabulary] after the first `count` of the tokens [1, n], and the columns with these.

    The other tokens are padding.
    """
    x, cache = model.hidden(tokens, cache=cache_of(columns, start))
    last = arange(1, device=tokens.device) + (count - 1)
    # The columns of padding are overwritten before a token attends to them.
    return model.logits(x.take(last, 1)), columns_of(cache)


def advance(
    model: CausalModel[Any, Any], tokens: Tokens, columns: Columns, positions: Tokens
) -> tuple[Numbers, Columns]:
    """The logits [rows, 1, vocabulary] after the next token of each row, [rows, 1], and the columns with it."""
    logits, cache = model(tokens, cache=cache_of(columns, positions))
    return logits, columns_of(cache)


class _CutCache(OwnedKeyValueCache):
    """Columns that end with the longest text: no layer has to ask the device how many of them are filled."""

    __slots__ = ()

    def visible(self, n: int) -> Visible:
        return KeyValueCache.visible(self, n)


def cache_of(columns: Columns, position: Tokens) -> tuple[KeyValueCache, ...]:
    """These columns as the cache of a model. It is overwritten, where arrays can be."""
    key = columns[0][0]
    kind = _CutCache if key.backend.is_plain(key.primitive) else KeyValueCache
    return tuple(kind(key, value, position) for key, value in columns)


def columns_of(cache: tuple[KeyValueCache, ...]) -> Columns:
    """The columns of a cache."""
    return tuple((layer.key, layer.value) for layer in cache)


compiled_extend = compiled(extend, donate=("columns",))
compiled_advance = compiled(advance, donate=("columns",))
compiled_choose = compiled(choose)


def rule_of(
    tickets: Sequence[Ticket], rows: int, vocabulary: int, length: int, device: Device, *, few_programs: bool
) -> Rule:
    """How the next tokens of these requests are chosen, in a batch of `rows`, of which the last may be unused.

    Numbers become arrays with a number for each row. A part that no row needs is None, and then not computed.
    `length` is that of the longest text. With `few_programs`, parts that are rarely needed are there together or not
    at all: each combination is a program.
    """
    requests = [ticket.request for ticket in tickets]

    def column(values: Iterable[Any], rest: float, kind: Any, *axes: int) -> Any:
        numbers = np.full((rows, 1, *axes), rest, None if kind is Float else np.int32 if kind is Int else np.bool_)
        numbers[: len(requests)] = np.reshape(list(values), (-1, 1, *axes))
        return tensor(numbers, device=device, kind=kind)

    drawing = [request for request in requests if request.temperature]
    sorts = any(request.top_k is not None or request.top_p is not None for request in drawing)
    any_draws = bool(drawing)
    any_penalties = any(getattr(request, name) != neutral for request in requests for name, neutral in PENALTIES)
    if few_programs and (sorts or any_penalties):
        sorts = any_draws = any_penalties = True
    sampling, cuts, units, is_greedy = Sampling(None, None, None), None, None, None
    if any_draws:
        # The logits are [rows, 1, vocabulary].
        sampling = Sampling(
            column((request.temperature or 1.0 for request in requests), 1.0, Float, 1),
            column((request.top_k or EVERY for request in requests), EVERY, Int, 1) if sorts else None,
            column((request.top_p or NEVER_REACHED for request in requests), NEVER_REACHED, Float, 1)
            if sorts
            else None,
        )
        if few_programs or any(request.min_p for request in drawing):
            cuts = Cuts(column((request.min_p or 0.0 for request in requests), 0.0, Float, 1), None)
        numbers = [next_unit(ticket.stream) if ticket.request.temperature else 0 for ticket in tickets]
        units = column(numbers, 0, Int)
        if few_programs or len(drawing) < rows:
            is_greedy = column((request.temperature == 0.0 for request in requests), True, Bool)
    bias = mask = history = None
    if any(request.logit_bias for request in requests):
        biases = np.zeros((rows, vocabulary), np.float32)
        for values, request in zip(biases, requests, strict=False):
            values[list(request.logit_bias)] = list(request.logit_bias.values())
        bias = tensor(biases, device=device, kind=Float)
    if any(request.grammar for request in requests):
        masks = np.zeros((rows, vocabulary), np.float32)
        for values, request in zip(masks, requests, strict=False):
            if request.grammar is not None:
                values[~request.grammar.allowed()] = -math.inf
        mask = tensor(masks, device=device, kind=Float)
    penalties: list[Any] = [None, None, None]
    if any_penalties:
        texts = np.full((rows, length), -1, np.int32)
        for text, ticket in zip(texts, tickets, strict=False):
            text[length - len(ticket.tokens) :] = ticket.tokens
        history = History(
            tensor(texts, device=device), column((ticket.n_new for ticket in tickets), 0, Int), is_full=True
        )
        penalties = [
            column((getattr(request, name) for request in requests), neutral, Float) for name, neutral in PENALTIES
        ]
    processing = None
    if any_penalties or bias is not None:
        repetition, presence, frequency = penalties
        processing = Processing(bias, repetition, None, presence, frequency, ())
    logprobs = any(request.logprobs is not None for request in requests)
    ranks = arange(min(ALTERNATIVES, vocabulary), device=device) if logprobs else None
    return Rule(
        sampling, cuts=cuts, processing=processing, history=history, units=units, logprobs=logprobs, ranks=ranks,
        mask=mask, is_greedy=is_greedy,
    )  # fmt: skip
