"""The options of `generate` and `stream`, their defaults, and their checks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, runtime_checkable

import numpy as np

from phlox.errors import KindError, RangeError, ShapeError
from phlox.models.generation.beams import Beams
from phlox.models.generation.decoding import Generation, Rule
from phlox.models.generation.ends import IncrementalDecoder, Matcher, StopText, TextEnds
from phlox.models.generation.grammar import Grammar
from phlox.models.generation.prefix_cache import PrefixCache, view_of
from phlox.models.generation.processing import Processor, processing_of
from phlox.models.generation.prompts import Batch, Prompts, Tokens, batch_of, integer_of, number_of, repeated, tokens_of
from phlox.models.generation.sampling import sampling_of
from phlox.models.generation.speculation import Speculation
from phlox.random import Stream
from phlox.random import stream as random_stream
from phlox.tensor import arange

if TYPE_CHECKING:
    from phlox.models.causal import CausalModel


class TokenizerLike(Protocol):
    """What is needed of a tokenizer: a decoder of tokens one by one, as `phlox.text.Tokenizer` has it."""

    def decoder(self) -> IncrementalDecoder:
        """A decoder for one text."""
        ...


@runtime_checkable
class CausalConfigLike(Protocol):
    """The sizes of a causal model."""

    vocabulary: int
    context: int


class GenerationOptions(TypedDict, total=False):
    """The options of `generate` and `stream`, see there."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None
    banned: int | Sequence[int] | None
    no_repeat_ngram: int | None
    processors: Sequence[Processor]
    seeds: Sequence[int] | None
    samples: int
    beams: int
    length_penalty: float
    early_stopping: bool | Literal["never"]
    n_best: int
    stop: int | Sequence[int] | None
    stop_text: str | Sequence[str] | None
    tokenizer: TokenizerLike | None
    min_new_tokens: int
    prefill_chunk: int | None
    prefix_cache: PrefixCache | None
    cache: Literal["auto", "full", "int8", "int4"]
    draft: CausalModel[Any, Any] | Literal["text"] | None
    draft_tokens: int
    grammar: Grammar | Sequence[Grammar | None] | None
    compile: bool | Literal["auto"]


DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(GenerationOptions.__annotations__),
    "temperature": 1.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "processors": (),
    "samples": 1, "beams": 1, "length_penalty": 1.0, "early_stopping": False, "n_best": 1, "min_new_tokens": 0,
    "cache": "auto", "draft_tokens": 4, "logprobs": False, "details": False, "compile": "auto",
}  # fmt: skip
"""The options that are not given; None where nothing else is said."""

PROCESSING = (
    "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "banned", "no_repeat_ngram",
    "processors",
)  # fmt: skip

WITHOUT_BEAMS = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "seeds", "samples", "stop_text", "logprobs", "draft",
    "grammar",
)  # fmt: skip
"""The options that beam search does not have: it draws nothing."""


def all_options(call: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with their defaults. Raises `TypeError` for an unknown name."""
    unknown = options.keys() - DEFAULTS.keys()
    if unknown:
        raise TypeError(f"{call}: there is no option {min(unknown)!r}; the options are {', '.join(DEFAULTS)}")
    return {**DEFAULTS, **options}


def generation_of(
    call: str, model: CausalModel[Any, Any], prompt: Tokens | Prompts, max_new_tokens: int, options: dict[str, Any]
) -> Generation:
    """The checked arguments; `call` begins an error message."""
    chunk, prefixes = options["prefill_chunk"], options["prefix_cache"]
    if prefixes is not None:
        if not isinstance(prefixes, PrefixCache):
            raise KindError(f"{call}: prefix_cache must be a PrefixCache, got {prefixes!r}")
        prefixes.check(call, model)
    model = view_of(model)
    config, device = model.config, model.tokens.weight.device
    sampling, cuts = sampling_of(
        call, *(options[name] for name in ("temperature", "top_k", "top_p", "min_p", "typical_p"))
    )
    batch = batch_of(call, prompt, config.vocabulary, config.context, device)
    most = integer_of(call, "max_new_tokens", max_new_tokens, 0)
    samples = integer_of(call, "samples", options["samples"], 1)
    beams = _beams_of(call, options)
    if beams is not None:
        samples = beams.size
        _check_context(call, "beams", batch, most, config.context)
    batch = repeated(batch, samples)
    speculation = _speculation_of(call, options, batch, most, model)
    rows = batch.tokens.shape[0]
    processing = processing_of(call, device, config.vocabulary, **{name: options[name] for name in PROCESSING})
    streams = _streams_of(call, options["seeds"], rows)
    if options["compile"] not in (True, False, "auto"):
        raise KindError(f"{call}: compile must be True, False or 'auto', got {options['compile']!r}")
    stops = tokens_of(call, "stop", options["stop"], config.vocabulary)
    matchers, stops = _matchers_of(call, options, rows, config.vocabulary, stops)
    ends = TextEnds(
        rows, stops, vocabulary=config.vocabulary,
        min_new_tokens=integer_of(call, "min_new_tokens", options["min_new_tokens"], 0),
        texts=_texts_of(call, options["tokenizer"], options["stop_text"], rows),
        matchers=matchers,
    )  # fmt: skip
    cache = options["cache"]
    if cache not in ("auto", "full", "int8", "int4"):
        raise KindError(f"{call}: cache must be 'auto', 'full', 'int8' or 'int4', got {cache!r}")
    logprobs, alternatives = _logprobs_of(call, options["logprobs"], options["details"], config.vocabulary)
    if beams is not None:  # enough continuations, so that one for each beam does not end
        alternatives = max(2, 1 + len(stops)) * beams.size
    ranks = arange(alternatives, device=device) if alternatives else None
    rule = Rule(sampling, cuts, processing, logprobs, ranks=ranks)
    return Generation(
        model,
        batch,
        stops,
        most,
        rule,
        streams,
        options["compile"],
        ends,
        samples,
        beams,
        options["tokenizer"],
        None if chunk is None else integer_of(call, "prefill_chunk", chunk, 1),
        prefixes,
        cache,
        speculation,
    )


def _beams_of(call: str, options: Mapping[str, Any]) -> Beams | None:
    """The options of beam search; None without it."""
    count = integer_of(call, "beams", options["beams"], 1)
    if count == 1:
        for name in ("length_penalty", "early_stopping", "n_best"):
            if options[name] != DEFAULTS[name]:
                raise RangeError(f"{call}: {name} is for beam search; give beams, at least 2")
        return None
    if call == "stream":
        raise KindError("stream: beams are not streamed: their first tokens are known at the end; use generate")
    for name in WITHOUT_BEAMS:
        if options[name] != DEFAULTS[name] and (name, options[name]) != ("temperature", 0):
            raise RangeError(f"{call}: beams cannot be combined with {name}; leave one of them out")
    if options["early_stopping"] not in (True, False, "never"):
        raise KindError(f"{call}: early_stopping must be True, False or 'never', got {options['early_stopping']!r}")
    penalty = number_of(call, "length_penalty", options["length_penalty"])
    if not math.isfinite(penalty):
        raise RangeError(f"{call}: length_penalty must be finite, got {penalty}")
    n_best = integer_of(call, "n_best", options["n_best"], 1)
    if n_best > count:
        raise RangeError(f"{call}: n_best must be at most the number of beams, {count}, got {n_best}")
    return Beams(count, penalty, options["early_stopping"], n_best)


def _speculation_of(
    call: str, options: Mapping[str, Any], batch: Batch, most: int, model: CausalModel[Any, Any]
) -> Speculation | None:
    """The options of speculative decoding; None without it."""
    draft: Any = options["draft"]
    count = integer_of(call, "draft_tokens", options["draft_tokens"], 1)
    if draft is None:
        return None
    rows, vocabulary = batch.tokens.shape[0], model.config.vocabulary
    if rows != 1:
        raise ShapeError(f"{call}: a draft is for one text at a time, got {rows}; call it for each")
    _check_context(call, "a draft", batch, most, model.config.context)
    if draft == "text":
        return Speculation(None, count)
    if not isinstance(getattr(draft, "config", None), CausalConfigLike):
        raise KindError(f"{call}: draft must be a causal model, or 'text', got {draft!r}")
    if draft.config.vocabulary != vocabulary:
        raise RangeError(
            f"{call}: the draft must have the vocabulary of the model, {vocabulary}, got {draft.config.vocabulary}"
        )
    _check_context(call, "this draft", batch, most, draft.config.context)
    return Speculation(view_of(draft), count)


def _check_context(call: str, name: str, batch: Batch, most: int, context: int) -> None:
    """Raise `ShapeError` if the texts do not fit the context."""
    n = batch.tokens.shape[1]
    if n + most - 1 > context:
        raise ShapeError(
            f"{call}: with {name}, a text must fit the context of {context}, got a prompt of {n} and {most} new tokens"
        )


def _matchers_of(
    call: str, options: Mapping[str, Any], rows: int, vocabulary: int, stops: frozenset[int]
) -> tuple[list[Matcher | None], frozenset[int]]:
    """The state of the grammar of each row, and the stop tokens, with those of the tokenizer."""
    grammar: Any = options["grammar"]
    tokenizer = options["tokenizer"]
    if grammar is None:
        return [], stops
    grammars: list[Any] = [grammar] * rows if isinstance(grammar, Grammar) else grammar
    if not isinstance(grammar, Grammar | list | tuple) or not all(isinstance(x, Grammar | None) for x in grammars):
        raise KindError(f"{call}: grammar must be a Grammar, or a list of them, one for each text, got {grammar!r}")
    if len(grammars) != rows:
        raise ShapeError(f"{call}: grammar must have one Grammar for each text, got {len(grammars)} for {rows}")
    if tokenizer is None or not callable(getattr(tokenizer, "token_bytes", None)):
        raise KindError(f"{call}: grammar needs a tokenizer with token_bytes(), such as a phlox.text.Tokenizer")
    if options["min_new_tokens"]:
        raise RangeError(f"{call}: grammar cannot be combined with min_new_tokens; it decides where a text may end")
    stops |= {token for token in getattr(tokenizer, "stops", ()) if token < vocabulary}
    return [None if x is None else x.matcher(tokenizer, vocabulary, stops) for x in grammars], stops


def _logprobs_of(call: str, logprobs: Any, details: bool, vocabulary: int) -> tuple[bool, int]:
    """Whether log-probabilities are returned, and the number of alternatives with theirs."""
    if isinstance(logprobs, bool):
        if logprobs and call == "stream" and not details:
            raise KindError("stream: logprobs=True needs details=True: a plain stream has only tokens")
        return logprobs is True, 0
    count = integer_of(call, "logprobs", logprobs, 0)
    if count > vocabulary:
        raise RangeError(f"{call}: logprobs must be at most the vocabulary of {vocabulary}, got {count}")
    if not details:
        raise KindError(f"{call}: logprobs={count}, for alternatives of each token, needs details=True")
    return True, count


def _texts_of(call: str, tokenizer: Any, stop_text: str | Sequence[str] | None, rows: int) -> list[StopText]:
    """The text of each row, if there is a tokenizer."""
    strings = [stop_text] if isinstance(stop_text, str) else stop_text
    if strings is not None and not isinstance(strings, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KindError(f"{call}: stop_text must be a string, or a list of strings, got {stop_text!r}")
    for string in strings or []:
        if not isinstance(string, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise KindError(f"{call}: stop_text must be a string, or a list of strings, got {string!r} in it")
        if not string:
            raise RangeError(f"{call}: a string of stop_text is empty; give at least one character")
    if tokenizer is None:
        if strings:
            raise KindError(f"{call}: stop_text needs tokenizer=, which turns tokens into text")
        return []
    if not callable(getattr(tokenizer, "decoder", None)):
        raise KindError(f"{call}: tokenizer must have decoder(), as a phlox.text.Tokenizer, got {tokenizer!r}")
    return [StopText(tokenizer.decoder(), strings or ()) for _ in range(rows)]


def _streams_of(call: str, seeds: Sequence[int] | None, rows: int) -> list[Stream] | None:
    """The random stream of each row."""
    if seeds is None:
        return None
    if isinstance(seeds, str) or not isinstance(seeds, (Sequence, np.ndarray)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KindError(f"{call}: seeds must be a list of integers, one for each prompt, got {seeds!r}")
    if len(seeds) != rows:
        raise ShapeError(f"{call}: seeds must have one integer for each prompt, got {len(seeds)} for {rows}")
    streams: list[Stream] = []
    for number, value in enumerate(seeds):
        with random_stream(integer_of(call, f"seeds[{number}]", value)) as opened:
            streams.append(opened)
    return streams
