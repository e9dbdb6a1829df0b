"""What the blocks of all transformers share: normalizations, the feed-forward network, and the residual stream."""

from __future__ import annotations

from typing import Any, TypeAlias

from phlox.backend import DeviceLike
from phlox.models.parts import dense
from phlox.module import Module
from phlox.nn import Dropout, KeyValueCache, LayerNorm, Linear, MultiHeadAttention, RmsNorm
from phlox.nn.activation import ACTIVATIONS, ActivationName
from phlox.tensor import Tensor

Norm: TypeAlias = LayerNorm | RmsNorm


def norm_of(config: Any, device: DeviceLike | None, width: int | None = None) -> Norm:
    """A normalization as the config of a transformer says, by default over the width of the model."""
    size: int = width or config.d_model
    if getattr(config, "norm", "layer") == "layer":
        return LayerNorm(size, epsilon=config.epsilon, bias=getattr(config, "norm_bias", True), device=device)
    return RmsNorm(size, epsilon=config.epsilon, offset=getattr(config, "norm_offset", 0.0), device=device)


class FeedForwardBlock(Module):
    """The base of blocks with a feed-forward network, whose layers are their fields: so are they called in records."""

    gate: Linear | None
    up: Linear | None
    down: Linear | None
    hidden_dropout: Dropout | None = None
    """After the activation."""

    def create_mlp(
        self, config: Any, d_hidden: int, device: DeviceLike | None, *, last_std: float | None = None
    ) -> None:
        """Create the layers; `last_std` is the standard deviation of the weights of the last one."""
        width, std, bias = config.d_model, config.init_std, config.hidden_bias
        self.gate = dense(width, d_hidden, std, bias=bias, device=device) if config.gated else None
        self.up = dense(width, d_hidden, std, bias=bias, device=device)
        self.down = dense(d_hidden, width, std if last_std is None else last_std, bias=bias, device=device)
        self.activation: ActivationName = config.activation

    def mlp(self, x: Tensor) -> Tensor:
        """The layers that are applied to each token separately: [..., d_model] to the same."""
        assert self.up is not None and self.down is not None
        activation = ACTIVATIONS[self.activation]
        hidden = activation(self.up(x)) if self.gate is None else activation(self.gate(x)) * self.up(x)
        return self.down(hidden if self.hidden_dropout is None else self.hidden_dropout(hidden))


class ResidualBlock(FeedForwardBlock):
    """The block of encoders and encoder-decoders: attention, in a decoder attention to a source, and a feed-forward
    network, each added to its input: [batch, n, d_model] to the same.

    The input of each part is normalized, or the sum of its input and its result.
    """

    def __init__(
        self,
        config: Any,
        attention: MultiHeadAttention,
        d_hidden: int,
        device: DeviceLike | None,
        *,
        has_norm: bool = True,
        cross: Any = None,
    ) -> None:
        self.attention = attention
        self.norm_1 = norm_of(config, device) if has_norm else None
        self.cross, self.cross_norm = cross, None if cross is None else norm_of(config, device)
        self.create_mlp(config, d_hidden, device)
        self.norm_2 = norm_of(config, device)
        self.dropout, self.hidden_dropout = Dropout(config.dropout), Dropout(getattr(config, "hidden_dropout", 0.0))
        self.norms_sums = config.norm_place == "after"

    def __call__(
        self,
        x: Tensor,
        mask: Tensor[Any, Any, Any] | None = None,
        memory: Any = None,
        memory_mask: Tensor[Any, Any, Any] | None = None,
        cache: KeyValueCache | None = None,
    ) -> tuple[Tensor, KeyValueCache | None]:
        """The result and, with a cache, the new cache; `memory` is what `cross` attends to."""
        normed = self._input(x, self.norm_1)
        if cache is None:
            attended = self.attention(normed, mask=mask)
        else:
            attended, cache = self.attention(normed, mask=mask, cache=cache)
        x = self._add(x, attended, self.norm_1)
        if memory is not None:
            attended = self.cross.attend(self._input(x, self.cross_norm), memory, memory_mask)
            x = self._add(x, attended, self.cross_norm)
        return self._add(x, self.mlp(self._input(x, self.norm_2)), self.norm_2), cache

    def _input(self, x: Tensor, norm: Norm | None) -> Tensor:
        return x if norm is None or self.norms_sums else norm(x)

    def _add(self, x: Tensor, result: Tensor, norm: Norm | None) -> Tensor:
        x = x + self.dropout(result)
        return norm(x) if norm is not None and self.norms_sums else x
