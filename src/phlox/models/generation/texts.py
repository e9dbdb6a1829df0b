"""`generate` and `stream`: their arguments, and texts that end at different tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, overload

import numpy as np
from typing_extensions import Unpack

from phlox.errors import KindError, ShapeError
from phlox.models.generation.decoding import Generation, Numbers, Rule, draws
from phlox.models.generation.processing import Processor, processing_of
from phlox.models.generation.prompts import Prompts, Tokens, batch_of, integer_of, tokens_of
from phlox.models.generation.sampling import Cuts, Sampling, sampling_of
from phlox.random import Stream
from phlox.random import stream as random_stream
from phlox.tensor import Tensor, concat, tensor, zeros

if TYPE_CHECKING:
    from phlox.models.causal import CausalModel


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
    stop: int | Sequence[int] | None
    compile: bool | Literal["auto"]


class Generated(NamedTuple):
    """What `generate(logprobs=True)` returns."""

    tokens: Any
    """Prompt and continuation, as without `logprobs`."""
    logprobs: Any
    """The log-probability that the model gives each new token, before all options: [new] for each text."""


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
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    typical_p: float | None = None,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
    banned: int | Sequence[int] | None = None,
    no_repeat_ngram: int | None = None,
    processors: Sequence[Processor] = (),
    seeds: Sequence[int] | None = None,
    stop: int | Sequence[int] | None = None,
    logprobs: bool = False,
    compile: bool | Literal["auto"] = "auto",
) -> Tokens | list[Tokens] | Generated:
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
        stop: a token, or several, that end a text. The stop token itself is not part of it.
        logprobs: whether to return the log-probabilities of new tokens, too: those that the model itself gives them,
            before any option.
        compile: whether to use the backend's compiler, if it has one. "auto" does on JAX. On PyTorch, whose compiler
            takes seconds, it does if `max_new_tokens` is at least 1024, or if this process has compiled such a
            generation before: the same sizes of the model, number of prompts, capacity of the cache, and options.

    Returns prompt and continuation: [n + new] for [n], [batch, n + new] for [batch, n], and a list of [n + new] for a
    list. In a [batch, n + new], a row that ended before the others is filled with the stop token that ended it. With
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
    checked = _check_arguments(
        "generate", model, prompt, max_new_tokens, stop, seeds, compile, logprobs,
        sampling_of("generate", temperature, top_k, top_p, min_p, typical_p),
        repetition_penalty=repetition_penalty, presence_penalty=presence_penalty, frequency_penalty=frequency_penalty,
        logit_bias=logit_bias, banned=banned, no_repeat_ngram=no_repeat_ngram, processors=processors,
    )  # fmt: skip
    batch, stops = checked.batch, checked.stops
    rows, n = batch.tokens.shape
    pieces: list[Tokens] = []
    likely: list[Numbers] = []
    ends = _TextEnds(rows, stops)
    for drawn in draws(checked):
        pieces.append(drawn.token)
        if drawn.logprob is not None:
            likely.append(drawn.logprob)
        if stops and ends.add(drawn.token):
            break
    text = ends.cut(concat([batch.tokens, *pieces], 1), n, None)
    new = text.shape[1] - n
    lengths = [ends.length(row, new) for row in range(rows)]
    rated = ends.cut(concat(likely, 1), 0, 0.0) if likely else zeros((rows, 0), device=batch.tokens.device)
    tokens: Any
    values: Any
    if isinstance(prompt, Tensor):
        tokens, values = ((x[0] if prompt.ndim == 1 else x).to_device(prompt.device) for x in (text, rated))
    else:
        tokens = [text[row, n - batch.lengths[row] : n + lengths[row]] for row in range(rows)]
        values = [rated[row, : lengths[row]] for row in range(rows)]
    return Generated(tokens, values) if logprobs else tokens


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
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    typical_p: float | None = None,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
    banned: int | Sequence[int] | None = None,
    no_repeat_ngram: int | None = None,
    processors: Sequence[Processor] = (),
    seeds: Sequence[int] | None = None,
    stop: int | Sequence[int] | None = None,
    compile: bool | Literal["auto"] = "auto",
) -> Iterator[int] | Iterator[list[int | None]]:
    """The tokens that `generate` would add, each as soon as it is drawn; arguments and errors are the same.

    For a prompt [n], an iterator of numbers, which ends before a stop token. For a list of prompts, an iterator of
    lists with one token for each prompt, None for one whose text has ended.

    Arguments are checked at once. A token is drawn when the iterator is asked for it, from the stream that is ambient
    at that time.

    >>> import phlox as px
    >>> from phlox.models import GptConfig
    >>> model = GptConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2).init(device="numpy")
    >>> tokens = list(model.stream(px.tensor([1, 2, 3], device="numpy"), 5))
    >>> len(tokens), type(tokens[0]).__name__
    (5, 'int')
    """
    sampling = sampling_of("stream", temperature, top_k, top_p, min_p, typical_p)
    if isinstance(prompt, Tensor) and prompt.ndim == 2:
        raise ShapeError(
            f"stream: a prompt must be [n], got shape {prompt.shape}; give several as a list, such as list(prompt)"
        )
    checked = _check_arguments(
        "stream", model, prompt, max_new_tokens, stop, seeds, compile, False, sampling,
        repetition_penalty=repetition_penalty, presence_penalty=presence_penalty, frequency_penalty=frequency_penalty,
        logit_bias=logit_bias, banned=banned, no_repeat_ngram=no_repeat_ngram, processors=processors,
    )  # fmt: skip
    steps = _stream_rows(checked)
    return _stream_single(steps) if isinstance(prompt, Tensor) else steps


def _stream_rows(generation: Generation) -> Iterator[list[int | None]]:
    ends = _TextEnds(generation.batch.tokens.shape[0], generation.stops)
    for token, *_ in draws(generation):
        if ends.add(token):
            return
        yield [None if row in ends.ended else value for row, value in enumerate(token[:, 0].tolist())]


def _stream_single(steps: Iterator[list[int | None]]) -> Iterator[int]:
    for (token,) in steps:
        assert token is not None
        yield token


def _check_arguments(
    call: str,
    model: CausalModel[Any, Any],
    prompt: Any,
    max_new_tokens: int,
    stop: int | Sequence[int] | None,
    seeds: Sequence[int] | None,
    compile: bool | Literal["auto"],
    logprobs: bool,
    sampling: tuple[Sampling, Cuts | None],
    **processing: Any,
) -> Generation:
    model = model.valid()
    config, device = model.config, model.tokens.weight.device
    batch = batch_of(call, prompt, config.vocabulary, config.context, device)
    processed = processing_of(call, device, config.vocabulary, **processing)
    streams = _streams_of(call, seeds, batch.tokens.shape[0])
    rule = Rule(*sampling, processed, None, None, bool(logprobs))
    is_plain = rule[1:] == (None, None, None, None, False) and (streams is None or rule.sampling.temperature is None)
    if compile not in (True, False, "auto"):
        raise KindError(f"{call}: compile must be True, False or 'auto', got {compile!r}")
    return Generation(
        model,
        batch,
        tokens_of(call, "stop", stop, config.vocabulary),
        integer_of(call, "max_new_tokens", max_new_tokens, 0),
        rule.sampling if is_plain else rule,
        streams,
        compile,
    )


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
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise KindError(f"{call}: seeds[{number}] must be a whole number, got {value!r}")
        with random_stream(int(value)) as opened:
            streams.append(opened)
    return streams


class _TextEnds:
    """Where the texts of a batch end."""

    def __init__(self, rows: int, stops: frozenset[int]) -> None:
        self.rows, self.stops = rows, np.asarray(sorted(stops), np.int64)
        self.ended: dict[int, tuple[int, int]] = {}
        """For each row that has ended, the number of its new tokens and the stop token."""
        self._count = 0

    def add(self, token: Tokens) -> bool:
        """Note which texts end with the next tokens [batch, 1]; returns whether all have ended."""
        if self.stops.size:
            drawn = token.numpy()[:, 0]
            for row in np.flatnonzero(np.isin(drawn, self.stops)).tolist():
                self.ended.setdefault(row, (self._count, int(drawn[row])))
        self._count += 1
        return len(self.ended) == self.rows

    def length(self, row: int, most: int) -> int:
        """The number of new tokens of a row."""
        return self.ended[row][0] if row in self.ended else most

    def cut(self, values: Tensor[Any, Any, Any], n: int, rest: float | None) -> Any:
        """Values [batch, n + new] of the texts; after its end, a text is filled with `rest`, or its stop token."""
        if not self.ended:
            return values
        longest = max(self.length(row, self._count) for row in range(self.rows))
        rows = values.numpy()[:, : n + longest].copy()
        for row, (length, token) in self.ended.items():
            rows[row, n + length :] = token if rest is None else rest
        return tensor(rows, device=values.device)
