"""GPT: a causal transformer that predicts the next token."""

from __future__ import annotations

import math

from phlox.backend import DeviceLike
from phlox.models.causal import CausalBlock, CausalCache, CausalConfig, CausalModel, Tokens
from phlox.models.parts import ACTIVATIONS, ActivationName, check_positive, check_rates, dense
from phlox.module import Param
from phlox.nn import Dropout, Embedding, KeyValueCache, LayerNorm, MultiHeadAttention, Normal, RotaryEncodingConfig
from phlox.tensor import Tensor

__all__ = ["Gpt", "GptConfig"]

GptCache = CausalCache
"""The keys and values of the previous tokens: one cache for each layer."""


class GptConfig(CausalConfig):
    """Hyper-parameters of `Gpt`.

    >>> import phlox as px
    >>> model = GptConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2).init()
    >>> model(px.tensor([[1, 2, 3]])).shape
    (1, 3, 10)
    """

    dropout: float = 0.0
    """The dropout rate of the embeddings, of the attention weights, and of the output of each block."""
    bias: bool = True
    """Whether linear layers and normalizations have a bias. The head has none."""
    tied: bool = False
    """Whether the head is the transpose of the embedding (Press, Wolf 2017)."""
    rotary: bool = False
    """Whether positions use rotary encoding instead of a learned embedding."""
    embedding_dropout: float | None = None
    """The dropout rate of the embeddings; by default `dropout`."""
    attention_dropout: float | None = None
    """The dropout rate of the attention weights; by default `dropout`."""
    epsilon: float = 1e-5
    """The epsilon of the normalizations."""
    activation: ActivationName = "gelu_tanh"
    init_std: float = 0.02
    """The standard deviation of the initial weights."""

    def validate(self) -> None:
        super().validate()
        if self.d_model % self.n_heads:
            raise ValueError(f"d_model={self.d_model} does not divide into n_heads={self.n_heads} heads")
        if self.rotary and self.d_model // self.n_heads % 2:
            raise ValueError(f"rotary needs heads of even width, got {self.d_model // self.n_heads}")
        names = ("dropout", "embedding_dropout", "attention_dropout")
        check_rates(**{name: getattr(self, name) for name in names})
        check_positive(epsilon=self.epsilon, init_std=self.init_std)

    def init(self, device: DeviceLike | None = None) -> Gpt:
        """The model; its parameters are created when they are first used."""
        return Gpt(self, device)


class GptBlock(CausalBlock):
    """A block with layer normalization, attention and an MLP of one hidden layer: [batch, n, d_model] to the same."""

    def __init__(self, config: GptConfig, device: DeviceLike | None = None) -> None:
        d_model, std = config.d_model, config.init_std
        last = std / math.sqrt(2 * config.n_layers)
        rate = config.dropout if config.attention_dropout is None else config.attention_dropout
        self.norm_1 = LayerNorm(d_model, epsilon=config.epsilon, bias=config.bias, device=device)
        self.attention = MultiHeadAttention(
            d_model,
            config.n_heads,
            n_kv_heads=config.n_kv_heads,
            bias=config.bias,
            dropout=rate,
            causal=True,
            rotary=RotaryEncodingConfig(d_model // config.n_heads) if config.rotary else None,
            initializer=Normal(std=std),
            out_initializer=Normal(std=last),
            device=device,
        )
        self.norm_2 = LayerNorm(d_model, epsilon=config.epsilon, bias=config.bias, device=device)
        self.up = dense(d_model, config.hidden_width, std, bias=config.bias, device=device)
        self.down = dense(config.hidden_width, d_model, last, bias=config.bias, device=device)
        self.activation: ActivationName = config.activation
        self.dropout = Dropout(config.dropout)

    def mlp(self, x: Tensor) -> Tensor:
        """See `CausalBlock.mlp`."""
        return self.down(ACTIVATIONS[self.activation](self.up(x)))


class Gpt(CausalModel[GptConfig, GptBlock]):
    """A causal transformer with pre-normalization (Radford et al. 2019).

    Weights are initialized as in GPT-2: normal with standard deviation 0.02, divided by sqrt(2 n_layers) for layers
    whose result is added to the residual stream. Biases start at zero.
    """

    def __init__(self, config: GptConfig, device: DeviceLike | None = None) -> None:
        weights, width = Normal(std=config.init_std), config.d_model
        self.config = config
        self.tokens = Embedding(config.vocabulary, width, initializer=weights, device=device)
        self.positions = None if config.rotary else Param.deferred((config.context, width), weights, device=device)
        self.dropout = Dropout(config.dropout if config.embedding_dropout is None else config.embedding_dropout)
        self.blocks = [GptBlock(config, device) for _ in range(config.n_layers)]
        self.norm = LayerNorm(width, epsilon=config.epsilon, bias=config.bias, device=device)
        self.head = None
        if not config.tied:
            self.head = dense(width, config.vocabulary, config.init_std, bias=False, device=device)

    def embed(self, tokens: Tokens, cache: KeyValueCache | None = None) -> Tensor:
        """See `CausalModel.embed`."""
        x = self.tokens(tokens)
        if self.positions is not None:
            n, table = tokens.shape[1], self.positions.val()
            if cache is not None:
                x = x + table.take(cache.positions(n))
            else:
                x = x + (table if n == self.config.context else table[:n])
        return self.dropout(x)
