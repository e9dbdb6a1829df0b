"""Text generation with a causal model: tokens are drawn one by one, with a KV cache."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

from phlox import random
from phlox.backend import Int
from phlox.errors import IndexRangeError, KindError, RangeError, ShapeError
from phlox.tensor import Tensor, arange, concat, where
from phlox.transform import compile as compiled

if TYPE_CHECKING:
    from phlox.models.causal import CausalCache, CausalModel

Tokens: TypeAlias = Tensor[Any, Any, Int]


def generate(
    model: CausalModel[Any, Any],
    prompt: Tokens,
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    compile: bool = True,
) -> Tokens:
    """Continue each prompt by `length` tokens: Int [batch, n] to [batch, n + length], or [n] to [n + length].

    Dropout is off. Each token takes one step through the model. On a backend with a compiler, this step is one program
    for all positions, prompts and temperatures. Draws come from the ambient stream: a seed gives the same text,
    compiled or not, on every backend (unless rounding decides between two tokens).

    The text may become longer than the context of the model: whenever the context is full, the model continues from
    its last half. So at least half a context of previous tokens determines each new token.

    Args:
        model: a `Gpt`, a `Llama`, or another `CausalModel`.
        prompt: at least one token; if it is longer than the context, only its end is used.
        length: the number of tokens to add.
        temperature: the logits are divided by it. Below one, likely tokens become more frequent; at zero, the most
            likely token is always chosen.
        top_k: draw only among the k most likely tokens, and those as likely as the k-th.
        compile: whether to use the backend's compiler, if it has one.

    Raises `KindError`, `ShapeError`, `RangeError` or `IndexRangeError` for an invalid prompt or argument.

    >>> import phlox as px
    >>> from phlox.models import GptConfig
    >>> model = GptConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2).init(device="numpy")
    >>> model.generate(px.tensor([1, 2, 3], device="numpy"), 20, temperature=0.8, top_k=5).shape
    (23,)
    """
    _check(model, prompt, length, temperature, top_k)
    model = model.valid()
    place = model.tokens.weight.device
    one = prompt.ndim == 1
    pieces: list[Tokens] = [(prompt.expand_dims(0) if one else prompt).to_device(place)]
    how = (temperature if temperature > 0.0 else None), top_k
    fill, step = (_fill, _step) if compile else (_filled, _stepped)
    context = model.config.context
    filled, token = context, pieces[0]
    cache: CausalCache = ()
    for number in range(length):
        if filled < context:
            token, cache = step(model, token, cache, *how)
            filled += 1
        else:
            window = concat(pieces, 1)[:, -(context if number == 0 else max(1, context // 2)) :]
            filled = window.shape[1]
            if compile and place.backend.compiles:  # pad to a fixed length, so that one program serves all
                window = window.pad(((0, 0), (0, context - filled)))
            token, cache = fill(model, window, filled, *how)
        pieces.append(token)
    text = concat(pieces, 1)
    return (text[0] if one else text).to_device(prompt.device)


def _next(logits: Tensor, temperature: float | None, top_k: int | None) -> Tokens:
    """One token for each row of logits [batch, 1, vocabulary]: [batch, 1]."""
    if temperature is None:
        return logits.argmax(-1)
    logits = logits / temperature
    if top_k is not None:
        ranks = arange(logits.shape[-1], device=logits.device)
        # The smallest of the k largest logits. k may be a traced scalar here, so no slice can end at it.
        least = where(ranks < top_k, logits.sort(descending=True), math.inf).min(-1, keepdims=True)
        logits = where(logits < least, -math.inf, logits)
    return random.categorical(logits)


def _filled(
    model: CausalModel[Any, Any], tokens: Tokens, count: int, temperature: float | None, top_k: int | None
) -> tuple[Tokens, CausalCache]:
    """The token after the first `count` of these, and the cache of those; the rest is padding."""
    logits, cache = model(tokens, cache=model.init_cache(tokens.shape[0]))
    end = arange(1, device=tokens.device) + count
    # The cache contains padding too, after its position. It is overwritten before it is attended to.
    return _next(logits.take(end - 1, 1), temperature, top_k), tuple(one._replace(position=end[0]) for one in cache)


def _stepped(
    model: CausalModel[Any, Any], token: Tokens, cache: CausalCache, temperature: float | None, top_k: int | None
) -> tuple[Tokens, CausalCache]:
    """The token after those in the cache and these [batch, 1], and the extended cache."""
    logits, cache = model(token, cache=cache)
    return _next(logits, temperature, top_k), cache


_fill = compiled(_filled)
_step = compiled(_stepped, donate=("cache",))


def _check(model: CausalModel[Any, Any], prompt: Tokens, length: int, temperature: float, top_k: int | None) -> None:
    if not isinstance(prompt, Tensor) or prompt.kind is not Int:  # pyright: ignore[reportUnnecessaryIsInstance]
        what = f"a {prompt.kind.__name__} tensor" if isinstance(prompt, Tensor) else f"a {type(prompt).__name__}"  # pyright: ignore[reportUnnecessaryIsInstance]
        raise KindError(f"generate: the prompt must be an Int tensor of tokens, got {what}; see phlox.tensor")
    if prompt.ndim not in (1, 2) or not prompt.shape[-1] or not prompt.shape[0]:
        raise ShapeError(
            f"generate: the prompt must be [batch, n] or [n], with at least one token, got shape {prompt.shape}"
        )
    vocabulary = model.config.vocabulary
    try:
        prompt.backend.check_indices(prompt.primitive, vocabulary, from_end=False)
    except IndexRangeError:
        raise IndexRangeError(
            f"generate: the prompt has tokens from {int(prompt.min())} to {int(prompt.max())}; "
            f"those of this model are 0 to {vocabulary - 1}"
        ) from None
    if length < 0:
        raise RangeError(f"generate: length must be at least zero, got {length}")
    if not 0.0 <= temperature < math.inf:
        raise RangeError(f"generate: temperature must be finite and at least zero, got {temperature}")
    if top_k is not None and top_k < 1:
        raise RangeError(f"generate: top_k must be at least one, got {top_k}")
