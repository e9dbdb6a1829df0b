"""Llama: a causal transformer with RMS normalization, rotary positions, grouped-query attention and a gated MLP."""

from __future__ import annotations

from phlox.backend import DeviceLike
from phlox.models.causal import CausalBlock, CausalConfig, CausalModel, Tokens
from phlox.models.parts import ACTIVATIONS, ActivationName, check_positive, check_rates, dense
from phlox.models.rotary_scaling import RotaryScaling, ScaledRotaryEncoding
from phlox.nn import (
    Dropout,
    Embedding,
    KeyValueCache,
    MultiHeadAttention,
    Normal,
    RmsNorm,
    RotaryEncodingConfig,
)
from phlox.tensor import Tensor

__all__ = ["Llama", "LlamaConfig"]


class LlamaConfig(CausalConfig):
    """Hyper-parameters of `Llama`.

    >>> import phlox as px
    >>> model = LlamaConfig(vocabulary=10, context=8, n_layers=1, d_model=8, n_heads=4, n_kv_heads=2).init()
    >>> model(px.tensor([[1, 2, 3]])).shape
    (1, 3, 10)
    """

    d_head: int | None = None
    """The width of a head; by default d_model / n_heads."""
    attention_bias: bool = False
    """Whether the four projections of attention have a bias."""
    hidden_bias: bool = False
    """Whether the layers of the MLP have a bias."""
    tied: bool = False
    """Whether the head is the transpose of the embedding (Press, Wolf 2017)."""
    rotary_base: float = 10000.0
    """See `RotaryEncoding`."""
    rotary_scaling: RotaryScaling | None = None
    """How positions beyond the context of the original training are encoded, if they are."""
    activation: ActivationName = "silu"
    """The activation of the gate."""
    epsilon: float = 1e-6
    """The epsilon of the normalizations."""
    attention_dropout: float = 0.0
    """The dropout rate of the attention weights."""
    padding_index: int | None = None
    """The token whose embedding starts at zero and is not trained, if there is one."""
    init_std: float = 0.02
    """The standard deviation of the initial weights."""

    def validate(self) -> None:
        super().validate()
        if self.d_head is None and self.d_model % self.n_heads:
            raise ValueError(f"d_model={self.d_model} does not divide into n_heads={self.n_heads} heads")
        if self.head_width < 2 or self.head_width % 2:
            raise ValueError(f"d_head must be even for rotary positions, got {self.head_width}")
        check_rates(attention_dropout=self.attention_dropout)
        check_positive(epsilon=self.epsilon, init_std=self.init_std, rotary_base=self.rotary_base)

    @property
    def head_width(self) -> int:
        """The width of a head."""
        return self.d_model // self.n_heads if self.d_head is None else self.d_head

    def init(self, device: DeviceLike | None = None) -> Llama:
        """The model; its parameters are created when they are first used."""
        return Llama(self, device)


class LlamaBlock(CausalBlock):
    """A block with RMS normalization, attention and a gated MLP: [batch, n, d_model] to the same."""

    def __init__(self, config: LlamaConfig, device: DeviceLike | None = None) -> None:
        d_model, d_hidden, width, std = config.d_model, config.hidden_width, config.head_width, config.init_std
        self.norm_1 = RmsNorm(d_model, epsilon=config.epsilon, device=device)
        self.attention = MultiHeadAttention(
            d_model,
            config.n_heads,
            n_kv_heads=config.n_kv_heads,
            d_head=width,
            bias=config.attention_bias,
            dropout=config.attention_dropout,
            causal=True,
            rotary=RotaryEncodingConfig(width, base=config.rotary_base),
            initializer=Normal(std=std),
            device=device,
        )
        if config.rotary_scaling is not None:
            self.attention.rotary = ScaledRotaryEncoding(width, base=config.rotary_base, scaling=config.rotary_scaling)
        self.norm_2 = RmsNorm(d_model, epsilon=config.epsilon, device=device)
        self.gate = dense(d_model, d_hidden, std, bias=config.hidden_bias, device=device)
        self.up = dense(d_model, d_hidden, std, bias=config.hidden_bias, device=device)
        self.down = dense(d_hidden, d_model, std, bias=config.hidden_bias, device=device)
        self.activation: ActivationName = config.activation
        self.dropout = Dropout(0.0)

    def mlp(self, x: Tensor) -> Tensor:
        """See `CausalBlock.mlp`; the gate is from Shazeer 2020."""
        return self.down(ACTIVATIONS[self.activation](self.gate(x)) * self.up(x))


class Llama(CausalModel[LlamaConfig, LlamaBlock]):
    """A causal transformer with rotary positions and a gated MLP (Touvron et al. 2023).

    Query heads may share keys and values, as since Llama 2. Weights start normally distributed with standard deviation
    0.02, biases at zero.
    """

    def __init__(self, config: LlamaConfig, device: DeviceLike | None = None) -> None:
        self.config = config
        self.tokens = Embedding(
            config.vocabulary,
            config.d_model,
            padding_index=config.padding_index,
            initializer=Normal(std=config.init_std),
            device=device,
        )
        self.blocks = [LlamaBlock(config, device) for _ in range(config.n_layers)]
        self.norm = RmsNorm(config.d_model, epsilon=config.epsilon, device=device)
        self.head = None
        if not config.tied:
            self.head = dense(config.d_model, config.vocabulary, config.init_std, bias=False, device=device)

    def embed(self, tokens: Tokens, cache: KeyValueCache | None = None) -> Tensor:
        """See `CausalModel.embed`; the attention layers encode the positions."""
        return self.tokens(tokens)
