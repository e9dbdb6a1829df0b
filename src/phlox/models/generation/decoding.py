"""The loop that draws tokens one by one, with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from phlox.backend import Bool, Float
from phlox.backend.contract.backend import engine_of
from phlox.models.generation.ends import TextEnds
from phlox.models.generation.processing import History, Processing, history_of, process
from phlox.models.generation.prompts import Batch, Tokens, every_nth
from phlox.models.generation.sampling import Cuts, Sampling, sample, units_of
from phlox.nn.key_value_cache import KeyValueCache, NewKeyValueCache, OwnedKeyValueCache
from phlox.nn.small_caches import Int4KeyValueCache, Int8KeyValueCache, WindowKeyValueCache, owned
from phlox.random import Stream
from phlox.tensor import Tensor, arange, concat, tensor, where, zeros
from phlox.transform import compile as compiled

if TYPE_CHECKING:
    from phlox.models.causal import CausalCache, CausalModel
    from phlox.models.generation.beams import Beams
    from phlox.models.generation.prefix_cache import PrefixCache
    from phlox.models.generation.speculation import Speculation

Numbers = Tensor[Any, Any, Float]

BLOCK = 64
"""The smallest capacity of a cache, and the smallest number of tokens that a compiled program processes at once."""

MANY = 1024
"""So many new tokens are worth the seconds that the compiler of PyTorch takes."""


class Rule(NamedTuple):
    """How a token is chosen."""

    sampling: Sampling
    cuts: Cuts | None
    processing: Processing | None
    logprobs: bool
    history: History | None = None
    """The texts so far, if the processing depends on them."""
    units: Tokens | None = None
    """The random numbers of rows with seeds, see `sample`."""
    ranks: Tokens | None = None
    """[k]: 0, 1, ...; the likeliest tokens of these ranks are returned, too. Its length is fixed in a program."""
    mask: Numbers | None = None
    """What is added to the logits in the end, see `TextEnds.mask`."""
    is_greedy: Tensor[Any, Any, Bool] | None = None
    """[batch, 1]: the rows whose most likely token is chosen, whatever the sampling of the others."""


class Drawn(NamedTuple):
    """The next token of each text."""

    token: Tokens
    """[batch, 1]."""
    logprob: Numbers | None
    """[batch, 1], if it is asked for."""
    history: History | None
    """The texts with this token, if the rule depends on them."""
    alternatives: tuple[Tokens, Numbers] | None = None
    """The likeliest tokens and their log-probabilities, [batch, k] each, if they are asked for."""


class Generation(NamedTuple):
    """The checked arguments of a generation."""

    model: CausalModel[Any, Any]
    batch: Batch
    stops: frozenset[int]
    most: int
    """The largest number of new tokens."""
    rule: Rule
    streams: list[Stream] | None
    """The random stream of each row."""
    compile: bool | Literal["auto"]
    ends: TextEnds
    samples: int = 1
    """So many successive rows have the same prompt."""
    beams: Beams | None = None
    tokenizer: Any = None
    chunk: int | None = None
    """The most tokens of a prompt that are processed at once."""
    prefixes: PrefixCache | None = None
    cache: str = "auto"
    speculation: Speculation | None = None

    @property
    def in_programs(self) -> bool:
        """Does it run in compiled programs?"""
        return bool(self.compile) and self.batch.tokens.device.backend.compiles


class Functions(NamedTuple):
    """The functions of a model that a generation calls, compiled or not."""

    extend: Callable[..., CausalCache]
    prefill: Callable[..., Any]
    share: Callable[..., Any]
    decode: Callable[..., Any]


def prepared(generation: Generation) -> Generation:
    """Is it compiled? "auto" is decided here, and the form of a compiled generation is noted."""
    if generation.compile == "auto":
        generation = generation._replace(compile=_pays(generation))
    if generation.in_programs:
        _compiled_forms.add(_form(generation))
    return generation


def draws(generation: Generation) -> Iterator[Drawn]:
    """The next token of each prompt, until all texts have ended, or as often as is allowed."""
    generation = prepared(generation)
    batch, count, rule, ends = generation.batch, generation.most, generation.rule, generation.ends
    device, context = batch.tokens.device, generation.model.config.context
    pieces, starts = [batch.tokens], batch.starts
    functions = functions_of(generation)
    filled, token = context, pieces[0]
    rule = rule._replace(history=history_of_rule(generation))
    cache: CausalCache = ()
    for number in range(count):
        streams = None if rule.sampling.temperature is None else generation.streams
        units = None if streams is None else units_of(streams, device)
        rule = rule._replace(units=units, mask=ends.mask(device))
        if filled < context:
            drawn, cache = functions.decode(generation.model, token, cache, rule)
            filled += 1
        else:
            text = concat(pieces, 1)
            window = text if number == 0 else text[:, -max(1, context // 2) :]
            pieces, starts = [window], _shift_starts(starts, text.shape[1] - window.shape[1])
            filled = window.shape[1]
            samples = generation.samples if number == 0 else 1
            part, size, cache, rows = fill(generation, functions, window, starts, count - number, samples)
            prefill = functions.prefill if rows is None else functions.share
            drawn, cache = prefill(generation.model, part, size, cache, rule, rows)
        rule = rule._replace(history=drawn.history)
        token = drawn.token
        pieces.append(token)
        ends.add(token)
        try:
            yield drawn
        except GeneratorExit:
            keep_prefixes(generation, concat(pieces, 1), starts, cache, filled)
            raise
        if ends.all_ended:
            break
    if cache:
        keep_prefixes(generation, concat(pieces, 1), starts, cache, filled)


def keep_prefixes(
    generation: Generation, text: Tokens, starts: tuple[int, ...] | None, cache: CausalCache, filled: int
) -> None:
    """Add the texts to the prefix cache, up to their ends; the cache has their first `filled` columns."""
    prefixes, ends = generation.prefixes, generation.ends
    if prefixes is None:
        return
    for row, tokens in enumerate(text.numpy()):
        start = 0 if starts is None else starts[row]
        end = min(filled, len(tokens) - (ends.count - ends.length(row)))
        prefixes.add(cache, row, tokens[start:end], start)


def functions_of(generation: Generation) -> Functions:
    """The functions of a generation."""
    if generation.compile:
        return Functions(_compiled_extend, _compiled_prefill, _compiled_share, _compiled_decode)
    return Functions(_extend, _prefill, _prefill, _decode)


def history_of_rule(generation: Generation) -> History | None:
    """The prompts, if the rule depends on the texts so far."""
    processing = generation.rule.processing
    if processing is None or not processing.needs_history:
        return None
    length = _history_length(generation.batch.tokens.shape[1] + generation.most)
    return history_of(generation.batch, length if generation.in_programs else None)


def fill(
    generation: Generation,
    functions: Functions,
    window: Tokens,
    starts: tuple[int, ...] | None,
    new: int,
    samples: int,
) -> tuple[Tokens, int, CausalCache, Tokens | None]:
    """A cache for these texts and `new` more tokens, and what is left to process of the texts: the last tokens.

    Returns these tokens, which may end with padding, their number, the cache, and the rows of it that each text needs
    (None for all), because successive texts have the same prompt.
    """
    context, in_programs = generation.model.config.context, generation.in_programs
    rows = None
    if samples > 1:
        rows = arange(window.shape[0], device=window.device) // samples
        window, starts = every_nth(Batch(window, starts), samples)
    filled = window.shape[1]
    cache = new_cache(generation, window.shape[0], filled + new, starts)
    begin = 0
    if generation.prefixes is not None:
        cache, begin = generation.prefixes.restore(cache, window.numpy(), starts)
        window = window[:, begin:]
    count, chunk = filled - begin, generation.chunk
    if chunk is None or count <= chunk:
        if not begin and not (in_programs and generation.prefixes):  # a prefix would need another program
            cache = tuple([NewKeyValueCache(*x) if type(x) is KeyValueCache else x for x in cache])
        if in_programs:  # pad to one of a few lengths: few programs are compiled
            window = window.pad(((0, 0), (0, round_up(count, context) - count)))
        return window, count, cache, rows
    # The first chunk has fewer tokens than the others. Those after them, which complete its shape, are overwritten.
    size, begin = (count - 1) % chunk + 1, 0
    part = window[:, : chunk if in_programs else size]
    while begin + size < count:
        cache = functions.extend(generation.model, part, size, cache)
        begin, size = begin + size, chunk
        part = window[:, begin : begin + chunk]
    return part, size, cache, rows


def _pays(generation: Generation) -> bool:
    """Is it worth compiling? A compiler may take as long as hundreds of eager tokens."""
    backend = generation.batch.tokens.device.backend
    if not backend.compiles or engine_of(backend).prefers_compiled or generation.most >= MANY:
        return True
    return _form(generation) in _compiled_forms


_compiled_forms: set[Hashable] = set()
"""What has been compiled in this process."""


def _form(generation: Generation) -> Hashable:
    """What the programs of a generation depend on, apart from guards: sizes, and which options are on."""
    model, batch, count, rule = generation.model, generation.batch, generation.most, generation.rule
    sampling, cuts, processing = rule.sampling, rule.cuts, rule.processing
    context, (rows, n) = model.config.context, batch.tokens.shape
    sizes = tuple([(path, param.shape) for path, param in model.named_params()])
    options = [*sampling, *(cuts or (None, None)), *(processing or ()), generation.streams]
    ranks = None if rule.ranks is None else rule.ranks.shape
    on = (
        *[value is None for value in options],
        rule.logprobs,
        ranks,
        generation.ends.masks,
    )
    caches = generation.chunk, generation.cache, generation.prefixes is None
    draft = (
        None if generation.speculation is None else (type(generation.speculation.draft), generation.speculation.most)
    )
    capacity = round_up(n + count, context)
    beyond = (n, count) if n + count > context else None  # there are programs for the last halves, too
    length = _history_length(n + count) if processing is not None and processing.needs_history else None
    lengths = round_up(n, capacity), capacity, beyond, length, batch.starts is None
    functions = () if processing is None else processing.functions
    return type(model), batch.tokens.device, sizes, rows, lengths, on, functions, caches, draft


def round_up(size: int, most: int, least: int = BLOCK) -> int:
    """The next power of two, at least `least` and at most `most`: few sizes, so few programs and few copies."""
    return min(most, max(least, 1 << (size - 1).bit_length()))


def _history_length(size: int) -> int:
    """The number of columns of the history of a compiled generation: it holds whole texts, beyond the context too."""
    return round_up(size, BLOCK + 2 * size)


def _shift_starts(starts: tuple[int, ...] | None, left_out: int) -> tuple[int, ...] | None:
    """The first columns of rows, after `left_out` columns have been removed."""
    new_starts = tuple(max(0, start - left_out) for start in starts or ())
    return new_starts if any(new_starts) else None


def new_cache(generation: Generation, rows: int, size: int, starts: tuple[int, ...] | None) -> CausalCache:
    """An empty cache for so many tokens, if they fit the context; in compiled programs its capacity is a power of two.

    It is written to in place if the engine can do that without a compiled program.
    """
    context = generation.model.config.context
    capacity = round_up(size, context) if generation.in_programs else min(context, size)
    model, kind, device = generation.model, generation.cache, generation.batch.tokens.device
    start = None if starts is None else tensor(starts, device=device)
    layers: list[Any] = []
    # A window has no tokens before it, to which speculation could return, and which a prefix has.
    has_windows = kind != "full" and generation.prefixes is None and generation.speculation is None
    template, blocks = model.init_cache(rows, 1), getattr(model, "blocks", ())
    windows = [getattr(block.attention, "window", None) for block in blocks] or [None] * len(template)
    small = {"int8": Int8KeyValueCache, "int4": Int4KeyValueCache}.get(kind)
    for layer, window in zip(template, windows, strict=True):
        if has_windows and window is not None and window < capacity:
            sized: Any = WindowKeyValueCache.of(layer, window)
        elif small is not None:
            sized = small.of(layer, capacity)
        else:
            key, value = (zeros((*x.shape[:2], capacity, x.shape[3]), device=device) for x in layer[:2])
            sized = layer._replace(key=key, value=value)
        layers.append(sized._replace(start=start))
    if not generation.in_programs and device.backend.is_plain(layers[0].key.primitive):
        layers = [OwnedKeyValueCache(*x) if isinstance(x, KeyValueCache) else owned(x) for x in layers]
    return tuple(layers)


def reordered(cache: CausalCache, rows: Tokens) -> CausalCache:
    """The cache of these rows, in this order."""
    return tuple([layer._make([x if x is None or not x.ndim else x.take(rows, 0) for x in layer]) for layer in cache])


def _extend(model: CausalModel[Any, Any], tokens: Tokens, count: int, cache: CausalCache) -> CausalCache:
    """The cache with the first `count` of these tokens; the others are padding."""
    return _extended(model, tokens, count, cache)[1]


def _extended(
    model: CausalModel[Any, Any], tokens: Tokens, count: int, cache: CausalCache
) -> tuple[Numbers, CausalCache]:
    """The hidden states, and the cache with the first `count` of these tokens."""
    counted: Any = tuple(
        [x._replace(new=count) if isinstance(x, WindowKeyValueCache) else x for x in cast("Any", cache)]
    )
    x, extended = model.hidden(tokens, cache=counted)
    # The cache contains padding too, after its position. It is overwritten before it is attended to.
    cache = tuple([layer._replace(position=old.position + count) for layer, old in zip(extended, cache, strict=True)])
    return x, cache


def last_logits(
    model: CausalModel[Any, Any], tokens: Tokens, count: int, cache: CausalCache, rows: Tokens | None = None
) -> tuple[Numbers, CausalCache]:
    """The logits [batch, 1, vocabulary] after the first `count` of these tokens, and the cache with these.

    With `rows`, there is a text for each of these rows, and in the new cache.
    """
    x, cache = _extended(model, tokens, count, cache)
    last = arange(1, device=tokens.device) + count - 1
    logits = model.logits(x.take(last, 1))
    return (logits, cache) if rows is None else (logits.take(rows, 0), reordered(cache, rows))


def _prefill(
    model: CausalModel[Any, Any],
    tokens: Tokens,
    count: int,
    cache: CausalCache,
    rule: Rule,
    rows: Tokens | None = None,
) -> tuple[Drawn, CausalCache]:
    """What follows the first `count` tokens, and the cache with these; the other tokens are padding."""
    logits, cache = last_logits(model, tokens, count, cache, rows)
    return choose(logits, rule), cache


def _decode(
    model: CausalModel[Any, Any],
    token: Tokens,
    cache: CausalCache,
    rule: Rule,
) -> tuple[Drawn, CausalCache]:
    """What follows the cached tokens and `token` [batch, 1], and the extended cache."""
    logits, cache = model(token, cache=cache)
    return choose(logits, rule), cache


def choose(logits: Tensor, rule: Rule) -> Drawn:
    """The next tokens, by their logits [batch, 1, vocabulary]."""
    processing, history = rule.processing, rule.history
    changed = logits if processing is None else process(logits[:, 0], processing, history)[:, None]
    if rule.mask is not None:
        changed = changed + rule.mask[:, None]
    token = sample(changed, rule.sampling, rule.cuts, rule.units)
    if rule.is_greedy is not None:
        token = where(rule.is_greedy, changed.argmax(-1), token)
    history = None if history is None else history.add(token)
    logprob, alternatives = rated(logits[:, 0], token, rule) if rule.logprobs else (None, None)
    return Drawn(token, logprob, history, alternatives)


def rated(logits: Tensor, token: Tokens, rule: Rule) -> tuple[Numbers, tuple[Tokens, Numbers] | None]:
    """The log-probability of tokens [batch, 1] by logits [batch, vocabulary], and alternatives, with `rule.ranks`."""
    every = logits.log_softmax(-1)
    alternatives = None
    if rule.ranks is not None:
        values, tokens = every.topk(rule.ranks.shape[0])
        alternatives = tokens, values
    return every.take_along_axis(token), alternatives


_compiled_extend = compiled(_extend, donate=("cache",))
_compiled_prefill = compiled(_prefill, donate=("cache",))
_compiled_share = compiled(_prefill)  # the new cache has another size
_compiled_decode = compiled(_decode, donate=("cache",))
