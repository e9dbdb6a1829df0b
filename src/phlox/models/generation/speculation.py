"""Speculative decoding: tokens that are cheap to guess are checked together, in one step of the model.

A draft proposes the next tokens. The model computes its distributions for all of them at once, and each proposal is
kept or replaced so that the text is drawn from the model's own distribution (Leviathan et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from phlox.models.generation.decoding import (
    Drawn,
    Functions,
    Generation,
    Numbers,
    Rule,
    fill,
    functions_of,
    history_of_rule,
    keep_prefixes,
    last_logits,
    new_cache,
    prepared,
    rated,
)
from phlox.models.generation.processing import Processing, process
from phlox.models.generation.prompts import Batch, Tokens
from phlox.models.generation.sampling import filtered
from phlox.random import stream as random_stream
from phlox.random import uniform
from phlox.tensor import Tensor, tensor
from phlox.transform import compile as compiled

if TYPE_CHECKING:
    from phlox.models.causal import CausalCache, CausalModel

Probabilities = np.ndarray[Any, np.dtype[np.float64]]

LONGEST_MATCH = 3
"""Proposals from the text are what followed the last so many tokens, or fewer, where they stood before."""


class Speculation(NamedTuple):
    """The options of speculative decoding."""

    draft: CausalModel[Any, Any] | None
    """The model that proposes tokens; None: proposals are from the text so far."""
    most: int
    """The most tokens that are proposed at once."""


class _Proposals(NamedTuple):
    tokens: list[int]
    distributions: list[Probabilities] | None
    """What each token was drawn from; None if it was certain."""


def speculative_draws(generation: Generation, speculation: Speculation) -> Iterator[Drawn]:
    """As `decoding.draws`, for one text."""
    generation = prepared(generation)
    batch, most, ends, device = generation.batch, generation.most, generation.ends, generation.batch.tokens.device
    rule = generation.rule
    chooser = _Chooser(generation, rule)
    verify = _compiled_verify if generation.compile else _verify
    text: list[int] = batch.tokens[0].tolist()
    draft = speculation.draft
    drafter = _TextDrafter() if draft is None else _ModelDrafter(generation, draft)
    cache, seen = _known(generation, functions_of(generation), text[:-1], len(text) + most)
    end = len(text) + most
    while len(text) < end:
        room = end - len(text) - 1  # a step gives one token more than it checks
        proposals = drafter.propose(text, min(speculation.most, room)) if room else _Proposals([], None)
        window = [text[-1], *proposals.tokens]
        if generation.in_programs and proposals.tokens:  # one program
            window += [0] * (speculation.most - len(proposals.tokens))
        logits, cache = verify(generation.model, tensor([window], device=device), seen, cache)
        rows = logits[0].numpy()
        for number in range(len(proposals.tokens) + 1):
            drawn, is_proposal = chooser.choose(rows[number], proposals, number, ends.mask(_HOST))
            token = int(drawn.token.item())
            text.append(token)
            seen += 1
            ends.add(drawn.token)
            try:
                yield drawn._replace(token=drawn.token.to_device(device))
            except GeneratorExit:
                keep_prefixes(generation, tensor([text], device="numpy"), None, cache, seen)
                raise
            if ends.all_ended:
                keep_prefixes(generation, tensor([text], device="numpy"), None, cache, seen)
                return
            if not is_proposal:
                break
    if most:
        keep_prefixes(generation, tensor([text], device="numpy"), None, cache, seen)


_HOST = tensor(0, device="numpy").device


class _Chooser:
    """Keeps or replaces proposals, on the host."""

    def __init__(self, generation: Generation, rule: Rule) -> None:
        self._rule, self._streams = rule, generation.streams
        batch = Batch(generation.batch.tokens.to_device("numpy"), generation.batch.starts)
        self._history = history_of_rule(generation._replace(batch=batch, compile=False))
        processing = rule.processing
        if processing is not None:
            parts: list[Any] = [x.to_device("numpy") if isinstance(x, Tensor) else x for x in processing]
            processing = Processing(*parts)
        self._processing = processing

    def choose(
        self, row: np.ndarray[Any, Any], proposals: _Proposals, number: int, mask: Numbers | None
    ) -> tuple[Drawn, bool]:
        """The next token, by its logits [vocabulary], and whether it is the proposal of this number."""
        logits = tensor(np.asarray(row, np.float32)[None], device="numpy")
        changed = logits
        if self._processing is not None:
            changed = process(changed, self._processing, self._history)
        if mask is not None:
            changed = changed + mask
        proposal = proposals.tokens[number] if number < len(proposals.tokens) else None
        sampling, cuts = self._rule.sampling, self._rule.cuts
        if sampling.temperature is None:
            token = int(changed.argmax(-1).item())
        else:
            with nullcontext() if self._streams is None else random_stream(self._streams[0]):
                target = _probabilities(filtered(changed, sampling, cuts, sampling.temperature))
                drafts = proposals.distributions
                token = _accept_or_replace(target, proposal, None if drafts is None else drafts[number : number + 1])
        drawn = tensor([[token]], device="numpy")
        self._history = None if self._history is None else self._history.add(drawn)
        logprob, alternatives = rated(logits, drawn, self._rule) if self._rule.logprobs else (None, None)
        return Drawn(drawn, logprob, None, alternatives), token == proposal


def _accept_or_replace(target: Probabilities, proposal: int | None, drafts: list[Probabilities] | None) -> int:
    """A token of the distribution `target`, which is the proposal as often as possible.

    `drafts` has the distribution that the proposal was drawn from; None if it was certain.
    """
    if proposal is not None:
        draft = np.eye(1, len(target), proposal)[0] if drafts is None else drafts[0]
        if _unit() * draft[proposal] < target[proposal]:
            return proposal
        target = np.maximum(target - draft, 0.0)
    return _draw(target)


def _draw(weights: Probabilities) -> int:
    sums: Probabilities = weights.cumsum()
    return int(np.searchsorted(sums, _unit() * float(sums[-1]), side="right"))


def _unit() -> float:
    return float(uniform((), device="numpy").item())


def _probabilities(logits: Numbers) -> Probabilities:
    values = np.asarray(logits.numpy(), np.float64).reshape(-1)
    weights = np.exp(values - values.max())
    return weights / weights.sum()


class _TextDrafter:
    """Proposes what followed the last tokens where they stood before, in the prompt or the new text."""

    def propose(self, text: list[int], count: int) -> _Proposals:
        array = np.asarray(text)
        for size in range(min(LONGEST_MATCH, len(text) - 1), 0, -1):
            windows = np.lib.stride_tricks.sliding_window_view(array[:-1], size)
            matches = np.flatnonzero((windows == array[-size:]).all(-1))
            if matches.size:
                begin = int(matches[-1]) + size
                return _Proposals(text[begin : begin + count], None)
        return _Proposals([], None)


class _ModelDrafter:
    """Proposes what another model draws."""

    def __init__(self, generation: Generation, model: CausalModel[Any, Any]) -> None:
        self._model, self._sampling, self._streams = model, generation.rule.sampling, generation.streams
        self._device = model.tokens.weight.device
        batch = Batch(generation.batch.tokens.to_device(self._device), None)
        self._generation = generation._replace(model=model, batch=batch, prefixes=None)
        self._step = _compiled_draft if self._generation.compile else _draft
        self._cache: CausalCache | None = None
        self._text: list[int] = []
        """The tokens in the cache."""

    def propose(self, text: list[int], count: int) -> _Proposals:
        if self._cache is None:
            end = self._generation.batch.tokens.shape[1] + self._generation.most
            self._cache, _ = _known(self._generation, functions_of(self._generation), text[:-1], end)
            self._text = text[:-1]
        # The last proposals may have been replaced.
        seen = next(
            (n for n, (a, b) in enumerate(zip(self._text, text, strict=False)) if a != b),
            min(len(self._text), len(text) - 1),
        )
        pending, tokens, distributions = text[seen:], list[int](), list[Probabilities]()
        for _ in range(count):
            row, self._cache = self._logits(pending, seen, self._cache)
            seen += len(pending)
            token, distribution = self._choose(row)
            tokens.append(token)
            distributions.append(distribution)
            pending = [token]
        self._text = [*text, *tokens[:-1]]
        return _Proposals(tokens, distributions)

    def _logits(self, pending: list[int], seen: int, cache: CausalCache) -> tuple[Numbers, CausalCache]:
        padding = [0] if self._generation.in_programs and len(pending) == 1 else []  # one or two tokens are new
        tokens = tensor([pending + padding], device=self._device)
        logits, cache = self._step(self._model, tokens, len(pending), seen, cache)
        return tensor(np.asarray(logits[0].numpy(), np.float32), device="numpy"), cache

    def _choose(self, logits: Numbers) -> tuple[int, Probabilities]:
        sampling = self._sampling
        if sampling.temperature is None:
            token = int(logits.argmax(-1).item())
            return token, np.eye(1, logits.shape[-1], token)[0]
        with nullcontext() if self._streams is None else random_stream(self._streams[0]):
            distribution = _probabilities(filtered(logits, sampling, None, sampling.temperature))
            return _draw(distribution), distribution


def _known(generation: Generation, functions: Functions, text: list[int], end: int) -> tuple[CausalCache, int]:
    """A cache for `end` tokens with these tokens, and their number."""
    if not text:
        return new_cache(generation, 1, end, None), 0
    tokens = tensor([text], device=generation.batch.tokens.device)
    window, size, cache, _ = fill(generation, functions, tokens, None, end - len(text), 1)
    return functions.extend(generation.model, window, size, cache), len(text)


def _rewound(cache: CausalCache, seen: int) -> CausalCache:
    """The cache with its first tokens only; the others are overwritten before they are attended to."""
    return tuple([layer._replace(position=layer.position * 0 + seen) for layer in cache])


def _verify(model: CausalModel[Any, Any], tokens: Tokens, seen: int, cache: CausalCache) -> tuple[Numbers, CausalCache]:
    """The logits [1, n, vocabulary] after each of n tokens, which follow the first `seen` in the cache."""
    return model(tokens, cache=_rewound(cache, seen))


def _draft(
    model: CausalModel[Any, Any], tokens: Tokens, count: int, seen: int, cache: CausalCache
) -> tuple[Numbers, CausalCache]:
    """The logits [1, 1, vocabulary] after the first `count` tokens, which follow the first `seen` in the cache."""
    return last_logits(model, tokens, count, _rewound(cache, seen))


_compiled_verify: Callable[..., Any] = compiled(_verify, donate=("cache",))
_compiled_draft: Callable[..., Any] = compiled(_draft, donate=("cache",))
