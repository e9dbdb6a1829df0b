"""Sentence embeddings: one vector for a text, made from the vectors of its tokens."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from phlox.backend import DeviceLike
from phlox.config import Config
from phlox.errors import ShapeError
from phlox.models.causal import CausalConfig
from phlox.models.encoder import EncoderConfig
from phlox.models.parts import Mask, Tokens, check_mask, true_at_tokens
from phlox.module import Module
from phlox.nn import Linear
from phlox.nn.activation import ACTIVATIONS, ActivationName
from phlox.tensor import Tensor, arange, concat, functional, ones, where

__all__ = ["PoolingName", "SentenceEncoder", "SentenceEncoderConfig", "SentenceLayerConfig", "pool"]

PoolingName: TypeAlias = Literal["mean", "first", "last", "max", "root_mean", "weighted_mean"]
"""How one vector is made from those of the tokens of a text, see `pool`."""


def pool(hidden: Tensor, mask: Mask | None = None, pooling: PoolingName = "mean") -> Tensor:
    """One vector for each text from those of its tokens: [batch, n, d] to [batch, d].

    Args:
        hidden: the vectors of the tokens.
        mask: [batch, n], Bool or Int: true or not zero for tokens; by default there is no padding.
        pooling: "mean", "max", or the vector of the "first" or "last" token. "root_mean" divides the sum by the square
            root of the number of tokens; "weighted_mean" weights tokens by their number, counted from 1.

    A text without tokens becomes zeros (with "max", minus infinity).

    >>> import phlox as px
    >>> hidden = px.tensor([[[1.0], [3.0], [50.0]]])
    >>> pool(hidden, px.tensor([[1, 1, 0]])).item(), pool(hidden, pooling="last").item()
    (2.0, 50.0)
    """
    check_mask("pool", mask)
    batch, n = hidden.shape[:2]
    if mask is None:
        mask = ones((batch, n), device=hidden.device) > 0.0
    if mask.shape != (batch, n):
        raise ShapeError(f"pool: mask must be [batch, n], here {(batch, n)}, got shape {mask.shape}")
    is_token = true_at_tokens(mask)
    index = arange(n, device=hidden.device)
    if pooling in ("first", "last"):
        position = where(is_token, index, n if pooling == "first" else -1)
        position = position.min(1) if pooling == "first" else position.max(1)
        return vectors_at(where(is_token.expand_dims(-1), hidden, 0.0), position.clip(0, n - 1))
    if pooling == "max":
        return where(is_token.expand_dims(-1), hidden, float("-inf")).max(1)
    weight = is_token.float()
    if pooling == "weighted_mean":
        weight = weight * is_token.int().cumsum(1).float()
    total = weight.sum(1, keepdims=True)
    divisor = total.sqrt() if pooling == "root_mean" else total
    # Not multiplied: padding may be infinite.
    tokens = where(is_token.expand_dims(-1), hidden, 0.0)
    return (tokens * weight.expand_dims(-1)).sum(1) / divisor.clip(1e-9)


def vectors_at(hidden: Tensor, position: Tokens) -> Tensor:
    """The vectors at a position of each text: [batch, n, d] to [batch, d]."""
    batch, _, d = hidden.shape
    index = position.reshape((batch, 1, 1)).broadcast_to((batch, 1, d))
    return hidden.take_along_axis(index, 1)[:, 0]


class SentenceLayerConfig(Config):
    """A dense layer after the pooling of a `SentenceEncoder`."""

    d_input: int
    d_output: int
    bias: bool = True
    activation: ActivationName | None = "tanh"


class SentenceEncoderConfig(Config):
    """Hyper-parameters of `SentenceEncoder`.

    >>> import phlox as px
    >>> inner = EncoderConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2)
    >>> SentenceEncoderConfig(inner).init()(px.tensor([[1, 2, 3]])).shape
    (1, 4)
    """

    model: EncoderConfig | CausalConfig
    pooling: tuple[PoolingName, ...] = ("mean",)
    """See `pool`; several are concatenated."""
    layers: tuple[SentenceLayerConfig, ...] = ()
    """Layers that are applied to the pooled vector."""
    normalized: bool = True
    """Whether embeddings have length 1, so that their dot product is the cosine of their angle."""

    def init(self, device: DeviceLike | None = None) -> SentenceEncoder:
        """The model; its parameters are created when they are first used."""
        return SentenceEncoder(self, device)


class SentenceEncoder(Module):
    """A model that makes one vector for each text (Reimers, Gurevych 2019), with an `Encoder` or a causal model."""

    def __init__(self, config: SentenceEncoderConfig, device: DeviceLike | None = None) -> None:
        self.config = config
        model_config: Any = config.model
        self.model: Any = model_config.init(device)
        self.layers = [Linear(layer.d_input, layer.d_output, bias=layer.bias, device=device) for layer in config.layers]

    def __call__(self, tokens: Tokens, *, mask: Mask | None = None, segments: Tokens | None = None) -> Tensor:
        """Embeddings of texts: tokens Int [batch, n] to [batch, d].

        Args:
            tokens: the texts, padded to the same length, at any side.
            mask: [batch, n], Bool or Int: true or not zero for tokens; by default there is no padding.
            segments: see `Encoder`; causal models have none.
        """
        if isinstance(self.config.model, CausalConfig):
            if mask is not None:
                tokens, mask = _left(tokens, mask)
            hidden: Tensor = self.model.hidden(tokens)
        else:
            hidden = self.model(tokens, mask=mask, segments=segments)
        x = concat([pool(hidden, mask, pooling) for pooling in self.config.pooling], -1)
        for layer, config in zip(self.layers, self.config.layers, strict=True):
            x = layer(x) if config.activation is None else ACTIVATIONS[config.activation](layer(x))
        return functional.normalize(x) if self.config.normalized else x


def _left(tokens: Tokens, mask: Mask) -> tuple[Tokens, Mask]:
    """Texts whose padding is at the left, moved to the left: a causal model counts positions from there."""
    check_mask("SentenceEncoder", mask)
    n = tokens.shape[1]
    index = arange(n, device=tokens.device)
    start = where(true_at_tokens(mask), index, n).min(1, keepdims=True)
    source = (index + start) % n
    return tokens.take_along_axis(source, 1), mask.take_along_axis(source, 1)
