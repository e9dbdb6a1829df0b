"""One encoder-decoder transformer for all families: what differs between them is in its config."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from phlox.backend import DeviceLike, Float, Int
from phlox.backend.contract.backend import engine_of
from phlox.backend.tracing.symbolic import less
from phlox.errors import ConfigError, ShapeError
from phlox.models.causal import CausalCache, CausalModel
from phlox.models.encoder_decoder_config import EncoderDecoderConfig
from phlox.models.encoder_decoder_stack import Memory, Stack
from phlox.models.generation import generate, stream
from phlox.models.generation.decoding import BLOCK
from phlox.models.generation.prompts import Prompts, batch_of
from phlox.models.parts import Mask, Tokens, attention_mask, check_mask, check_tokens, dense
from phlox.module import Module, Param
from phlox.nn import Conv1d, Embedding, Normal, Zeros, linear_cross_entropy_loss
from phlox.tensor import Tensor, arange, concat, full, functional, tensor, where
from phlox.tensor.functional.operands import check_kind
from phlox.transform import compile as compiled

__all__ = ["EncoderDecoder", "SourceDecoder"]


Source: TypeAlias = Tensor[Any, Any, Any] | Prompts
Prompt: TypeAlias = Tokens | Prompts | Sequence[int] | None


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
        return self.logits(self.decode(tokens, _memories(self, source, mask), mask)[0])

    def encode(self, source: Tensor[Any, Any, Any], *, mask: Mask | None = None) -> Tensor:
        """A vector for each token of the source, or for each two frames: [batch, m, d_model]; see `__call__`."""
        self._check(source, mask)
        if not self.convolutions:
            return self.encoder(self.embed(source), attention_mask(mask))[0]
        x = source
        for convolution in self.convolutions:
            x = functional.gelu(convolution(x))
        return self.encoder(x.swapaxes(1, 2))[0]

    def decode(
        self, tokens: Tokens, memories: Sequence[Memory], mask: Mask | None = None, cache: CausalCache | None = None
    ) -> tuple[Tensor, CausalCache]:
        """The result of the decoder for tokens [rows, n], and the new cache; `memories` are what its layers attend to.

        Each source has as many successive rows as the others.
        """
        name, sources = type(self).__name__, memories[0][0].shape[0]
        check_tokens(name, self.config.context, tokens)
        if tokens.shape[0] != sources and tokens.shape[0] % sources:
            raise ShapeError(f"{name}: {tokens.shape[0]} rows of tokens are not a multiple of {sources} sources")
        return self.decoder(self.embed(tokens), None, memories, attention_mask(mask), cache)

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
        x, _ = self.decode(self.shift(targets), _memories(self, source, mask), mask)
        classes = self.config.vocabulary
        return linear_cross_entropy_loss(x, self.logits, targets, classes=classes, ignore_index=-100)

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
                width = ((0, 0), (0, max(0, min(-(-m // BLOCK) * BLOCK, self._source_limit) - m)))
                mask = full((rows, m), 1, device=source.device) if mask is None else mask
                source, mask = source.pad(width), mask.pad(width)
        return SourceDecoder(model, encode(model, source, mask), mask)

    def generate(
        self, source: Source, max_new_tokens: int, *, mask: Mask | None = None, prompt: Prompt = None, **options: Any
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
        decoder, prompts = self._decoder_and_prompts(source, mask, prompt)
        return cast("Any", generate)(decoder, prompts, max_new_tokens, **self._with_stops(options))

    def stream(
        self, source: Source, max_new_tokens: int, *, mask: Mask | None = None, prompt: Prompt = None, **options: Any
    ) -> Iterator[Any]:
        """The tokens that `generate` would add, each as soon as it is drawn; see `phlox.models.generation.stream`."""
        decoder, prompts = self._decoder_and_prompts(source, mask, prompt)
        prompts = list(prompts) if getattr(prompts, "ndim", 1) == 2 else prompts
        return cast("Any", stream)(decoder, prompts, max_new_tokens, **self._with_stops(options))

    def embed(self, tokens: Tokens) -> Tensor:
        """The scaled embeddings of tokens, for encoder and decoder: [batch, n] to [batch, n, d_model]."""
        x, scale = self.tokens(tokens), self.config.embedding_scale
        return x if scale == 1.0 else x * scale

    def _with_stops(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"stop": self.config.stop_tokens, **options}

    def _decoder_and_prompts(self, source: Any, mask: Any, prompt: Any) -> tuple[SourceDecoder, Any]:
        """The decoder with these sources, and a prompt for each, as `generate` takes them."""
        is_list, device = not isinstance(source, Tensor), self.tokens.weight.device
        seen: Any = mask
        if is_list:
            batch = batch_of("generate", source, self.config.vocabulary, self._source_limit, device)
            source = batch.tokens
            if batch.starts is not None:  # padding goes to the end: each source begins at the first position
                rows = zip(source.numpy(), batch.starts, strict=True)
                source = tensor(np.stack([np.roll(row, -start) for row, start in rows]), device=device)
                seen = arange(max(batch.lengths), device=device) < tensor(batch.lengths, device=device).expand_dims(-1)
        is_single = source.ndim == (2 if self.convolutions else 1)
        source = (source.expand_dims(0) if is_single else source).to_device(device)
        prompt = [self.config.start_token] if prompt is None else prompt
        prompts: Any = prompt
        if not isinstance(prompt, Tensor) and len(prompt) and isinstance(prompt[0], int | np.integer):
            prompts = tensor(prompt, device=device)
        if getattr(prompts, "ndim", 2) == 1 and not is_single:
            prompts = concat([prompts.expand_dims(0)] * source.shape[0], 0)
        if not is_single and len(prompts) != source.shape[0]:
            raise ShapeError(f"generate: {source.shape[0]} sources need as many prompts, got {len(prompts)}")
        return self.start(source, mask=seen), list(prompts) if is_list else prompts

    @property
    def _source_limit(self) -> int:
        """The largest number of tokens of a source; relative positions have no limit."""
        return sys.maxsize if self.encoder.relative else self.config.source_context

    def _check(self, source: Tensor[Any, Any, Any], mask: Mask | None) -> None:
        name, config = type(self).__name__, self.config
        limit, features = self._source_limit, config.n_features
        check_kind(name, Int if features is None else Float, source=source)
        if features is not None:
            if source.ndim != 3 or source.shape[1] != features or less(2 * limit, source.shape[2]) or mask is not None:
                raise ShapeError(
                    f"{name}: a source must be [batch, {features}, frames] with at most {2 * limit} frames, and no "
                    f"mask, got shape {source.shape}"
                )
            return
        if source.ndim != 2 or less(limit, source.shape[1]):
            raise ShapeError(
                f"{name}: a source must be [batch, m] with m at most {limit} tokens, got shape {source.shape}"
            )
        check_mask(name, mask)
        if mask is not None and mask.shape != source.shape:
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

    def hidden(self, tokens: Tokens, *, cache: CausalCache | None = None, segments: Tokens | None = None) -> Any:
        """See `CausalModel.hidden`. A row is the text of one source, so it has no segments."""
        if segments is not None:
            raise ConfigError("SourceDecoder: a row is the text of one source, so it has no segments")
        memories = [(key.val(), value.val()) for key, value in self.memories]
        x, new_cache = self.model.decode(tokens, memories, None if self.mask is None else self.mask.val(), cache)
        return x if cache is None else (x, new_cache)

    def logits(self, x: Tensor) -> Tensor:
        """See `CausalModel.logits`."""
        return self.model.logits(x)

    def init_cache(self, batch_size: int, capacity: int | None = None) -> CausalCache:
        """See `CausalModel.init_cache`."""
        size = self.config.context if capacity is None else capacity
        return tuple([block.attention.init_cache(batch_size, size) for block in self.model.decoder.blocks])


def _memories(model: EncoderDecoder, source: Tensor[Any, Any, Any], mask: Mask | None) -> list[Memory]:
    """What each layer of the decoder attends to."""
    encoded = model.encode(source, mask=mask)
    return [block.cross.memory(encoded) for block in model.decoder.blocks if block.cross is not None]


_compiled_memories = compiled(_memories)
