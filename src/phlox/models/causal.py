"""The base of causal language models: blocks on a residual stream, a KV cache, a loss, and generation."""

from __future__ import annotations

from typing import Any, Generic, TypeAlias, TypeVar, cast, overload

from phlox.models.generation import texts
from phlox.models.parts import Tokens, TransformerConfig, check_tokens
from phlox.module import Module
from phlox.nn import Embedding, KeyValueCache, LayerNorm, Linear, RmsNorm, linear_cross_entropy_loss
from phlox.tensor import Tensor

__all__ = ["CausalConfig", "CausalModel"]

CausalCache: TypeAlias = tuple[KeyValueCache, ...]
"""The keys and values of the previous tokens: one cache for each layer."""


class CausalConfig(TransformerConfig):
    """The sizes of a `CausalModel`."""

    vocabulary: int = 256
    """The number of different tokens; 256 for bytes."""
    context: int = 128
    """The largest number of tokens that the model can see."""
    n_layers: int = 4
    d_model: int = 256
    n_heads: int = 4
    n_kv_heads: int | None = None
    """The number of heads of keys and values, see `MultiHeadAttention`."""
    d_hidden: int | None = None
    """The width of the hidden layer of the MLP; by default 4 d_model."""

    def validate(self) -> None:
        super().validate()
        if self.n_kv_heads is not None and self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_heads={self.n_heads} does not divide into n_kv_heads={self.n_kv_heads} groups")


C = TypeVar("C", bound=CausalConfig)
B = TypeVar("B", bound=Module)


class CausalModel(Module, Generic[C, B]):
    """A transformer that predicts the next token from the previous ones.

    Abstract: a subclass creates the layers, and defines `embed`, which returns the input of the first block.
    """

    config: C
    tokens: Embedding
    blocks: list[B]
    norm: LayerNorm | RmsNorm
    head: Linear | None
    """None if the head is the transpose of the embedding (Press, Wolf 2017)."""

    def embed(self, tokens: Tokens, cache: KeyValueCache | None = None) -> Tensor:
        """Embed tokens [batch, n] as [batch, n, d_model]. With a cache, `tokens` follow the tokens in it."""
        raise NotImplementedError

    @overload
    def __call__(self, tokens: Tokens) -> Tensor: ...
    @overload
    def __call__(self, tokens: Tokens, *, cache: CausalCache) -> tuple[Tensor, CausalCache]: ...
    def __call__(self, tokens: Tokens, *, cache: CausalCache | None = None) -> Any:
        """Tokens Int [batch, n] to the logits of the next token at each position, [batch, n, vocabulary].

        With a cache, from `init_cache` or an earlier call, `tokens` follow the tokens in the cache, and the extended
        cache is returned too. Raises `ShapeError` for more tokens than the context.
        """
        if cache is None:
            return self.logits(self.hidden(tokens))
        x, cache = self.hidden(tokens, cache=cache)
        return self.logits(x), cache

    @overload
    def hidden(self, tokens: Tokens) -> Tensor: ...
    @overload
    def hidden(self, tokens: Tokens, *, cache: CausalCache) -> tuple[Tensor, CausalCache]: ...
    def hidden(self, tokens: Tokens, *, cache: CausalCache | None = None) -> Any:
        """The normalized hidden state, which is the input of the head: Int [batch, n] to [batch, n, d_model].

        With a cache, `tokens` follow the tokens in it, and the extended cache is returned too.
        """
        check_tokens(type(self).__name__, self.config.context, tokens)
        if cache is None:
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x)
            return self.norm(x)
        x = self.embed(tokens, cache[0])
        new_cache: list[KeyValueCache] = []
        for block, layer_cache in zip(self.blocks, cache, strict=True):
            x, layer_cache = block(x, layer_cache)
            new_cache.append(layer_cache)
        return self.norm(x), tuple(new_cache)

    def logits(self, x: Tensor) -> Tensor:
        """The logits of the next token, from the hidden state: [batch, n, d_model] to [batch, n, vocabulary]."""
        return self.tokens.logits(x) if self.head is None else self.head(x)

    def loss(self, tokens: Tokens, targets: Tokens) -> Tensor:
        """The mean negative log-likelihood, in nats, of `targets` [batch, n]: at each position, the next token.

        >>> import phlox as px
        >>> from phlox.models import GptConfig
        >>> text = px.tensor([[3, 1, 4, 1, 5]])
        >>> model = GptConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2).init(device="numpy")
        >>> model.loss(text[:, :-1], text[:, 1:]).shape
        ()
        """
        return linear_cross_entropy_loss(self.hidden(tokens), self.logits, targets, classes=self.config.vocabulary)

    def init_cache(self, batch_size: int, capacity: int | None = None) -> CausalCache:
        """An empty cache for `batch_size` sequences; by default its capacity is the context."""
        size = self.config.context if capacity is None else capacity
        return tuple([cast("Any", block).attention.init_cache(batch_size, size) for block in self.blocks])

    generate = texts.generate
    stream = texts.stream
