"""The loop that draws tokens one by one, with a cache of keys and values."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from phlox.backend import Device, Float
from phlox.backend.contract.backend import engine_of
from phlox.models.generation.processing import History, Processing, history_of, process
from phlox.models.generation.prompts import Batch, Tokens
from phlox.models.generation.sampling import Cuts, Sampling, sample
from phlox.nn.key_value_cache import OwnedKeyValueCache
from phlox.random import Stream, uniform
from phlox.random import stream as random_stream
from phlox.tensor import Tensor, arange, concat, tensor
from phlox.transform import compile as compiled

if TYPE_CHECKING:
    from phlox.models.causal import CausalCache, CausalModel

Numbers = Tensor[Any, Any, Float]

BLOCK = 64
"""The smallest capacity of a cache, and the smallest number of tokens that a compiled program processes at once."""

MANY = 1024
"""So many new tokens are worth the seconds that the compiler of PyTorch takes."""


class Rule(NamedTuple):
    """How a token is chosen, with options beyond temperature, top_k and top_p."""

    sampling: Sampling
    cuts: Cuts | None
    processing: Processing | None
    history: History | None
    """The texts so far, if the processing depends on them."""
    units: Tokens | None
    """The random numbers of rows with seeds, see `sample`."""
    logprobs: bool


class Drawn(NamedTuple):
    """The next token of each text."""

    token: Tokens
    """[batch, 1]."""
    logprob: Numbers | None
    """[batch, 1], if it is asked for."""
    history: History | None
    """The texts with this token, if the rule depends on them."""


class Generation(NamedTuple):
    """The checked arguments of a generation."""

    model: CausalModel[Any, Any]
    batch: Batch
    stops: frozenset[int]
    most: int
    """The largest number of new tokens."""
    rule: Sampling | Rule
    """A step of plain sampling takes and returns no more than it needs."""
    streams: list[Stream] | None
    """The random stream of each row."""
    compile: bool | Literal["auto"]


def draws(generation: Generation) -> Iterator[Drawn]:
    """The next token of each prompt, `count` times."""
    model, batch, _, count, rule, streams, compile = generation
    device, context = batch.tokens.device, model.config.context
    pieces, starts = [batch.tokens], batch.starts
    compile = _pays(generation) if compile == "auto" else compile
    fill, decode = (_compiled_prefill, _compiled_decode) if compile else (_prefill, _decode)
    in_programs = compile and device.backend.compiles
    if in_programs:
        _compiled_forms.add(_form(generation))
    filled, token = context, pieces[0]
    if isinstance(rule, Rule) and rule.processing is not None and rule.processing.needs_history:
        length = _history_length(batch.tokens.shape[1] + count)
        rule = rule._replace(history=history_of(batch, length if in_programs else None))
    cache: CausalCache = ()
    for number in range(count):
        if isinstance(rule, Rule) and streams is not None and rule.sampling.temperature is not None:
            rule = rule._replace(units=_units(streams, device))
        if filled < context:
            drawn, cache = decode(model, token, cache, rule)
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
            empty = _new_cache(model, window, capacity, starts, in_programs)
            drawn, cache = fill(model, window, filled, empty, rule)
        if not isinstance(drawn, Drawn):
            drawn = Drawn(drawn, None, None)
        elif isinstance(rule, Rule):
            rule = rule._replace(history=drawn.history)
        token = drawn.token
        pieces.append(token)
        yield drawn


def _units(streams: list[Stream], device: Device) -> Tokens:
    """A random number of 24 bits of each stream: [batch, 1]."""
    units: list[list[int]] = []
    for row in streams:
        with random_stream(row):
            units.append([int(uniform((), device="numpy").item() * 2**24)])
    return tensor(units, device=device)


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
    model, batch, _, count, rule, streams, _ = generation
    if isinstance(rule, Sampling):
        rule = Rule(rule, None, None, None, None, logprobs=False)
    sampling, cuts, processing, *_, logprobs = rule
    context, (rows, n) = model.config.context, batch.tokens.shape
    sizes = tuple([(path, param.shape) for path, param in model.named_params()])
    options = [*sampling, *(cuts or (None, None)), *(processing or ()), streams]
    on = *[value is None for value in options], logprobs
    capacity = _round_up(n + count, context)
    beyond = (n, count) if n + count > context else None  # there are programs for the last halves, too
    length = _history_length(n + count) if processing is not None and processing.needs_history else None
    lengths = _round_up(n, capacity), capacity, beyond, length, batch.starts is None
    functions = () if processing is None else processing.functions
    return type(model), batch.tokens.device, sizes, rows, lengths, on, functions


def _round_up(size: int, most: int) -> int:
    """The next power of two, at least `BLOCK` and at most `most`."""
    return min(most, max(BLOCK, 1 << (size - 1).bit_length()))


def _history_length(size: int) -> int:
    """The number of columns of the history of a compiled generation: it holds whole texts, beyond the context too."""
    return _round_up(size, BLOCK + 2 * size)


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
    model: CausalModel[Any, Any],
    tokens: Tokens,
    count: int,
    cache: CausalCache,
    rule: Sampling | Rule,
) -> tuple[Tokens | Drawn, CausalCache]:
    """What follows the first `count` tokens, and the cache of these; the other tokens are padding."""
    x, cache = model.hidden(tokens, cache=cache)
    end = arange(1, device=tokens.device) + count
    # The cache contains padding too, after its position. It is overwritten before it is attended to.
    logits = model.logits(x.take(end - 1, 1))
    return _choose(logits, rule), tuple(layer._replace(position=end[0]) for layer in cache)


def _decode(
    model: CausalModel[Any, Any],
    token: Tokens,
    cache: CausalCache,
    rule: Sampling | Rule,
) -> tuple[Tokens | Drawn, CausalCache]:
    """What follows the cached tokens and `token` [batch, 1], and the extended cache."""
    logits, cache = model(token, cache=cache)
    return _choose(logits, rule), cache


def _choose(logits: Tensor, rule: Sampling | Rule) -> Tokens | Drawn:
    """The next tokens, by their logits [batch, 1, vocabulary]."""
    if isinstance(rule, Sampling):
        return sample(logits, rule)
    sampling, cuts, processing, history, units, logprobs = rule
    changed = logits if processing is None else process(logits[:, 0], processing, history)[:, None]
    token = sample(changed, sampling, cuts, units)
    logprob = logits.log_softmax(-1).take_along_axis(token[..., None])[..., 0] if logprobs else None
    return Drawn(token, logprob, None if history is None else history.add(token))


_compiled_prefill = compiled(_prefill, donate=("cache",))
_compiled_decode = compiled(_decode, donate=("cache",))
