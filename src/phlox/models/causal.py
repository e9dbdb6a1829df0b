"""The base of causal language models: blocks on a residual stream, a KV cache, a loss, and generation."""

from __future__ import annotations

from typing import Any, Generic, TypeAlias, TypeVar, cast, overload

from phlox.errors import ConfigError
from phlox.models.generation import texts
from phlox.models.parts import Tokens, TransformerConfig, check_tokens, texts_in_rows
from phlox.module import Module
from phlox.nn import Embedding, KeyValueCache, LayerNorm, Linear, RmsNorm, linear_cross_entropy_loss
from phlox.tensor import Tensor, where

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

    def embed(self, tokens: Tokens, cache: KeyValueCache | None = None, *, positions: Tokens | None = None) -> Tensor:
        """Embed tokens [batch, n] as [batch, n, d_model]. With a cache, `tokens` follow the tokens in it.

        `positions` [batch, n] are given for rows of several texts, whose blocks are called with `mask` and `positions`
        as `MultiHeadAttention` is.
        """
        raise NotImplementedError

    @overload
    def __call__(self, tokens: Tokens, *, segments: Tokens | None = None) -> Tensor: ...
    @overload
    def __call__(self, tokens: Tokens, *, cache: CausalCache) -> tuple[Tensor, CausalCache]: ...
    def __call__(self, tokens: Tokens, *, cache: CausalCache | None = None, segments: Tokens | None = None) -> Any:
        """Tokens Int [batch, n] to the logits of the next token at each position, [batch, n, vocabulary].

        Args:
            tokens: at most as many as the context.
            cache: from `init_cache` or an earlier call: `tokens` follow the tokens in the cache, and the extended cache
                is returned too.
            segments: Int [batch, n], for rows of several texts, as `phlox.data.Pack` makes them: a run of equal numbers
                is a text. A token attends only to its own text, in which positions start at 0, so the results are those
                of each text alone. Padding is a text too, which no other one sees. The mask of a row has n * n bytes.

        Raises `ShapeError` for too many tokens and for segments of another shape, `KindError` for segments that are not
        Int, and `ConfigError` for segments with a cache.
        """
        if cache is None:
            return self.logits(self.hidden(tokens, segments=segments))
        x, cache = self.hidden(tokens, cache=cache, segments=segments)
        return self.logits(x), cache

    @overload
    def hidden(self, tokens: Tokens, *, segments: Tokens | None = None) -> Tensor: ...
    @overload
    def hidden(
        self, tokens: Tokens, *, cache: CausalCache, segments: Tokens | None = None
    ) -> tuple[Tensor, CausalCache]: ...
    def hidden(self, tokens: Tokens, *, cache: CausalCache | None = None, segments: Tokens | None = None) -> Any:
        """The normalized hidden state, which is the input of the head: Int [batch, n] to [batch, n, d_model].

        Arguments are as in `__call__`. With a cache, the extended cache is returned too.
        """
        if cache is None:
            x, options = self._inputs(tokens, segments)
            for block in self.blocks:
                x = block(x, **options)
            return self.norm(x)
        name = type(self).__name__
        if segments is not None:
            raise ConfigError(f"{name}: a cache has one text in each row, so it does not go together with segments")
        check_tokens(name, self.config.context, tokens)
        x = self.embed(tokens, cache[0])
        new_cache: list[KeyValueCache] = []
        for block, layer_cache in zip(self.blocks, cache, strict=True):
            x, layer_cache = block(x, layer_cache)
            new_cache.append(layer_cache)
        return self.norm(x), tuple(new_cache)

    def _inputs(self, tokens: Tokens, segments: Tokens | None) -> tuple[Tensor, dict[str, Any]]:
        """The input of the first block, and further arguments of all blocks."""
        name = type(self).__name__
        check_tokens(name, self.config.context, tokens)
        if segments is None:
            return self.embed(tokens), {}
        mask, positions = texts_in_rows(name, tokens, segments)
        return self.embed(tokens, positions=positions), {"mask": mask, "positions": positions}

    def logits(self, x: Tensor) -> Tensor:
        """The logits of the next token, from the hidden state: [batch, n, d_model] to [batch, n, vocabulary]."""
        return self.tokens.logits(x) if self.head is None else self.head(x)

    def loss(
        self, tokens: Tokens, targets: Tokens, *, segments: Tokens | None = None, ignore_index: int | None = None
    ) -> Tensor:
        """The mean negative log-likelihood, in nats, of `targets` [batch, n]: at each position, the next token.

        Args:
            tokens, segments: as in `__call__`. Targets in segment 0, the padding of `phlox.data.Pack`, are ignored.
            targets: such as `phlox.data.next_tokens` makes.
            ignore_index: targets with this value are ignored, also in the mean; with segments, by default -100.

        The weight of the mean is the number of targets that are not ignored. All logits are never held at once, see
        `phlox.nn.linear_cross_entropy_loss`.

        >>> import phlox as px
        >>> from phlox.models import GptConfig
        >>> text = px.tensor([[3, 1, 4, 1, 5]])
        >>> model = GptConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2).init(device="numpy")
        >>> model.loss(text[:, :-1], text[:, 1:]).shape
        ()
        """
        return self._loss(self.hidden(tokens, segments=segments), targets, segments, ignore_index)

    def _loss(self, x: Tensor, targets: Tokens, segments: Tokens | None, ignore_index: int | None) -> Tensor:
        if segments is not None:
            ignore_index = -100 if ignore_index is None else ignore_index
            targets = where(segments == 0, ignore_index, targets)
        classes = self.config.vocabulary
        return linear_cross_entropy_loss(x, self.logits, targets, classes=classes, ignore_index=ignore_index)

    def log_prob(self, tokens: Tokens, targets: Tokens) -> Tensor:
        """The log-probability of the targets of each row, Int [batch, n] to [batch], as `px.nn.dpo_loss` takes it.

        Targets of -100 are ignored: those of a prompt, and of padding at the end. All logits are never held at once.

        >>> import phlox as px
        >>> from phlox.models import GptConfig
        >>> model = GptConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2).init(device="numpy")
        >>> model.log_prob(px.tensor([[3, 1, 4], [1, 5, 0]]), px.tensor([[-100, 4, 1], [5, 9, -100]])).shape
        (2,)
        """
        losses = linear_cross_entropy_loss(
            self.hidden(tokens), self.logits, targets, classes=self.config.vocabulary, ignore_index=-100,
            reduction="none",
        )  # fmt: skip
        return -losses.to_full_precision().sum(1)

    def init_cache(self, batch_size: int, capacity: int | None = None) -> CausalCache:
        """An empty cache for `batch_size` sequences; by default its capacity is the context."""
        size = self.config.context if capacity is None else capacity
        return tuple([cast("Any", block).attention.init_cache(batch_size, size) for block in self.blocks])

    generate = texts.generate
    stream = texts.stream
