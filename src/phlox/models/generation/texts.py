"""`generate` and `stream`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np
from typing_extensions import Unpack

from phlox.errors import ShapeError
from phlox.models.generation.beams import Beams, Hypothesis, search
from phlox.models.generation.decoding import Drawn, Generation, Numbers, draws
from phlox.models.generation.ends import StopText
from phlox.models.generation.options import GenerationOptions, all_options, generation_of
from phlox.models.generation.prompts import Batch, Prompts, Tokens, every_nth
from phlox.models.generation.speculation import speculative_draws
from phlox.tensor import Tensor, concat, tensor, zeros

if TYPE_CHECKING:
    from phlox.models.causal import CausalModel


class Generated(NamedTuple):
    """What `generate(logprobs=True)` returns."""

    tokens: Any
    """Prompt and continuation, as without `logprobs`."""
    logprobs: Any
    """The log-probability that the model gives each new token, before all options: [new] for each text."""


class Step(NamedTuple):
    """A token of a text, as `stream(details=True)` yields it. The last step of a text has a `reason`."""

    token: int
    """The token; the last one may be a stop token, which is not part of the text."""
    text: str | None
    """The text that has become certain, without the strings that end it; None without a tokenizer."""
    logprob: float | None
    """The log-probability that the model gives the token, before all options, with `logprobs`."""
    alternatives: list[tuple[int, float]]
    """The likeliest tokens and their log-probabilities, as many as `logprobs` asks for."""
    reason: Literal["stop", "length"] | None
    """Why the text ends here: a stop token or string, or a complete grammar; or `max_new_tokens`."""


class Completion(NamedTuple):
    """A text that `generate(details=True)` returns."""

    tokens: list[int]
    """The new tokens, without a stop token."""
    text: str | None
    """The new text, without the string that ends it; None without a tokenizer."""
    logprobs: list[float]
    """The log-probability of each token, see `Step`."""
    alternatives: list[list[tuple[int, float]]]
    """The likeliest tokens in place of each token, see `Step`."""
    reason: Literal["stop", "length"]
    """Why the text ended, see `Step`."""
    score: float | None = None
    """With beams: the log-probability of the new tokens, divided by their number to the power of length_penalty."""


@overload
def generate(
    model: CausalModel[Any, Any],
    prompt: Tokens | Prompts,
    max_new_tokens: int,
    *,
    details: Literal[True],
    logprobs: bool | int = False,
    **options: Unpack[GenerationOptions],
) -> list[Completion]: ...
@overload
def generate(
    model: CausalModel[Any, Any],
    prompt: Tokens | Prompts,
    max_new_tokens: int,
    *,
    logprobs: Literal[True],
    **options: Unpack[GenerationOptions],
) -> Generated: ...
@overload
def generate(
    model: CausalModel[Any, Any], prompt: Tokens, max_new_tokens: int, **options: Unpack[GenerationOptions]
) -> Tokens: ...
@overload
def generate(
    model: CausalModel[Any, Any], prompt: Prompts, max_new_tokens: int, **options: Unpack[GenerationOptions]
) -> list[Tokens]: ...
def generate(
    model: CausalModel[Any, Any],
    prompt: Tokens | Prompts,
    max_new_tokens: int,
    **options: Any,
) -> Any:
    """Continue each prompt by `max_new_tokens` tokens, or until a stop token is drawn.

    Dropout is off. Each token takes one step through the model. In a compiled program, this step is one for all
    positions, prompts and values of options; only which options are on matters. Draws come from the ambient stream: a
    seed gives the same text, compiled or not, on every backend (unless rounding decides between two tokens).

    The text may become longer than the context of the model: whenever the context is full, the model continues from
    its last half. So at least half a context of previous tokens determines each new token. In a batch of different
    lengths, the longest text decides when the context is full.

    The options change the logits in the order of `transformers`: logit_bias and banned, repetition_penalty,
    no_repeat_ngram, presence_penalty, frequency_penalty, processors, temperature, top_k, top_p, min_p, typical_p. The
    last four are for draws: at temperature zero they have no effect.

    Args:
        model: a `Gpt`, a `Llama`, or another `CausalModel`.
        prompt: Int [n]; or [batch, n]; or a list of prompts of any lengths, each an Int tensor [n] or a list of
            tokens. Each has at least one token, and at most as many as the context.
        max_new_tokens: the largest number of tokens to add.
        temperature: the logits are divided by it. Below one, likely tokens become more frequent; at zero, the most
            likely token is always chosen.
        top_k: draw only among the k most likely tokens, and those as likely as the k-th.
        top_p: draw only among the most likely tokens that together have this probability (Holtzman et al. 2020), and
            those as likely as the last of them. If top_k is given too, it selects tokens first.
        min_p: draw only among tokens with at least this part of the probability of the most likely (Nguyen et al.
            2024).
        typical_p: draw only among the tokens whose information is nearest to its mean, as many as together have this
            probability (Meister et al. 2022).
        repetition_penalty: divide a positive logit of each token of the text, prompt included, by it, and multiply a
            negative one by it (Keskar et al. 2019).
        presence_penalty: subtract it from the logit of each token that was drawn before; the prompt does not count.
        frequency_penalty: subtract it as often as the token was drawn before; the prompt does not count.
        logit_bias: numbers to add to the logits of tokens.
        banned: a token, or several, that are never chosen.
        no_repeat_ngram: never repeat so many successive tokens of the text, prompt included.
        processors: functions of your own, each called with the tokens so far, Int [batch, n], and the logits [batch,
            vocabulary], and returning logits. The tokens end in the last column; a text that is shorter than n begins
            with -1. A function must be able to run in a compiled program.
        seeds: a seed for each row: it is continued as if it was alone in `with phlox.random.stream(seed):`.
        samples: the number of texts for each prompt, which is processed once. The result is the one for a batch that
            has each prompt so many times, one after the other.
        beams: at least 2: search the likeliest whole texts, with so many at a time, and draw nothing. As in
            transformers; the texts must fit the context.
        length_penalty: the scores of finished texts are their log-probabilities, divided by their numbers of new tokens
            to this power; above zero, it favors long texts.
        early_stopping: when a beam search ends: True as soon as there are as many finished texts as beams; False if it
            seems that no better ones follow; "never" if none can follow.
        n_best: the number of texts of a beam search for each prompt, best first, in the form of `samples`.
        stop: a token, or several, that end a text. The stop token itself is not part of it.
        stop_text: a string, or several, that end a text as soon as its new tokens contain one. The returned tokens
            include those of the string; `details` has the text, which ends where the string begins.
        tokenizer: a `phlox.text.Tokenizer` or another object with its `decoder()`, for stop_text and the text of
            details.
        min_new_tokens: stop tokens are not drawn before so many tokens.
        prefill_chunk: the most tokens of the prompts to process at once; this bounds the memory of activations.
        prefix_cache: a `PrefixCache` with keys and values of texts that begin in the same way, to which these texts are
            added.
        cache: how keys and values are stored. "auto" keeps only those that a layer's window shows, "full" keeps all;
            "int8" and "int4" store them in so many bits, those of layers without a window.
        draft: speculative decoding, for one text: a smaller `CausalModel` of the same vocabulary that proposes tokens,
            or "text": what followed the last tokens where they stood before. The model checks all proposals in one
            step. Greedy texts are the same; other texts have the same distribution, but are not those of the same seed.
        draft_tokens: the most tokens that are proposed at once.
        grammar: a `Grammar` that each text follows, or a list with one or None for each text. It needs a tokenizer with
            `token_bytes()`, whose stop tokens end texts, too, where the grammar allows it. A text ends when nothing can
            follow; a text that is cut by max_new_tokens may be incomplete.
        logprobs: whether to return the log-probabilities of new tokens, too: those that the model itself gives them,
            before any option. A number asks for so many of the likeliest tokens in each place, too, with details.
        details: whether to return a list with a `Completion` for each text, with the new tokens, their text,
            log-probabilities, and why it ended.
        compile: whether to use the backend's compiler, if it has one. "auto" does on JAX. On PyTorch, whose compiler
            takes seconds, it does if `max_new_tokens` is at least 1024, or if this process has compiled such a
            generation before: the same sizes of the model, number of prompts, capacity of the cache, and options.

    Returns prompt and continuation: [n + new] for [n], [batch, n + new] for [batch, n], and a list of [n + new] for a
    list. In a [batch, n + new], a row that ended before the others is filled with the stop token that ended it, or
    with zeros if a string did. With several samples of [n], the result is [samples, n + new]. With
    `logprobs`, a `Generated(tokens, logprobs)`; its logprobs are [new], [batch, new] (filled with zeros), or a list of
    [new].

    Raises `KindError`, `ShapeError`, `RangeError` or `IndexRangeError` for an invalid prompt or argument.

    >>> import phlox as px
    >>> from phlox.models import GptConfig
    >>> model = GptConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2).init(device="numpy")
    >>> model.generate(px.tensor([1, 2, 3], device="numpy"), 20, temperature=0.8, top_k=5).shape
    (23,)
    >>> [text.shape for text in model.generate([[1, 2, 3], [4]], 2, top_p=0.9, repetition_penalty=1.2)]
    [(5,), (3,)]
    >>> tokens, logprobs = model.generate([[1, 2], [3]], 4, min_p=0.1, seeds=[5, 6], logprobs=True)
    >>> tokens[1].shape, logprobs[1].shape
    ((5,), (4,))
    >>> def after_three(tokens, logits):  # a nine after each three
    ...     return logits + px.where(tokens[:, -1:] == 3, 100.0, 0.0) * px.one_hot(px.tensor(9), 10)
    >>> model.generate(px.tensor([3], device="numpy"), 1, processors=[after_three]).tolist()
    [3, 9]
    """
    settings = all_options("generate", options)
    generation = generation_of("generate", model, prompt, max_new_tokens, settings)
    if settings["details"]:
        return _completions(generation)
    if generation.beams is not None:
        return _best_texts(generation, prompt, generation.beams)
    batch, ends = generation.batch, generation.ends
    rows, n = batch.tokens.shape
    pieces: list[Tokens] = []
    likely: list[Numbers] = []
    for drawn in _tokens(generation):
        pieces.append(drawn.token)
        if drawn.logprob is not None:
            likely.append(drawn.logprob)
    text = ends.cut(concat([batch.tokens, *pieces], 1), n, None)
    tokens = _as_prompted(prompt, batch, text, [ends.length(row) for row in range(rows)])
    if not settings["logprobs"]:
        return tokens
    rated = ends.cut(concat(likely, 1), 0, 0.0) if likely else zeros((rows, 0), device=batch.tokens.device)
    if isinstance(prompt, Tensor):
        return Generated(tokens, (rated[0] if tokens.ndim == 1 else rated).to_device(prompt.device))
    return Generated(tokens, [rated[row, : ends.length(row)] for row in range(rows)])


def _tokens(generation: Generation) -> Iterator[Drawn]:
    """The tokens of texts, one by one."""
    speculation = generation.speculation
    return draws(generation) if speculation is None else speculative_draws(generation, speculation)


def _as_prompted(prompt: Tokens | Prompts, batch: Batch, text: Tokens, lengths: list[int]) -> Any:
    """Texts [rows, n + new] in the form of the prompt; `lengths` are the numbers of new tokens."""
    rows, n = batch.tokens.shape
    if isinstance(prompt, Tensor):
        return (text[0] if prompt.ndim == 1 and rows == 1 else text).to_device(prompt.device)
    return [text[row, n - batch.lengths[row] : n + lengths[row]] for row in range(rows)]


def _best_texts(generation: Generation, prompt: Tokens | Prompts, beams: Beams) -> Any:
    """The texts of a beam search, in the form of the prompt."""
    hypotheses = search(generation, beams)
    lengths = [len(hypothesis.tokens) for hypothesis in hypotheses]
    new = np.zeros((len(hypotheses), max(lengths)), np.int64)
    for row, (tokens, stop, _) in zip(new, hypotheses, strict=True):
        row[: len(tokens)], row[len(tokens) :] = tokens, stop or 0
    batch = every_nth(generation.batch, beams.size, beams.n_best)
    text = concat([batch.tokens, tensor(new, device=batch.tokens.device)], 1)
    return _as_prompted(prompt, batch, text, lengths)


@overload
def stream(
    model: CausalModel[Any, Any],
    prompt: Tokens,
    max_new_tokens: int,
    *,
    details: Literal[True],
    logprobs: bool | int = False,
    **options: Unpack[GenerationOptions],
) -> Iterator[Step]: ...
@overload
def stream(
    model: CausalModel[Any, Any],
    prompt: Prompts,
    max_new_tokens: int,
    *,
    details: Literal[True],
    logprobs: bool | int = False,
    **options: Unpack[GenerationOptions],
) -> Iterator[list[Step | None]]: ...
@overload
def stream(
    model: CausalModel[Any, Any], prompt: Tokens, max_new_tokens: int, **options: Unpack[GenerationOptions]
) -> Iterator[int]: ...
@overload
def stream(
    model: CausalModel[Any, Any], prompt: Prompts, max_new_tokens: int, **options: Unpack[GenerationOptions]
) -> Iterator[list[int | None]]: ...
def stream(
    model: CausalModel[Any, Any],
    prompt: Tokens | Prompts,
    max_new_tokens: int,
    **options: Any,
) -> Any:
    """The tokens that `generate` would add, each as soon as it is drawn; arguments and errors are the same.

    For a prompt [n], an iterator of numbers, which ends before a stop token. For a list of prompts, or with samples, of
    lists with one token for each prompt, None for one whose text has ended. With `details`, a token is a `Step`, with
    the text that has become certain, log-probabilities, and, in the last step of a text, why it ended.

    Arguments are checked at once. A token is drawn when the iterator is asked for it, from the stream that is ambient
    at that time.

    >>> import phlox as px
    >>> from phlox.models import GptConfig
    >>> model = GptConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2).init(device="numpy")
    >>> tokens = list(model.stream(px.tensor([1, 2, 3], device="numpy"), 5))
    >>> len(tokens), type(tokens[0]).__name__
    (5, 'int')
    """
    settings = all_options("stream", options)
    if isinstance(prompt, Tensor) and prompt.ndim == 2:
        raise ShapeError(
            f"stream: a prompt must be [n], got shape {prompt.shape}; give several as a list, such as list(prompt)"
        )
    generation = generation_of("stream", model, prompt, max_new_tokens, settings)
    steps = _detailed_steps(generation) if settings["details"] else _plain_steps(generation)
    return _single(steps) if isinstance(prompt, Tensor) and generation.batch.tokens.shape[0] == 1 else steps


def _plain_steps(generation: Generation) -> Iterator[list[int | None]]:
    ends = generation.ends
    for drawn in _tokens(generation):
        # A text includes its last token, unless that is a stop token.
        is_over = [row in ends.ended and ends.length(row) < ends.count for row in range(ends.rows)]
        if all(is_over):
            return
        tokens = drawn.token[:, 0].tolist()
        yield [None if over else token for token, over in zip(tokens, is_over, strict=True)]


def _single(steps: Iterator[list[Any]]) -> Iterator[Any]:
    for (step,) in steps:
        assert step is not None
        yield step


def _detailed_steps(generation: Generation) -> Iterator[list[Step | None]]:
    ends, has_ended = generation.ends, [False] * generation.ends.rows
    for drawn in _tokens(generation):
        if ends.count == generation.most:
            for row in range(ends.rows):
                if row not in ends.ended:
                    ends.finish(row)
        tokens = drawn.token[:, 0].tolist()
        logprobs = None if drawn.logprob is None else drawn.logprob[:, 0].tolist()
        others = None if drawn.alternatives is None else [x.tolist() for x in drawn.alternatives]
        steps: list[Step | None] = []
        for row, token in enumerate(tokens):
            reason = "stop" if row in ends.ended else "length" if ends.count == generation.most else None
            step = Step(
                token,
                ends.pieces[row] if ends.pieces else None,
                None if logprobs is None else logprobs[row],
                [] if others is None else [*zip(others[0][row], others[1][row], strict=True)],
                reason,
            )
            steps.append(None if has_ended[row] else step)
            has_ended[row] = reason is not None
        yield steps


def _completions(generation: Generation) -> list[Completion]:
    if generation.beams is not None:
        return [_completion_of(generation, hypothesis) for hypothesis in search(generation, generation.beams)]
    rows: list[list[Step]] = [[] for _ in range(generation.ends.rows)]
    for steps in _detailed_steps(generation):
        for row, step in zip(rows, steps, strict=True):
            if step is not None:
                row.append(step)
    completions: list[Completion] = []
    for number, steps in enumerate(rows):
        length = generation.ends.length(number)
        text = None if generation.tokenizer is None else "".join([step.text or "" for step in steps])
        steps = steps[:length]
        completions.append(
            Completion(
                [step.token for step in steps],
                text,
                [step.logprob for step in steps if step.logprob is not None],
                [step.alternatives for step in steps if step.alternatives],
                "stop" if number in generation.ends.ended else "length",
            )
        )
    return completions


def _completion_of(generation: Generation, hypothesis: Hypothesis) -> Completion:
    tokens, stop, score = hypothesis
    text = None
    if generation.tokenizer is not None:
        decoded = StopText(generation.tokenizer.decoder())
        text = "".join([*map(decoded.add, tokens), decoded.end()])
    return Completion(tokens, text, [], [], "length" if stop is None else "stop", score)
