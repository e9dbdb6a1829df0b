"""Beam search: the likeliest whole texts, instead of the likeliest token each time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from phlox.models.generation.decoding import (
    Generation,
    Numbers,
    Rule,
    fill,
    functions_of,
    history_of_rule,
    last_logits,
    prepared,
    reordered,
)
from phlox.models.generation.processing import History, process
from phlox.models.generation.prompts import Tokens
from phlox.tensor import tensor
from phlox.transform import compile as compiled

if TYPE_CHECKING:
    from phlox.models.causal import CausalCache, CausalModel

NEVER = -1.0e9
"""The score of what cannot be chosen, as in transformers."""

Array = np.ndarray[Any, Any]


class Beams(NamedTuple):
    """The options of beam search. In a batch, the rows of a prompt follow each other, one for each beam."""

    size: int
    length_penalty: float
    early_stopping: bool | Literal["never"]
    n_best: int


class Hypothesis(NamedTuple):
    """A text that beam search has found."""

    tokens: list[int]
    """The new tokens, without a stop token."""
    stop: int | None
    """The stop token that ended it."""
    score: float
    """The log-probability of the new tokens, divided by their number to the power of the length penalty."""


class Ranked(NamedTuple):
    """The likeliest continuations of each prompt: [prompts, k]."""

    scores: Numbers
    """The log-probabilities of the whole texts."""
    tokens: Tokens
    """The last token."""
    beams: Tokens
    """The beam that it continues."""
    history: History | None


class _Finished:
    """The best finished texts of each prompt, and whether better ones can follow; as in transformers."""

    def __init__(self, prompts: int, most: int, beams: Beams) -> None:
        self.beams, self.most = beams, most
        self.scores: Array = np.full((prompts, beams.size), NEVER, np.float32)
        self.texts = np.zeros((prompts, beams.size, most), np.int64)
        self.lengths = np.zeros((prompts, beams.size), np.int64)
        self.are_finished: Array = np.zeros((prompts, beams.size), np.bool_)
        self.can_improve: Array = np.ones((prompts, 1), np.bool_)

    def add(self, scores: Array, texts: Array, ends: Array, new: int) -> None:
        """Keep the best of these continuations that end, and of those before; only the first of them may count."""
        counted: Array = np.logical_and(ends, [place < self.beams.size for place in range(scores.shape[1])])
        scores = scores / np.float32(new**self.beams.length_penalty)
        are_full: Array = np.logical_and(self.are_finished.all(-1, keepdims=True), self.beams.early_stopping is True)
        for excluded in (are_full, ~self.can_improve, ~counted):
            scores = scores + excluded.astype(np.float32) * np.float32(NEVER)
        merged = np.concatenate([self.scores, scores], 1)
        order = _best(merged, self.beams.size)
        self.scores = np.take_along_axis(merged, order, 1)
        self.texts = np.take_along_axis(np.concatenate([self.texts, texts], 1), order[..., None], 1)
        lengths = np.concatenate([self.lengths, np.full(scores.shape, new)], 1)
        self.lengths = np.take_along_axis(lengths, order, 1)
        self.are_finished = np.take_along_axis(np.concatenate([self.are_finished, counted], 1), order, 1)

    def is_over(self, running: Array, new: int) -> bool:
        """Is the search over, with these scores of the running beams?"""
        penalty, early = self.beams.length_penalty, self.beams.early_stopping
        length = self.most if early == "never" and penalty > 0.0 else new
        worst = np.where(self.are_finished, self.scores.min(1, keepdims=True), np.float32(NEVER))
        best = running[:, :1] / np.float32(length**penalty)
        self.can_improve = self.can_improve & (best > worst).any(-1, keepdims=True)
        return not self.can_improve.any() or (early is True and bool(self.are_finished.all()))


def search(generation: Generation, beams: Beams) -> list[Hypothesis]:
    """The best texts, `n_best` for each prompt."""
    generation = prepared(generation)
    model, batch, most, rule = generation.model, generation.batch, generation.most, generation.rule
    device, prompts = batch.tokens.device, batch.tokens.shape[0] // beams.size
    prefill, decode = (_compiled_prefill, _compiled_decode) if generation.compile else (_prefill, _decode)
    rule = rule._replace(history=history_of_rule(generation))
    finished = _Finished(prompts, most, beams)
    scores: Array = np.full((prompts, beams.size), NEVER, np.float32)
    scores[:, 0] = 0.0
    texts = np.zeros((prompts, beams.size, most), np.int64)
    first_rows = np.arange(prompts)[:, None] * beams.size
    cache: CausalCache = ()
    parents = tokens = first_rows
    for number in range(most):
        rule = rule._replace(mask=generation.ends.mask(device))
        sums = tensor(scores, device=device.on(device.backend.full_precision()))
        if number == 0:
            functions = functions_of(generation)
            window, size, cache, rows = fill(generation, functions, batch.tokens, batch.starts, most, beams.size)
            ranked, cache = prefill(model, window, size, cache, rule, rows, sums)
        else:
            rows, last = (tensor(x.reshape(-1), device=device) for x in (parents + first_rows, tokens))
            ranked, cache = decode(model, last[:, None], rows, cache, rule, sums)
        generation.ends.count = new = number + 1
        rule = rule._replace(history=ranked.history)
        likely, following, sources = (x.numpy() for x in (ranked.scores, ranked.tokens, ranked.beams))
        continued = np.take_along_axis(texts, sources[..., None], 1)
        continued[:, :, number] = following
        ends = np.isin(following, generation.ends.stops) | (new == most)
        open_scores = likely + ends.astype(np.float32) * np.float32(NEVER)
        order = _best(open_scores, beams.size)
        texts = np.take_along_axis(continued, order[..., None], 1)
        scores, tokens, parents = (np.take_along_axis(x, order, 1) for x in (open_scores, following, sources))
        finished.add(likely, continued, ends, new)
        if finished.is_over(scores, new) or bool(ends.all()):
            break
    hypotheses: list[Hypothesis] = []
    for prompt in range(prompts):
        for place in range(beams.n_best):
            text = finished.texts[prompt, place, : finished.lengths[prompt, place]].tolist()
            stop = text.pop() if text and text[-1] in generation.stops else None
            hypotheses.append(Hypothesis(text, stop, float(finished.scores[prompt, place])))
    return hypotheses


def _best(scores: Array, count: int) -> Array:
    """The indices of the highest scores of each row, from the highest; of equal scores, the first."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def _rank(logits: Numbers, rule: Rule, scores: Numbers) -> Ranked:
    """The likeliest continuations, by logits [batch, 1, vocabulary] and the scores of the beams [prompts, beams]."""
    assert rule.ranks is not None
    likely = logits[:, 0].log_softmax(-1)
    if rule.processing is not None:
        likely = process(likely, rule.processing, rule.history)
    if rule.mask is not None:
        likely = likely + rule.mask
    (prompts, beams), vocabulary = scores.shape, likely.shape[-1]
    sums = likely.to_full_precision().reshape((prompts, beams, vocabulary)) + scores[..., None]
    values, places = sums.reshape((prompts, beams * vocabulary)).topk(rule.ranks.shape[0])
    return Ranked(values, places % vocabulary, places // vocabulary, rule.history)


def _prefill(
    model: CausalModel[Any, Any],
    tokens: Tokens,
    count: int,
    cache: CausalCache,
    rule: Rule,
    rows: Tokens | None,
    scores: Numbers,
) -> tuple[Ranked, CausalCache]:
    """The continuations of prompts."""
    logits, cache = last_logits(model, tokens, count, cache, rows)
    return _rank(logits, rule, scores), cache


def _decode(
    model: CausalModel[Any, Any], tokens: Tokens, rows: Tokens, cache: CausalCache, rule: Rule, scores: Numbers
) -> tuple[Ranked, CausalCache]:
    """The continuations of the texts in these rows of the cache and a token of each, [batch, 1]."""
    logits, cache = model(tokens, cache=reordered(cache, rows))
    if rule.history is not None:
        before = rule.history._replace(tokens=rule.history.tokens.take(rows, 0))
        rule = rule._replace(history=before.add(tokens))
    return _rank(logits, rule, scores), cache


_compiled_prefill: Callable[..., Any] = compiled(_prefill)  # the new cache has another size
_compiled_decode: Callable[..., Any] = compiled(_decode, donate=("cache",))
