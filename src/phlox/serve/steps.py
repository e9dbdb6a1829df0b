"""What the model computes for a batch of requests: a part of a prompt, the next logits of each row, and their choice.

The three are compiled separately: the program of the model does not depend on the options of the requests. Options are
arrays with a number for each row, so one program serves all mixes of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from phlox.backend import Bool, Device, Float, Int
from phlox.models.generation.processing import History, Processing, process
from phlox.models.generation.sampling import Cuts, Sampling, sample
from phlox.nn.key_value_cache import KeyValueCache, OwnedKeyValueCache
from phlox.random import stream as random_stream
from phlox.random import uniform
from phlox.tensor import Tensor, arange, tensor, where
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

EVERY, NEVER_REACHED = 2**31 - 1, 2.0
"""top_k and top_p that keep all tokens."""


class RowOptions(NamedTuple):
    """How the next token of each row is chosen. A part that no row needs is None, and then not computed."""

    draws: RowDraws | None
    penalties: RowPenalties | None
    bias: Numbers | None
    """[rows, vocabulary], minus infinity for tokens that a grammar does not allow."""
    logprobs: Tensor[Any, Any, Bool] | None
    """Not None: return log-probabilities."""


class RowDraws(NamedTuple):
    """Draws, all [rows, 1] but `units`."""

    is_greedy: Tensor[Any, Any, Bool]
    temperature: Numbers
    top_k: Tokens | None
    top_p: Numbers | None
    min_p: Numbers
    units: Tokens
    """[rows]: random numbers of 24 bits."""


class RowPenalties(NamedTuple):
    """Penalties for repetition, all [rows, 1] but `tokens`."""

    repetition: Numbers
    presence: Numbers
    frequency: Numbers
    tokens: Tokens
    """[rows, n]: the texts so far, which end in the last column; -1 before the first token."""
    n_new: Tokens


class Choice(NamedTuple):
    """The next token of each row."""

    token: Tokens
    """[rows]."""
    logprob: Numbers | None
    """[rows]."""
    alternatives: tuple[Numbers, Tokens] | None
    """The most likely tokens: their log-probabilities and ids, [rows, k]."""


def extend(
    model: CausalModel[Any, Any], tokens: Tokens, count: int, columns: Columns, start: Tokens
) -> tuple[Numbers, Columns]:
    """The logits after the first `count` of the tokens [1, n], and the columns with them; the others are padding."""
    x, cache = model.hidden(tokens, cache=_cache_of(columns, start))
    last = arange(1, device=tokens.device) + (count - 1)
    # The columns of padding are overwritten before a token attends to them.
    return model.logits(x.take(last, 1))[:, 0], _columns_of(cache)


def advance(
    model: CausalModel[Any, Any], tokens: Tokens, columns: Columns, positions: Tokens
) -> tuple[Numbers, Columns]:
    """The logits [rows, vocabulary] after the next token of each row, [rows, 1], and the columns with it."""
    logits, cache = model(tokens, cache=_cache_of(columns, positions))
    return logits[:, 0], _columns_of(cache)


def choose(logits: Numbers, options: RowOptions) -> Choice:
    """The next token of each row, by their logits [rows, vocabulary]."""
    draws, penalties, bias, logprobs = options
    changed, history = logits, None
    repetition = presence = frequency = None
    if penalties is not None:
        repetition, presence, frequency, texts, n_new = penalties
        history = History(texts, n_new, is_full=True)
    if penalties is not None or bias is not None:
        changes: Any = Processing(bias, repetition, None, presence, frequency, ())  # type: ignore[arg-type]
        changed = process(logits, changes, history)
    token = changed.argmax(-1)
    if draws is not None:
        is_greedy, temperature, top_k, top_p, min_p, units = draws
        sampling: Any = (temperature, top_k, top_p)
        cuts: Any = (min_p, None)
        drawn = sample(changed, Sampling(*sampling), Cuts(*cuts), units)
        token = where(is_greedy[:, 0], token, drawn)
    if logprobs is None:
        return Choice(token, None, None)
    likely = logits.log_softmax(-1)
    own = likely.take_along_axis(token[:, None])[:, 0]
    return Choice(token, own, likely.topk(min(ALTERNATIVES, likely.shape[-1])))


def _cache_of(columns: Columns, position: Tokens) -> tuple[KeyValueCache, ...]:
    key = columns[0][0]
    in_place = key.backend.is_plain(key.primitive)
    kind = OwnedKeyValueCache if in_place else KeyValueCache
    return tuple(kind(key, value, position) for key, value in columns)


def _columns_of(cache: tuple[KeyValueCache, ...]) -> Columns:
    return tuple((layer.key, layer.value) for layer in cache)


compiled_extend = compiled(extend, donate=("columns",))
compiled_advance = compiled(advance, donate=("columns",))
compiled_choose = compiled(choose)


def options_of(
    tickets: Sequence[Ticket], rows: int, vocabulary: int, length: int, device: Device, *, few_programs: bool
) -> RowOptions:
    """The options of these requests, for a batch of `rows`, of which the last may be unused.

    `length` is that of the longest text. With `few_programs`, parts that are rarely needed are there together or not
    at all: each combination is a program.
    """
    requests = [ticket.request for ticket in tickets]
    n_unused = rows - len(requests)

    def column(values: Iterable[Any], rest: float, kind: Any) -> Any:
        return tensor(np.asarray([*values, *[rest] * n_unused])[:, None], device=device, kind=kind)

    is_penalized = [
        (request.repetition_penalty, request.presence_penalty, request.frequency_penalty) != (1.0, 0.0, 0.0)
        for request in requests
    ]
    drawing = [request for request in requests if request.temperature]
    sorts = any(request.top_k is not None or request.top_p is not None for request in drawing)
    draws = penalties = bias = logprobs = None
    if few_programs and (sorts or any(is_penalized)):
        sorts = any_draws = any_penalties = True
    else:
        any_draws, any_penalties = bool(drawing), any(is_penalized)
    if any_draws:
        units = [_unit(ticket) if ticket.request.temperature else 0 for ticket in tickets]
        draws = RowDraws(
            column((request.temperature == 0.0 for request in requests), True, Bool),
            column((request.temperature or 1.0 for request in requests), 1.0, Float),
            column((request.top_k or EVERY for request in requests), EVERY, Int) if sorts else None,
            column((request.top_p or NEVER_REACHED for request in requests), NEVER_REACHED, Float) if sorts else None,
            column((request.min_p or 0.0 for request in requests), 0.0, Float),
            tensor([*units, *[0] * n_unused], device=device),
        )
    if any_penalties:
        texts = np.full((rows, length), -1, np.int32)
        for text, ticket in zip(texts, tickets, strict=False):
            text[length - len(ticket.tokens) :] = ticket.tokens
        penalties = RowPenalties(
            column((request.repetition_penalty for request in requests), 1.0, Float),
            column((request.presence_penalty for request in requests), 0.0, Float),
            column((request.frequency_penalty for request in requests), 0.0, Float),
            tensor(texts, device=device),
            column((ticket.n_new for ticket in tickets), 0, Int),
        )
    if any(request.logit_bias or request.grammar for request in requests):
        biases = np.zeros((rows, vocabulary), np.float32)
        for values, request in zip(biases, requests, strict=False):
            if request.logit_bias:
                values[list(request.logit_bias)] = list(request.logit_bias.values())
            if request.grammar is not None:
                values[~request.grammar.allowed()] = -math.inf
        bias = tensor(biases, device=device, kind=Float)
    if any(request.logprobs is not None for request in requests):
        logprobs = tensor(True, device=device)
    return RowOptions(draws, penalties, bias, logprobs)


def _unit(ticket: Ticket) -> int:
    """The next random number of 24 bits of a request's stream."""
    with random_stream(ticket.stream):
        return int(uniform((), device="numpy").item() * 2**24)
