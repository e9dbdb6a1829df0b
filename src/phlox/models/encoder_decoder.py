"""One encoder-decoder transformer for all families: what differs between them is in its config."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from phlox.backend import Bool, Device, DeviceLike, Float, Int
from phlox.backend.contract.backend import engine_of
from phlox.backend.tracing.symbolic import less
from phlox.config import Config
from phlox.errors import KindError, ShapeError
from phlox.models.causal import CausalCache, CausalModel, Tokens
from phlox.models.generation import generate, stream
from phlox.models.generation.decoding import BLOCK
from phlox.models.generation.prompts import Prompts, batch_of
from phlox.models.parts import ACTIVATIONS, ActivationName, check_counts, check_positive, check_rates, dense
from phlox.module import Module, Param
from phlox.nn import (
    Conv1d,
    Dropout,
    Embedding,
    KeyValueCache,
    LayerNorm,
    MultiHeadAttention,
    Normal,
    RmsNorm,
    Zeros,
)
from phlox.tensor import Tensor, arange, concat, full, functional, tensor, where
from phlox.tensor.functional.operands import check_kind
from phlox.transform import compile as compiled

__all__ = ["EncoderDecoder", "EncoderDecoderConfig", "SourceDecoder"]

Mask: TypeAlias = Tensor[Any, Any, Any]
"""Bool or Int [batch, m]: true, or not zero, for the tokens of a source; false, or zero, for padding."""
Memory: TypeAlias = tuple[Tensor, Tensor]
"""The keys and values of sources, as a layer of the decoder attends to them: each [batch, heads, m, d_head]."""
Positions = Literal["relative", "learned", "sinusoidal"]


class EncoderDecoderConfig(Config):
    """Hyper-parameters of `EncoderDecoder`. The defaults are those of a small T5 1.1.

    >>> import phlox as px
    >>> model = EncoderDecoderConfig(vocabulary=10, n_layers=1, d_model=8, n_heads=2).init()
    >>> model(px.tensor([[1, 2, 3]]), px.tensor([[0, 4]])).shape
    (1, 2, 10)
    """

    family: str = ""
    """The name of the family whose files hold such a model, as in `config.json` ("t5"); it changes nothing else."""
    vocabulary: int = 256
    """The number of different tokens; 256 for bytes."""
    context: int = 512
    """The largest number of tokens that the decoder can see."""
    source_context: int = 512
    """The largest number of tokens of a source, or of its vectors after the convolutions; relative positions have no
    such limit."""
    n_features: int | None = None
    """A source is a spectrogram with so many features at a time, as in Whisper; by default it is tokens."""
    n_layers: int = 4
    """The number of layers of the encoder."""
    n_decoder_layers: int | None = None
    """By default as many as the encoder has."""
    d_model: int = 256
    n_heads: int = 4
    n_decoder_heads: int | None = None
    """By default as many as the encoder has."""
    d_head: int | None = None
    """The width of a head; by default d_model / heads."""
    d_hidden: int | None = None
    """The width of the hidden layers of the encoder; by default 4 d_model."""
    d_decoder_hidden: int | None = None
    """The width of those of the decoder; by default as in the encoder."""

    # Normalization
    norm: Literal["rms", "layer"] = "rms"
    norm_place: Literal["before", "after"] = "before"
    """Whether the input of each part of a block is normalized, or the sum of its input and its result."""
    final_norm: bool = True
    """Whether the results of encoder and decoder are normalized."""
    embedding_norm: bool = False
    """Whether the embeddings are normalized."""
    epsilon: float = 1e-6

    # Positions
    positions: Positions = "relative"
    """Relative positions add a learned score to those of each head, by the distance of two tokens (Raffel et al.
    2020); the others are vectors that are added to the embeddings, and sinusoids are not trained."""
    source_positions: Positions | None = None
    """Those of the encoder; by default as in the decoder."""
    position_offset: int = 0
    """The position of the first token: there are so many more learned positions."""
    buckets: int = 32
    """The number of groups of distances with one score each, for relative positions."""
    max_distance: int = 128
    """All larger distances are in one group."""
    shared_buckets: bool = True
    """Whether all layers of the encoder have the same scores, and all layers of the decoder."""

    # Attention
    attention_bias: bool = False
    key_bias: bool | None = None
    """Whether the projections of keys have a bias; by default as `attention_bias`."""
    attention_scale: float | None = 1.0
    """The factor of the scores; None for 1 / sqrt(d_head)."""

    # Feed-forward
    gated: bool = True
    """Whether a gate scales the hidden layer (Shazeer 2020)."""
    activation: ActivationName = "gelu_tanh"
    hidden_bias: bool = False

    # Ends
    embedding_scale: float = 1.0
    """The factor of the embeddings."""
    tied: bool = False
    """Whether the head is the transpose of the embedding (Press, Wolf 2017)."""
    logits_scale: float = 1.0
    """The factor of the input of the head."""
    head_bias: bool = False
    """Whether numbers that are not trained are added to the logits."""
    start_token: int = 0
    """The token before the first one of each target."""
    padding_token: int = 0
    """The token in the place of targets that have no loss."""
    train_padding: bool = True
    """Whether its embedding is trained; otherwise it starts at zero."""
    stop_tokens: tuple[int, ...] = ()
    """The tokens that end a text, unless `generate` is given others."""

    # Training
    dropout: float = 0.0
    """The dropout rate of the embeddings and of the result of each part of a block."""
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    output_dropout: float = 0.0
    """The dropout rate of the results of encoder and decoder."""
    init_std: float = 0.02

    def validate(self) -> None:
        counts = (
            "vocabulary", "context", "source_context", "n_features", "n_layers", "n_decoder_layers", "d_model",
            "n_heads", "n_decoder_heads", "d_head", "d_hidden", "d_decoder_hidden",
        )  # fmt: skip
        check_counts(**{name: getattr(self, name) for name in counts})
        for heads in (self.n_heads, self.n_decoder_heads or self.n_heads):
            if self.d_head is None and self.d_model % heads:
                raise ValueError(f"d_model={self.d_model} does not divide into {heads} heads")
        if self.buckets < 4 or self.max_distance <= self.buckets // 2:
            raise ValueError(
                f"buckets must be at least 4, and max_distance more than half of them, got {self.buckets} and "
                f"{self.max_distance}"
            )
        check_rates(
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            hidden_dropout=self.hidden_dropout,
            output_dropout=self.output_dropout,
        )
        check_positive(epsilon=self.epsilon, init_std=self.init_std)
        for name in ("start_token", "padding_token"):
            if not 0 <= getattr(self, name) < self.vocabulary:
                raise ValueError(f"{name} must be a token of the vocabulary, got {getattr(self, name)}")

    def init(self, device: DeviceLike | None = None) -> EncoderDecoder:
        """The model; its parameters are created when they are first used."""
        return EncoderDecoder(self, device)


def norm_of(config: EncoderDecoderConfig, device: DeviceLike | None) -> LayerNorm | RmsNorm:
    """A normalization over the width of the model."""
    cls = RmsNorm if config.norm == "rms" else LayerNorm
    return cls(config.d_model, epsilon=config.epsilon, device=device)


class Attention(MultiHeadAttention):
    """The attention of a block. In a decoder, another one attends to keys and values that are computed once."""

    def __init__(self, config: EncoderDecoderConfig, heads: int, *, causal: bool, device: DeviceLike | None) -> None:
        weights = Normal(std=config.init_std)
        super().__init__(
            config.d_model,
            heads,
            d_head=config.d_head,
            bias=config.attention_bias,
            dropout=config.attention_dropout,
            causal=causal,
            scale=config.attention_scale,
            initializer=weights,
            device=device,
        )
        if config.key_bias not in (None, config.attention_bias):
            width = heads * self.d_head
            self.key = dense(config.d_model, width, config.init_std, bias=bool(config.key_bias), device=device)

    def memory(self, x: Tensor) -> Memory:
        """The keys and values of sources [batch, m, d_model]."""
        return self._heads(self.key(x)), self._heads(self.value(x))

    def attend(self, x: Tensor, memory: Memory, mask: Tensor[Any, Any, Bool] | None) -> Tensor:
        """Attend to sources, for x [rows, n, d_model]; each source has as many successive rows as the others."""
        key, value = memory
        query = x.reshape((key.shape[0], -1, x.shape[-1]))  # the rows of a source as one
        return self._attend(self._heads(self.query(query)), key, value, mask, causal=False).reshape(x.shape)

    def _heads(self, y: Tensor) -> Tensor:
        return y.reshape((*y.shape[:-1], self.n_heads, self.d_head)).swapaxes(-3, -2)


class Block(Module):
    """Attention, in a decoder attention to the source, and a feed-forward network, each added to its input."""

    def __init__(self, config: EncoderDecoderConfig, *, decodes: bool, device: DeviceLike | None = None) -> None:
        d_model, std, bias = config.d_model, config.init_std, config.hidden_bias
        heads, d_hidden = config.n_heads, config.d_hidden or 4 * d_model
        if decodes:
            heads, d_hidden = config.n_decoder_heads or heads, config.d_decoder_hidden or d_hidden
        self.attention = Attention(config, heads, causal=decodes, device=device)
        self.norm_1 = norm_of(config, device)
        self.cross = Attention(config, heads, causal=False, device=device) if decodes else None
        self.cross_norm = norm_of(config, device) if decodes else None
        self.gate = dense(d_model, d_hidden, std, bias=bias, device=device) if config.gated else None
        self.up = dense(d_model, d_hidden, std, bias=bias, device=device)
        self.down = dense(d_hidden, d_model, std, bias=bias, device=device)
        self.norm_2 = norm_of(config, device)
        self.activation: ActivationName = config.activation
        self.dropout, self.hidden_dropout = Dropout(config.dropout), Dropout(config.hidden_dropout)
        self.norms_sums = config.norm_place == "after"

    def __call__(
        self,
        x: Tensor,
        mask: Tensor[Any, Any, Any] | None,
        memory: Memory | None = None,
        memory_mask: Tensor[Any, Any, Bool] | None = None,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, KeyValueCache | None]:
        normed = self._input(x, self.norm_1)
        if cache is None:
            attended = self.attention(normed, mask=mask)
        else:
            attended, cache = self.attention(normed, mask=mask, cache=cache)
        x = self._add(x, attended, self.norm_1)
        if self.cross is not None and self.cross_norm is not None and memory is not None:
            attended = self.cross.attend(self._input(x, self.cross_norm), memory, memory_mask)
            x = self._add(x, attended, self.cross_norm)
        return self._add(x, self.mlp(self._input(x, self.norm_2)), self.norm_2), cache

    def mlp(self, x: Tensor) -> Tensor:
        """The layers that are applied to each token separately: [..., d_model] to the same."""
        activation = ACTIVATIONS[self.activation]
        hidden = activation(self.up(x)) if self.gate is None else activation(self.gate(x)) * self.up(x)
        return self.down(self.hidden_dropout(hidden))

    def _input(self, x: Tensor, norm: LayerNorm | RmsNorm) -> Tensor:
        return x if self.norms_sums else norm(x)

    def _add(self, x: Tensor, result: Tensor, norm: LayerNorm | RmsNorm) -> Tensor:
        x = x + self.dropout(result)
        return norm(x) if self.norms_sums else x


class RelativePositions(Module):
    """A learned score for each head and each group of distances between two tokens (Raffel et al. 2020)."""

    def __init__(self, config: EncoderDecoderConfig, heads: int, *, both_ways: bool, device: DeviceLike | None) -> None:
        self.weight = Param.deferred((config.buckets, heads), Normal(std=config.init_std), device=device)
        self.buckets = buckets_of(config.buckets, config.max_distance, both_ways=both_ways)

    def __call__(self, queries: Tokens, keys: Tokens) -> Tensor:
        """The scores of positions Int [n] and [m]: [1, heads, n, m]."""
        largest = len(self.buckets) // 2
        distances = (keys - queries.expand_dims(-1)).clip(-largest, largest) + largest
        buckets = tensor(self.buckets, device=keys.device).take(distances)
        return self.weight.val().take(buckets).permute_dims(2, 0, 1).expand_dims(0)


def buckets_of(count: int, max_distance: int, *, both_ways: bool) -> np.ndarray[Any, Any]:
    """The groups of the distances from -max_distance to max_distance, of a key from its query.

    Half of the groups have one distance each, the others grow with its logarithm. Keys after the query have groups of
    their own if they are seen.
    """
    distance = np.arange(-max_distance, max_distance + 1, dtype=np.int32)
    side = count // 2 if both_ways else count
    size = np.abs(distance) if both_ways else np.maximum(-distance, 0)
    exact = side // 2
    # In float32, as others compute it: at a border between two groups, rounding decides.
    ratio = np.log((np.maximum(size, 1) / np.float32(exact)).astype(np.float32).astype(np.float64)).astype(np.float32)
    grown = ratio / np.float32(math.log(max_distance / exact)) * np.float32(side - exact)
    bucket = np.where(size < exact, size, np.minimum(exact + grown.astype(np.int32), side - 1))
    return np.where((distance > 0) & both_ways, bucket + side, bucket).astype(np.int32)


def sinusoids(shape: tuple[int, ...], fans: tuple[int, int], device: Device) -> Tensor[Any, Any, Any]:
    """Positions [n, d_model] as sines, then cosines, of geometric frequencies: an initializer."""
    n, width = shape
    frequencies = np.exp(-math.log(10000.0) / max(width // 2 - 1, 1) * np.arange(width // 2))
    angles = np.arange(n)[:, None] * frequencies
    table = np.concatenate([np.sin(angles), np.cos(angles), np.zeros((n, width % 2))], 1)
    return tensor(table, device=device, kind=Float)


class Stack(Module):
    """The blocks of an encoder or a decoder, with their positions: [batch, n, d_model] to the same."""

    def __init__(self, config: EncoderDecoderConfig, *, decodes: bool, device: DeviceLike | None = None) -> None:
        layers = (config.n_decoder_layers or config.n_layers) if decodes else config.n_layers
        heads = (config.n_decoder_heads or config.n_heads) if decodes else config.n_heads
        kind = config.positions if decodes else config.source_positions or config.positions
        self.positions, self.relative = None, list[RelativePositions]()
        self.offset = config.position_offset
        if kind == "relative":
            count = 1 if config.shared_buckets else layers
            self.relative = [
                RelativePositions(config, heads, both_ways=not decodes, device=device) for _ in range(count)
            ]
        else:
            size = (config.context if decodes else config.source_context) + self.offset
            learned = kind == "learned"
            initializer: Any = Normal(std=config.init_std) if learned else sinusoids
            self.positions = Param.deferred((size, config.d_model), initializer, trained=learned, device=device)
        self.embedding_norm = norm_of(config, device) if config.embedding_norm else None
        self.blocks = [Block(config, decodes=decodes, device=device) for _ in range(layers)]
        self.norm = norm_of(config, device) if config.final_norm else None
        self.dropout, self.output_dropout = Dropout(config.dropout), Dropout(config.output_dropout)

    def __call__(
        self,
        x: Tensor,
        mask: Tensor[Any, Any, Bool] | None = None,
        memories: Sequence[Memory | None] | None = None,
        memory_mask: Tensor[Any, Any, Bool] | None = None,
        cache: CausalCache | None = None,
    ) -> tuple[Tensor, CausalCache]:
        """The result and, with a cache, the new cache.

        Args:
            x: the embeddings.
            mask: [batch, 1, 1, n], true at the tokens, false at padding.
            memories: what each layer of a decoder attends to, [batch, 1, 1, m].
            memory_mask: the mask of these.
            cache: the cache of the tokens before x.
        """
        n = x.shape[1]
        if self.positions is not None:
            positions = arange(n, device=x.device) if cache is None else cache[0].positions(n)
            x = x + self.positions.val().take(positions + self.offset)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        x = self.dropout(x)
        keys = arange(n if cache is None else cache[0].capacity, device=x.device)
        queries = keys if cache is None else cache[0].columns(n)
        masks: list[Any] = [relative(queries, keys) for relative in self.relative] or [mask]
        if self.relative and mask is not None:
            masks = [where(mask, scores, -math.inf) for scores in masks]
        new_cache: list[KeyValueCache] = []
        for layer, block in enumerate(self.blocks):
            memory = None if memories is None else memories[layer]
            layer_cache = None if cache is None else cache[layer]
            x, layer_cache = block(x, masks[layer % len(masks)], memory, memory_mask, layer_cache)
            if layer_cache is not None:
                new_cache.append(layer_cache)
        return self.output_dropout(x if self.norm is None else self.norm(x)), tuple(new_cache)


class EncoderDecoder(Module):
    """A transformer that reads a source, and writes a target token by token (Vaswani et al. 2017).

    A source is tokens, as in T5, or a spectrogram, as in Whisper. Weights start normally distributed with standard
    deviation `init_std`, biases at zero.

    >>> import phlox as px
    >>> model = EncoderDecoderConfig(vocabulary=10, n_layers=1, d_model=8, n_heads=2).init()
    >>> model.loss(px.tensor([[1, 2, 3]]), px.tensor([[4, 5]])).shape
    ()
    >>> [text.shape for text in model.generate([[1, 2, 3], [4, 5]], 4)]
    [(5,), (5,)]
    """

    def __init__(self, config: EncoderDecoderConfig, device: DeviceLike | None = None) -> None:
        weights, width = Normal(std=config.init_std), config.d_model
        self.config = config
        padding = None if config.train_padding else config.padding_token
        self.tokens = Embedding(config.vocabulary, width, padding_index=padding, initializer=weights, device=device)
        self.convolutions = list[Conv1d]()
        if config.n_features is not None:
            options: Any = {"padding": 1, "initializer": weights, "bias_initializer": Zeros(), "device": device}
            self.convolutions = [
                Conv1d(config.n_features, width, 3, **options),
                Conv1d(width, width, 3, stride=2, **options),
            ]
        self.encoder = Stack(config, decodes=False, device=device)
        self.decoder = Stack(config, decodes=True, device=device)
        self.head = None
        if not config.tied:
            self.head = dense(width, config.vocabulary, config.init_std, bias=False, device=device)
        self.head_bias = None
        if config.head_bias:
            self.head_bias = Param.deferred((1, config.vocabulary), Zeros(), trained=False, device=device)

    def __call__(self, source: Tensor[Any, Any, Any], tokens: Tokens, *, mask: Mask | None = None) -> Tensor:
        """The logits of the token after each of `tokens`: [batch, n, vocabulary].

        Args:
            source: tokens Int [batch, m], or a spectrogram Float [batch, features, frames].
            tokens: Int [batch, n], which begin with the start token; see `shift`.
            mask: [batch, m], Bool or Int: true or not zero for tokens of the source; padding is not attended to.

        Raises `KindError` or `ShapeError` for tensors of other kinds or shapes.
        """
        name, limit = type(self).__name__, self.config.context
        check_kind(name, Int, tokens=tokens)
        if tokens.ndim != 2 or less(limit, tokens.shape[1]):
            raise ShapeError(f"{name}: tokens must be [batch, n] with n at most {limit}, got shape {tokens.shape}")
        memories = _memories(self, source, mask)
        return self.logits(self.decoder(self._embed(tokens), None, memories, _seen(mask))[0])

    def encode(self, source: Tensor[Any, Any, Any], *, mask: Mask | None = None) -> Tensor:
        """A vector for each token of the source, or for each two frames: [batch, m, d_model]; see `__call__`."""
        self._check(source, mask)
        if not self.convolutions:
            return self.encoder(self._embed(source), _seen(mask))[0]
        x = source
        for convolution in self.convolutions:
            x = functional.gelu(convolution(x))
        return self.encoder(x.swapaxes(1, 2))[0]

    def logits(self, x: Tensor) -> Tensor:
        """The logits of the next token, from the result of the decoder: [..., d_model] to [..., vocabulary]."""
        scale, bias = self.config.logits_scale, self.head_bias
        x = x if scale == 1.0 else x * scale
        y = self.tokens.logits(x) if self.head is None else self.head(x)
        return y if bias is None else y + bias.val()

    def shift(self, targets: Tokens) -> Tokens:
        """The tokens before each target [batch, n]: the start token, then the targets without the last."""
        start = full((targets.shape[0], 1), self.config.start_token, device=targets.device)
        before = concat([start, targets[:, :-1]], 1)
        return where(before < 0, self.config.padding_token, before)

    def loss(self, source: Tensor[Any, Any, Any], targets: Tokens, *, mask: Mask | None = None) -> Tensor:
        """The mean negative log-likelihood, in nats, of `targets` [batch, n]; targets of -100 are ignored.

        The decoder is given the true tokens before each target (teacher forcing).
        """
        return functional.cross_entropy(self(source, self.shift(targets), mask=mask), targets, ignore_index=-100)

    def start(self, source: Tensor[Any, Any, Any], *, mask: Mask | None = None) -> SourceDecoder:
        """The decoder with these sources, which are encoded now: a causal model of the rows of their texts.

        Arguments are as in `__call__`. Each source may have several successive rows.

        >>> import phlox as px
        >>> model = EncoderDecoderConfig(vocabulary=10, n_layers=1, d_model=8, n_heads=2).init()
        >>> decoder = model.start(px.tensor([[1, 2, 3]]))
        >>> decoder(px.tensor([[0, 4], [0, 5]])).shape
        (2, 2, 10)
        """
        model, encode = self.valid(), _memories
        backend = model.tokens.weight.device.backend
        if backend.compiles and engine_of(backend).prefers_compiled:
            encode = _compiled_memories
            if not self.convolutions and source.ndim == 2:  # pad to one of a few lengths: few programs are compiled
                rows, m = source.shape
                most = m if self.encoder.positions is None else max(m, self.config.source_context)
                width = ((0, 0), (0, max(0, min(-(-m // BLOCK) * BLOCK, most) - m)))
                mask = full((rows, m), 1, device=source.device) if mask is None else mask
                source, mask = source.pad(width), mask.pad(width)
        return SourceDecoder(model, encode(model, source, mask), mask)

    def generate(
        self,
        source: Tensor[Any, Any, Any] | Prompts,
        max_new_tokens: int,
        *,
        mask: Mask | None = None,
        prompt: Tokens | Prompts | Sequence[int] | None = None,
        **options: Any,
    ) -> Any:
        """Write the text of each source: at most `max_new_tokens` tokens, drawn one by one, or until a stop token.

        Args:
            source: tokens Int [batch, m] or [m], or a list of sources of any lengths; or a spectrogram Float [batch,
                features, frames] or [features, frames].
            max_new_tokens: the largest number of tokens to add to a prompt.
            mask: [batch, m], for sources [batch, m] with padding.
            prompt: the first tokens of all texts, [n] or a list of numbers; or a prompt for each, [batch, n] or a list
                of prompts. By default the start token.
            options: those of `phlox.models.generation.generate`; `stop` is by default the config's `stop_tokens`.

        Returns the prompts and what follows, as `phlox.models.generation.generate` does: a tensor, or a list if the
        sources or their prompts are a list.

        Raises `KindError`, `ShapeError`, `RangeError` or `IndexRangeError` for an invalid argument.
        """
        return generate(*self._decoder_and_prompts(source, mask, prompt), max_new_tokens, **self._with_stops(options))

    def stream(
        self,
        source: Tensor[Any, Any, Any] | Prompts,
        max_new_tokens: int,
        *,
        mask: Mask | None = None,
        prompt: Tokens | Prompts | Sequence[int] | None = None,
        **options: Any,
    ) -> Iterator[Any]:
        """The tokens that `generate` would add, each as soon as it is drawn; see `phlox.models.generation.stream`."""
        decoder, prompts = self._decoder_and_prompts(source, mask, prompt)
        prompts = list(prompts) if isinstance(prompts, Tensor) and prompts.ndim == 2 else prompts
        return stream(decoder, prompts, max_new_tokens, **self._with_stops(options))

    def _embed(self, tokens: Tokens) -> Tensor:
        x, scale = self.tokens(tokens), self.config.embedding_scale
        return x if scale == 1.0 else x * scale

    def _with_stops(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"stop": self.config.stop_tokens, **options}

    def _decoder_and_prompts(self, source: Any, mask: Mask | None, prompt: Any) -> tuple[SourceDecoder, Any]:
        """The decoder with these sources, and a prompt for each, as `generate` takes them."""
        is_list, device = not isinstance(source, Tensor), self.tokens.weight.device
        if is_list:
            limit = sys.maxsize if self.encoder.positions is None else self.config.source_context
            batch = batch_of("generate", source, self.config.vocabulary, limit, device)
            source = batch.tokens
            if batch.starts is not None:  # padding goes to the end: each source begins at the first position
                rows = zip(source.numpy(), batch.starts, strict=True)
                source = tensor(np.stack([np.roll(row, -start) for row, start in rows]), device=device)
                mask = arange(source.shape[1], device=device) < tensor(batch.lengths, device=device).expand_dims(-1)
        is_single = source.ndim == (2 if self.convolutions else 1)
        source = (source.expand_dims(0) if is_single else source).to_device(device)
        prompt = [self.config.start_token] if prompt is None else prompt
        if not isinstance(prompt, Tensor) and len(prompt) and isinstance(prompt[0], int | np.integer):
            prompt = tensor(prompt, device=device)
        if isinstance(prompt, Tensor) and prompt.ndim == 1 and not is_single:
            prompt = concat([prompt.expand_dims(0)] * source.shape[0], 0)
        if not is_single and len(prompt) != source.shape[0]:
            raise ShapeError(f"generate: {source.shape[0]} sources need as many prompts, got {len(prompt)}")
        return self.start(source, mask=mask), list(prompt) if is_list else prompt

    def _check(self, source: Tensor[Any, Any, Any], mask: Mask | None) -> None:
        name, config = type(self).__name__, self.config
        limit, features = config.source_context, config.n_features
        check_kind(name, Int if features is None else Float, source=source)
        if features is not None:
            if source.ndim != 3 or source.shape[1] != features or less(2 * limit, source.shape[2]) or mask is not None:
                raise ShapeError(
                    f"{name}: a source must be [batch, {features}, frames] with at most {2 * limit} frames, and no "
                    f"mask, got shape {source.shape}"
                )
            return
        if source.ndim != 2 or (self.encoder.positions is not None and less(limit, source.shape[1])):
            raise ShapeError(
                f"{name}: a source must be [batch, m] with m at most {limit} tokens, got shape {source.shape}"
            )
        if mask is not None:
            if not isinstance(mask, Tensor) or mask.kind is Float:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise KindError(f"{name}: mask must be a Bool or Int tensor, not zero where there is a token")
            if mask.shape != source.shape:
                raise ShapeError(f"{name}: mask must have the shape of the source, {source.shape}, got {mask.shape}")


class SourceDecoder(CausalModel[Any, Any]):
    """The decoder of an `EncoderDecoder` with its sources, from `EncoderDecoder.start`: a causal model.

    Its rows are texts of the sources; each source has as many successive rows as the others. The keys and values of
    the sources are computed once, and are parameters that are not trained.
    """

    def __init__(self, model: EncoderDecoder, memories: Sequence[Memory], mask: Mask | None) -> None:
        self.config, self.model, self.tokens = model.config, model, model.tokens
        self.memories = [tuple([Param(part, trained=False) for part in memory]) for memory in memories]
        self.mask = None if mask is None else Param(mask, trained=False)

    def hidden(self, tokens: Tokens, *, cache: CausalCache | None = None) -> Any:
        """See `CausalModel.hidden`."""
        self._check(tokens)
        memories = [(key.val(), value.val()) for key, value in self.memories]
        mask = None if self.mask is None else self.mask.val()
        x, cache = self.model.decoder(self.model._embed(tokens), None, memories, _seen(mask), cache)
        return (x, cache) if cache else x

    def logits(self, x: Tensor) -> Tensor:
        """See `CausalModel.logits`."""
        return self.model.logits(x)

    def init_cache(self, batch_size: int, capacity: int | None = None) -> CausalCache:
        """See `CausalModel.init_cache`."""
        size = self.config.context if capacity is None else capacity
        return tuple([block.attention.init_cache(batch_size, size) for block in self.model.decoder.blocks])


def _seen(mask: Mask | None) -> Tensor[Any, Any, Bool] | None:
    """The mask [batch, m] as one of attention: [batch, 1, 1, m]."""
    return None if mask is None else (mask if mask.kind is Bool else mask != 0).expand_dims(1).expand_dims(1)


def _memories(model: EncoderDecoder, source: Tensor[Any, Any, Any], mask: Mask | None) -> list[Memory]:
    """What each layer of the decoder attends to."""
    encoded = model.encode(source, mask=mask)
    return [block.cross.memory(encoded) for block in model.decoder.blocks if block.cross is not None]


_compiled_memories = compiled(_memories)
