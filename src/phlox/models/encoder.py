"""One bidirectional transformer of texts for all families: what differs between them is in its config."""

from __future__ import annotations

from typing import Any, Literal

from phlox.backend import DeviceLike, Int
from phlox.config import Config
from phlox.errors import ConfigError, ShapeError
from phlox.models.blocks import ResidualBlock, norm_of
from phlox.models.parts import (
    Mask,
    Tokens,
    TransformerConfig,
    attention_mask,
    check_heads,
    check_mask,
    check_tokens,
    dense,
)
from phlox.models.positions import RelativePositions
from phlox.module import Module, Param
from phlox.nn import Dropout, Embedding, MultiHeadAttention, Normal, RotaryEncoding
from phlox.nn.activation import ActivationName
from phlox.tensor import Tensor, arange, where
from phlox.tensor.functional.operands import check_kind

__all__ = ["BlocksConfig", "Encoder", "EncoderConfig"]


class BlocksConfig(TransformerConfig):
    """Hyper-parameters of the blocks of an encoder, of texts or of images."""

    n_layers: int = 4
    d_model: int = 256
    n_heads: int = 4
    d_hidden: int | None = None
    """The width of the hidden layer of the MLP; by default 4 d_model."""
    dropout: float = 0.1
    """The dropout rate of the embeddings and of the output of each half of a block."""
    attention_dropout: float | None = None
    """The dropout rate of the attention weights; by default `dropout`."""
    activation: ActivationName = "gelu"
    epsilon: float = 1e-12
    """The epsilon of the normalizations."""
    init_std: float = 0.02
    """The standard deviation of the initial weights."""
    norm_place: Literal["before", "after"] = "after"
    """Where each half of a block is normalized: its input, or the sum of its input and its result."""
    norm_bias: bool = True
    """Whether the normalizations have a bias."""
    embedding_norm: bool = True
    """Whether the sum of the embeddings is normalized."""
    first_norm: bool = True
    """Whether the first block normalizes the input of its attention, if the blocks normalize inputs."""
    final_norm: bool = False
    """Whether the result of the last block is normalized."""
    attention_bias: bool = True
    """Whether the projections of queries, keys and values have a bias."""
    out_bias: bool = True
    """Whether the projection of the result of the attention has a bias."""
    hidden_bias: bool = True
    """Whether the layers of the MLP have a bias."""
    gated: bool = False
    """Whether a gate scales the hidden layer (Shazeer 2020); the activation is then that of the gate."""
    causal: bool = False
    """Whether each token attends only to itself and earlier tokens."""

    def validate(self) -> None:
        super().validate()
        check_heads(self.d_model, n_heads=self.n_heads)

    def make_attention(self, layer: int, device: DeviceLike | None) -> MultiHeadAttention:
        """The attention of a layer."""
        return MultiHeadAttention(
            self.d_model,
            self.n_heads,
            bias=self.attention_bias,
            out_bias=self.out_bias,
            dropout=self.dropout if self.attention_dropout is None else self.attention_dropout,
            causal=self.causal,
            initializer=Normal(std=self.init_std),
            device=device,
        )

    def make_block(self, layer: int, device: DeviceLike | None) -> ResidualBlock:
        """The block of a layer."""
        has_norm = self.first_norm or layer > 0 or self.norm_place == "after"
        return ResidualBlock(self, self.make_attention(layer, device), self.hidden_width, device, has_norm=has_norm)


class TextSizes(Config):
    """What a text consists of."""

    vocabulary: int = 256
    """The number of different tokens; 256 for bytes."""
    context: int = 128
    """The largest number of tokens in a text."""


class EncoderConfig(BlocksConfig, TextSizes):
    """Hyper-parameters of `Encoder`. The defaults are those of a small BERT.

    >>> import phlox as px
    >>> model = EncoderConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2).init()
    >>> model(px.tensor([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    segments: int | None = 2
    """The number of segment types (for example question and answer); None if there are no segments."""
    padding_index: int | None = 0
    """The token whose embedding starts at zero and is not trained, if there is one."""
    pooler: bool = True
    """Whether there is a layer that computes one vector for a text, see `Encoder.pooled`."""
    family: str = ""
    """The family whose files hold such a model, as in `config.json` ("roberta"); it changes nothing else."""
    d_embedding: int | None = None
    """The width of the embeddings, which are projected to that of the model; by default they have the same width."""
    positions: Literal["learned", "counted", "rotary"] = "learned"
    """How positions are encoded: "learned" has a vector for each position. "counted" has one for each number of a
    token that is not `padding_index`, counted from padding_index + 1; padding has the vector `padding_index`. "rotary"
    is `RotaryEncoding`."""
    rotary_base: float = 10000.0
    local_rotary_base: float | None = None
    """The base of layers with a window; by default as the others."""
    window: int | None = None
    """How far away the tokens are, at most, to which a token attends, in layers with a window."""
    window_layers: tuple[int, ...] = ()
    """The layers with a window."""
    distance_bias: bool = False
    """Whether the distance of two tokens adds a learned number to their attention scores, the same in all layers."""

    def validate(self) -> None:
        super().validate()
        if self.positions == "counted" and self.padding_index is None:
            raise ValueError('positions="counted" needs a padding_index')
        if self.positions == "rotary" and self.d_model // self.n_heads % 2:
            raise ValueError(f"rotary positions need heads of even width, got {self.d_model // self.n_heads}")

    def make_attention(self, layer: int, device: DeviceLike | None) -> MultiHeadAttention:
        """The attention of a layer."""
        attention = super().make_attention(layer, device)
        is_local = layer in self.window_layers
        attention.window = self.window if is_local else None
        if self.positions == "rotary":
            base = (is_local and self.local_rotary_base) or self.rotary_base
            attention.rotary = RotaryEncoding(self.d_model // self.n_heads, base=base)
        return attention

    @property
    def embedding_width(self) -> int:
        """The width of the embeddings."""
        return self.d_model if self.d_embedding is None else self.d_embedding

    @property
    def first_position(self) -> int:
        """The row of the position of the first token in the table of positions."""
        return (self.padding_index or 0) + 1 if self.positions == "counted" else 0

    def init(self, device: DeviceLike | None = None) -> Encoder:
        """The model; its parameters are created when they are first used."""
        return Encoder(self, device)


class Encoder(Module):
    """A bidirectional transformer of texts, described by its config (Devlin et al. 2018).

    Weights start normally distributed with standard deviation `init_std`, biases at zero.
    """

    def __init__(self, config: EncoderConfig, device: DeviceLike | None = None) -> None:
        weights, width, d_model = Normal(std=config.init_std), config.embedding_width, config.d_model
        self.config = config
        self.tokens = Embedding(
            config.vocabulary, width, padding_index=config.padding_index, initializer=weights, device=device
        )
        rows, is_rotary = config.context + config.first_position, config.positions == "rotary"
        self.positions = None if is_rotary else Param.deferred((rows, width), weights, device=device)
        self.segments = None
        if config.segments is not None:
            self.segments = Embedding(config.segments, width, initializer=weights, device=device)
        self.norm = norm_of(config, device, width) if config.embedding_norm else None
        self.dropout = Dropout(config.dropout)
        self.projection = None
        if width != d_model:
            self.projection = dense(width, d_model, config.init_std, bias=True, device=device)
        self.distances = None
        if config.distance_bias:
            std = config.init_std
            self.distances = RelativePositions(32, 128, config.n_heads, std, both_ways=True, device=device)
        self.blocks = [config.make_block(layer, device) for layer in range(config.n_layers)]
        self.final_norm = norm_of(config, device) if config.final_norm else None
        self.pooler = dense(d_model, d_model, config.init_std, bias=True, device=device) if config.pooler else None

    def __call__(self, tokens: Tokens, *, mask: Mask | None = None, segments: Tokens | None = None) -> Tensor:
        """Tokens Int [batch, n] to a vector for each, [batch, n, d_model].

        Args:
            tokens: n is at most the context.
            mask: [batch, n], Bool or Int: true or not zero for tokens; padding is not attended to.
            segments: [batch, n]: the segment of each token; by default the first, 0.

        Raises `ShapeError` or `KindError` for tensors of other shapes or kinds.
        """
        self._check(tokens, mask, segments)
        x = self.embed(tokens, segments)
        is_token: Any = attention_mask(mask)
        if self.distances is not None:
            index = arange(tokens.shape[1], device=tokens.device)
            bias = self.distances(index, index)
            # Not minus infinity: then a text of padding alone would become NaN.
            is_token = bias if is_token is None else where(is_token, bias, -30000.0)
        for block in self.blocks:
            x, _ = block(x, is_token)
        return x if self.final_norm is None else self.final_norm(x)

    def embed(self, tokens: Tokens, segments: Tokens | None = None) -> Tensor:
        """The input of the first block: tokens Int [batch, n] to [batch, n, d_model]."""
        n, config = tokens.shape[1], self.config
        x = self.tokens(tokens)
        if self.segments is not None:
            x = x + (self.segments.weight.val()[0] if segments is None else self.segments(segments))
        if self.positions is not None:
            table = self.positions.val()
            if config.positions == "counted":
                is_token = (tokens != config.padding_index).int()
                x = x + table.take(is_token.cumsum(1) * is_token + (config.first_position - 1))
            else:
                x = x + (table if n == config.context else table[:n])
        x = self.dropout(x if self.norm is None else self.norm(x))
        return x if self.projection is None else self.projection(x)

    def pooled(self, hidden: Tensor) -> Tensor:
        """One vector for each text, computed from its first token's vector: [batch, n, d_model] to [batch, d_model].

        Raises `ConfigError` for a model without a pooler.
        """
        if self.pooler is None:
            name, config = type(self).__name__, type(self.config).__name__
            raise ConfigError(f"{name}: this model has no pooler; create it with {config}(pooler=True)")
        return self.pooler(hidden[:, 0]).tanh()

    def _check(self, tokens: Tokens, mask: Mask | None, segments: Tokens | None) -> None:
        name = type(self).__name__
        check_kind(name, Int, tokens=tokens, segments=segments)
        check_tokens(name, self.config.context, tokens)
        if segments is not None and self.segments is None:
            raise ConfigError(f"{name}: segments were given, and this model has none; leave them out")
        check_mask(name, mask)
        for argument, value in (("mask", mask), ("segments", segments)):
            if value is not None and value.shape != tokens.shape:
                raise ShapeError(
                    f"{name}: {argument} must have the shape of the tokens, {tokens.shape}, got {value.shape}"
                )
