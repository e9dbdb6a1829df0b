"""The blocks of an `EncoderDecoder`, and its positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from phlox.backend import Bool, Device, DeviceLike, Float
from phlox.models.blocks import ResidualBlock, norm_of
from phlox.models.causal import CausalCache
from phlox.models.encoder_decoder_config import EncoderDecoderConfig
from phlox.models.parts import dense
from phlox.models.positions import RelativePositions, sinusoid_table, sinusoids
from phlox.module import Module, Param
from phlox.nn import Dropout, KeyValueCache, MultiHeadAttention, Normal
from phlox.tensor import Tensor, arange, tensor, where

Memory: TypeAlias = tuple[Tensor, Tensor]
"""The keys and values of sources, as a layer of the decoder attends to them: each [batch, heads, m, d_head]."""


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


def block_of(config: EncoderDecoderConfig, *, decodes: bool, device: DeviceLike | None) -> ResidualBlock:
    """A block of the encoder, or of the decoder, which attends to the source, too."""
    heads = (config.n_decoder_heads or config.n_heads) if decodes else config.n_heads
    attention = Attention(config, heads, causal=decodes, device=device)
    cross = Attention(config, heads, causal=False, device=device) if decodes else None
    width = config.decoder_hidden_width if decodes else config.hidden_width
    return ResidualBlock(config, attention, width, device, cross=cross)


class Stack(Module):
    """The blocks of an encoder or a decoder, with their positions: [batch, n, d_model] to the same."""

    def __init__(self, config: EncoderDecoderConfig, *, decodes: bool, device: DeviceLike | None = None) -> None:
        layers = (config.n_decoder_layers or config.n_layers) if decodes else config.n_layers
        heads = (config.n_decoder_heads or config.n_heads) if decodes else config.n_heads
        kind = config.positions if decodes else config.source_positions or config.positions
        self.positions, self.relative = None, list[RelativePositions]()
        self.offset = config.position_offset
        size = (config.context if decodes else config.source_context) + self.offset
        self.sinusoids = (size, config.d_model) if kind == "sinusoidal" else None
        if kind == "relative":
            count = 1 if config.shared_buckets else layers
            self.relative = [
                RelativePositions(
                    config.buckets, config.max_distance, heads, config.init_std, both_ways=not decodes, device=device
                )
                for _ in range(count)
            ]
        elif kind != "sinusoidal":
            initializer: Any = Normal(std=config.init_std) if kind == "learned" else sinusoids
            is_learned = kind == "learned"
            self.positions = Param.deferred((size, config.d_model), initializer, trained=is_learned, device=device)
        self.embedding_norm = norm_of(config, device) if config.embedding_norm else None
        self.blocks = [block_of(config, decodes=decodes, device=device) for _ in range(layers)]
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
        if not self.relative:
            positions = arange(n, device=x.device) if cache is None else cache[0].positions(n)
            x = x + self._table(x.device).take(positions + self.offset)
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

    def _table(self, device: Device) -> Tensor:
        """The vectors of all positions."""
        if self.sinusoids is not None:
            return tensor(sinusoid_table(*self.sinusoids), device=device, kind=Float)
        assert self.positions is not None
        return self.positions.val()
