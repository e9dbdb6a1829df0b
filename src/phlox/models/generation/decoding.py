"""The loop that draws tokens one by one, with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, overload

import numpy as np
from typing_extensions import Unpack

from phlox.errors import ShapeError
from phlox.models.generation.prompts import Batch, Prompts, Tokens, batch_of, integer_of, stop_tokens
from phlox.models.generation.sampling import Sampling, sample, sampling_of
from phlox.nn.multi_head_attention import OwnedKeyValueCache
from phlox.tensor import Tensor, arange, concat, tensor
from phlox.transform import compile as compiled

if TYPE_CHECKING:
    from phlox.models.causal import CausalCache, CausalModel

BLOCK = 64
"""The smallest capacity of a cache, and the smallest number of tokens that a compiled program processes at once."""


class GenerationOptions(TypedDict, total=False):
    """The options of `generate` and `stream`, see there."""

    temperature: float
    top_k: int | None
    top_p: float | None
    stop: int | Sequence[int] | None
    compile: bool


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
    stop: int | Sequence[int] | None = None,
    compile: bool = True,
) -> Tokens | list[Tokens]:
    """Continue each prompt by `max_new_tokens` tokens, or until a stop token is drawn.

    Dropout is off. Each token takes one step through the model. On a backend with a compiler, this step is one program
    for all positions, prompts and temperatures. Draws come from the ambient stream: a seed gives the same text,
    compiled or not, on every backend (unless rounding decides between two tokens).

    The text may become longer than the context of the model: whenever the context is full, the model continues from
    its last half. So at least half a context of previous tokens determines each new token. In a batch of different
    lengths, the longest text decides when the context is full.

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
        stop: a token, or several, that end a text. The stop token itself is not part of it.
        compile: whether to use the backend's compiler, if it has one.

    Returns prompt and continuation: [n + new] for [n], [batch, n + new] for [batch, n], and a list of [n + new] for a
    list. In a [batch, n + new], a row that ended before the others is filled with the stop token that ended it.

    Raises `KindError`, `ShapeError`, `RangeError` or `IndexRangeError` for an invalid prompt or argument.

    >>> import phlox as px
    >>> from phlox.models import GptConfig
    >>> model = GptConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2).init(device="numpy")
    >>> model.generate(px.tensor([1, 2, 3], device="numpy"), 20, temperature=0.8, top_k=5).shape
    (23,)
    >>> [text.shape for text in model.generate([[1, 2, 3], [4]], 2, top_p=0.9)]
    [(5,), (3,)]
    """
    sampling = sampling_of("generate", temperature, top_k, top_p)
    model = model.valid()
    batch, stops, count = _check_arguments("generate", model, prompt, max_new_tokens, stop)
    pieces: list[Tokens] = [batch.tokens]
    ends = _TextEnds(batch.tokens.shape[0], stops)
    if count:
        for token in _draws(model, batch, count, sampling, compile):
            pieces.append(token)
            if stops and ends.add(token):
                break
    text = concat(pieces, 1)
    if stops:
        text = ends.cut(text, batch.tokens.shape[1])
    if isinstance(prompt, Tensor):
        return (text[0] if prompt.ndim == 1 else text).to_device(prompt.device)
    lengths = [ends.length(row, text.shape[1] - batch.tokens.shape[1]) for row in range(text.shape[0])]
    n = batch.tokens.shape[1]
    return [
        text[row, n - before : n + new] for row, (before, new) in enumerate(zip(batch.lengths, lengths, strict=True))
    ]


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
    stop: int | Sequence[int] | None = None,
    compile: bool = True,
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
    sampling = sampling_of("stream", temperature, top_k, top_p)
    if isinstance(prompt, Tensor) and prompt.ndim == 2:
        raise ShapeError(
            f"stream: a prompt must be [n], got shape {prompt.shape}; give several as a list, such as list(prompt)"
        )
    model = model.valid()
    batch, stops, count = _check_arguments("stream", model, prompt, max_new_tokens, stop)
    steps = _stream_rows(model, batch, stops, count, sampling, compile)
    return _stream_single(steps) if isinstance(prompt, Tensor) else steps


def _stream_rows(
    model: CausalModel[Any, Any], batch: Batch, stops: frozenset[int], count: int, sampling: Sampling, compile: bool
) -> Iterator[list[int | None]]:
    ends = _TextEnds(batch.tokens.shape[0], stops)
    if not count:
        return
    for token in _draws(model, batch, count, sampling, compile):
        if ends.add(token):
            return
        yield [None if row in ends.ended else value for row, value in enumerate(token[:, 0].tolist())]


def _stream_single(steps: Iterator[list[int | None]]) -> Iterator[int]:
    for (token,) in steps:
        assert token is not None
        yield token


def _check_arguments(
    call: str, model: CausalModel[Any, Any], prompt: Any, max_new_tokens: int, stop: int | Sequence[int] | None
) -> tuple[Batch, frozenset[int], int]:
    config = model.config
    batch = batch_of(call, prompt, config.vocabulary, config.context, model.tokens.weight.device)
    return batch, stop_tokens(call, stop, config.vocabulary), integer_of(call, "max_new_tokens", max_new_tokens, 0)


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

    def cut(self, text: Tokens, n: int) -> Tokens:
        """The texts [batch, n + new]; after its end, a text is filled with its stop token."""
        if not self.ended:
            return text
        longest = max(self.length(row, self._count) for row in range(self.rows))
        rows = text.numpy()[:, : n + longest].copy()
        for row, (length, token) in self.ended.items():
            rows[row, n + length :] = token
        return tensor(rows, device=text.device)


def _draws(model: CausalModel[Any, Any], batch: Batch, count: int, rule: Sampling, compile: bool) -> Iterator[Tokens]:
    """The next tokens of each prompt, [batch, 1], `count` times."""
    device, context = batch.tokens.device, model.config.context
    pieces, starts = [batch.tokens], batch.starts
    fill, decode = (_compiled_prefill, _compiled_decode) if compile else (_prefill, _decode)
    in_programs = compile and device.backend.compiles
    filled, token = context, pieces[0]
    cache: CausalCache = ()
    for number in range(count):
        if filled < context:
            token, cache = decode(model, token, cache, rule)
            filled += 1
        else:
            text = concat(pieces, 1)
            window = text if number == 0 else text[:, -max(1, context // 2) :]
            pieces, starts = [window], _shift_starts(starts, text.shape[1] - window.shape[1])
            filled = window.shape[1]
            capacity = (
                _round_up(filled + count - number, context) if in_programs else min(context, filled + count - number)
            )
            if in_programs:  # pad to one of a few lengths: few programs are compiled
                window = window.pad(((0, 0), (0, _round_up(filled, capacity) - filled)))
            token, cache = fill(model, window, filled, _new_cache(model, window, capacity, starts, in_programs), rule)
        pieces.append(token)
        yield token


def _round_up(size: int, most: int) -> int:
    """The next power of two, at least `BLOCK` and at most `most`."""
    return min(most, max(BLOCK, 1 << (size - 1).bit_length()))


def _shift_starts(starts: tuple[int, ...] | None, left_out: int) -> tuple[int, ...] | None:
    """The first columns of rows, after `left_out` columns have been removed."""
    new_starts = tuple(max(0, start - left_out) for start in starts or ())
    return new_starts if any(new_starts) else None


def _new_cache(
    model: CausalModel[Any, Any], window: Tokens, capacity: int, starts: tuple[int, ...] | None, in_programs: bool
) -> CausalCache:
    """An empty cache; it is written to in place if the engine can do that without a compiled program."""
    cache = model.init_cache(window.shape[0], capacity)
    start = None if starts is None else tensor(starts, device=window.device)
    cache = tuple(layer._replace(start=start) for layer in cache)
    if in_programs or not window.backend.is_plain(cache[0].key.primitive):
        return cache
    return tuple(OwnedKeyValueCache(*layer) for layer in cache)


def _prefill(
    model: CausalModel[Any, Any], tokens: Tokens, count: int, cache: CausalCache, sampling: Sampling
) -> tuple[Tokens, CausalCache]:
    """The token after the first `count` tokens, and the cache of these; the other tokens are padding."""
    x, cache = model.hidden(tokens, cache=cache)
    end = arange(1, device=tokens.device) + count
    # The cache contains padding too, after its position. It is overwritten before it is attended to.
    logits = model.logits(x.take(end - 1, 1))
    return sample(logits, sampling), tuple(layer._replace(position=end[0]) for layer in cache)


def _decode(
    model: CausalModel[Any, Any], token: Tokens, cache: CausalCache, sampling: Sampling
) -> tuple[Tokens, CausalCache]:
    """The token after the cached tokens and `token` [batch, 1], and the extended cache."""
    logits, cache = model(token, cache=cache)
    return sample(logits, sampling), cache


_compiled_prefill = compiled(_prefill, donate=("cache",))
_compiled_decode = compiled(_decode, donate=("cache",))
