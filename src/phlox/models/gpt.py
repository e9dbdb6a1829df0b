"""A GPT: a causal transformer that predicts the next token."""

from __future__ import annotations

import math
from typing import Any, TypeAlias, overload

from phlox.backend import DeviceLike, Int
from phlox.config import Config
from phlox.errors import ShapeError
from phlox.models.gpt_generation import generate
from phlox.module import Module, Param
from phlox.nn import (
    Dropout,
    Embedding,
    KeyValueCache,
    LayerNorm,
    Linear,
    MultiHeadAttention,
    Normal,
    RotaryEncodingConfig,
    Zeros,
)
from phlox.tensor import Tensor, functional

GptCache: TypeAlias = tuple[KeyValueCache, ...]
"""What a GPT keeps of the tokens before: one cache a layer."""


class GptConfig(Config):
    """Hyper-parameters of `Gpt`.

    >>> import phlox as px
    >>> model = GptConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2).init()
    >>> model(px.tensor([[1, 2, 3]])).shape
    (1, 3, 10)
    """

    vocabulary: int = 256
    """How many tokens there are; 256 for bytes."""
    context: int = 128
    """How many tokens it sees at most."""
    n_layers: int = 4
    d_model: int = 256
    n_heads: int = 4
    n_kv_heads: int | None = None
    """How many heads keys and values have; see `MultiHeadAttention`."""
    d_hidden: int | None = None
    """Of the layers between attentions; 4 d_model unless given."""
    dropout: float = 0.0
    """Of the embeddings, of the weights of attention, and of what each block adds."""
    bias: bool = True
    """Have linear layers and normalisations one? The head has none."""
    tied: bool = False
    """Is the head the transpose of the embedding (Press, Wolf 2017)?"""
    rotary: bool = False
    """Do queries and keys turn with their positions, instead of positions having a learned embedding?"""

    def validate(self) -> None:
        sizes = ("vocabulary", "context", "n_layers", "d_model", "n_heads", "n_kv_heads", "d_hidden")
        for name in sizes:
            size = getattr(self, name)
            if size is not None and size < 1:
                raise ValueError(f"{name} must be at least one, got {size}")
        if self.d_model % self.n_heads:
            raise ValueError(f"d_model={self.d_model} does not divide into n_heads={self.n_heads} heads")
        if self.n_kv_heads is not None and self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads={self.n_heads} does not divide into n_kv_heads={self.n_kv_heads} groups")
        if self.rotary and self.d_model // self.n_heads % 2:
            raise ValueError(f"rotary needs heads of even width, got {self.d_model // self.n_heads}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must lie in [0, 1), got {self.dropout}")

    def init(self, device: DeviceLike | None = None) -> Gpt:
        """The model; its parameters are made when first used."""
        return Gpt(self, device)


class GptBlock(Module):
    """x + attention(norm(x)), and of that x + mlp(norm(x)): [batch, n, d_model] to the same."""

    def __init__(self, config: GptConfig, device: DeviceLike | None = None) -> None:
        weights, last = Normal(std=0.02), Normal(std=0.02 / math.sqrt(2 * config.n_layers))
        d_hidden = 4 * config.d_model if config.d_hidden is None else config.d_hidden
        self.norm_1 = LayerNorm(config.d_model, bias=config.bias, device=device)
        self.attention = MultiHeadAttention(
            config.d_model,
            config.n_heads,
            n_kv_heads=config.n_kv_heads,
            bias=config.bias,
            dropout=config.dropout,
            causal=True,
            rotary=RotaryEncodingConfig(config.d_model // config.n_heads) if config.rotary else None,
            initializer=weights,
            out_initializer=last,
            device=device,
        )
        self.norm_2 = LayerNorm(config.d_model, bias=config.bias, device=device)
        self.up = _linear(config.d_model, d_hidden, weights, config.bias, device)
        self.down = _linear(d_hidden, config.d_model, last, config.bias, device)
        self.dropout = Dropout(config.dropout)

    @overload
    def __call__(self, x: Tensor) -> Tensor: ...
    @overload
    def __call__(self, x: Tensor, cache: KeyValueCache) -> tuple[Tensor, KeyValueCache]: ...
    def __call__(self, x: Tensor, cache: KeyValueCache | None = None) -> Any:
        if cache is None:
            return self._mlp(x + self.dropout(self.attention(self.norm_1(x))))
        y, cache = self.attention(self.norm_1(x), cache=cache)
        return self._mlp(x + self.dropout(y)), cache

    def _mlp(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(self.up(self.norm_2(x)).gelu(approximate=True)))


class Gpt(Module):
    """A transformer that sees the tokens before, with normalisation first in each block (Radford et al. 2019).

    Weights begin as those of GPT-2: normal with deviation 0.02, those whose result is added to the residual stream
    smaller by sqrt(2 n_layers); biases at zero.
    """

    def __init__(self, config: GptConfig, device: DeviceLike | None = None) -> None:
        weights, width = Normal(std=0.02), config.d_model
        self.config = config
        self.tokens = Embedding(config.vocabulary, width, initializer=weights, device=device)
        self.positions = None if config.rotary else Param.deferred((config.context, width), weights, device=device)
        self.dropout = Dropout(config.dropout)
        self.blocks = [GptBlock(config, device) for _ in range(config.n_layers)]
        self.norm = LayerNorm(width, bias=config.bias, device=device)
        self.head = None if config.tied else _linear(width, config.vocabulary, weights, False, device)

    @overload
    def __call__(self, tokens: Tensor[Any, Any, Int]) -> Tensor: ...
    @overload
    def __call__(self, tokens: Tensor[Any, Any, Int], *, cache: GptCache) -> tuple[Tensor, GptCache]: ...
    def __call__(self, tokens: Tensor[Any, Any, Int], *, cache: GptCache | None = None) -> Any:
        """Tokens Int [batch, n] to the logits of the next one at each place, [batch, n, vocabulary].

        With a cache, from `init_cache` or an earlier call, the tokens follow those that it holds, and the cache with
        these is returned too. Raises `ShapeError` for more tokens than the context.
        """
        if cache is None:
            x = self._embed(tokens)
            for block in self.blocks:
                x = block(x)
            return self._logits(x)
        x = self._embed(tokens, cache)
        later: list[KeyValueCache] = []
        for block, seen in zip(self.blocks, cache, strict=True):
            x, seen = block(x, seen)
            later.append(seen)
        return self._logits(x), tuple(later)

    def loss(self, tokens: Tensor[Any, Any, Int], targets: Tensor[Any, Any, Int]) -> Tensor:
        """The mean negative log-likelihood, in nats, of `targets` [batch, n], each the token after that at its place.

        >>> import phlox as px
        >>> text = px.tensor([[3, 1, 4, 1, 5]])
        >>> model = GptConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2).init(device="numpy")
        >>> model.loss(text[:, :-1], text[:, 1:]).shape
        ()
        """
        return functional.cross_entropy(self(tokens), targets)

    def init_cache(self, batch_size: int, capacity: int | None = None) -> GptCache:
        """An empty cache for so many sequences at once; its capacity is the context unless it is to be less."""
        return tuple(
            block.attention.init_cache(batch_size, self.config.context if capacity is None else capacity)
            for block in self.blocks
        )

    def generate(
        self,
        prompt: Tensor[Any, Any, Int],
        length: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        compile: bool = True,
    ) -> Tensor[Any, Any, Int]:
        """Continue each prompt by `length` tokens, drawn one by one: Int [batch, n] to [batch, n + length].

        See `phlox.models.gpt_generation.generate`.
        """
        return generate(self, prompt, length, temperature=temperature, top_k=top_k, compile=compile)

    def _embed(self, tokens: Tensor[Any, Any, Int], cache: GptCache | None = None) -> Tensor:
        x = self.tokens(tokens)
        limit = self.config.context
        if tokens.ndim != 2 or tokens.shape[1] > limit:
            raise ShapeError(
                f"Gpt: tokens must be [batch, n] with n at most the context of {limit}, got shape {tokens.shape}"
            )
        if self.positions is not None:
            n, table = tokens.shape[1], self.positions.val()
            if cache is not None:
                x = x + table.take(cache[0].positions(n))
            else:
                x = x + (table if n == limit else table[:n])
        return self.dropout(x)

    def _logits(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        return functional.linear(x, self.tokens.weight.val().T) if self.head is None else self.head(x)


def _linear(d_input: int, d_output: int, weights: Normal, bias: bool, device: DeviceLike | None) -> Linear:
    return Linear(d_input, d_output, bias=bias, initializer=weights, bias_initializer=Zeros(), device=device)
