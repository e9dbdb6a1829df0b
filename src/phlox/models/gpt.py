"""A GPT: a causal transformer that predicts the next token."""

from __future__ import annotations

import math

from phlox.backend import DeviceLike
from phlox.models.causal import CausalBlock, CausalCache, CausalConfig, CausalModel, Tokens
from phlox.models.parts import ACTIVATIONS, ActivationName, check_positive, check_rates, dense
from phlox.module import Param
from phlox.nn import Dropout, Embedding, KeyValueCache, LayerNorm, MultiHeadAttention, Normal, RotaryEncodingConfig
from phlox.tensor import Tensor

GptCache = CausalCache
"""What a GPT keeps of the tokens before: one cache a layer."""


class GptConfig(CausalConfig):
    """Hyper-parameters of `Gpt`.

    >>> import phlox as px
    >>> model = GptConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2).init()
    >>> model(px.tensor([[1, 2, 3]])).shape
    (1, 3, 10)
    """

    dropout: float = 0.0
    """Of the embeddings, of the weights of attention, and of what each block adds."""
    bias: bool = True
    """Have linear layers and normalisations one? The head has none."""
    tied: bool = False
    """Is the head the transpose of the embedding (Press, Wolf 2017)?"""
    rotary: bool = False
    """Do queries and keys turn with their positions, instead of positions having a learned embedding?"""
    embedding_dropout: float | None = None
    """Of the embeddings, where it is not `dropout`."""
    attention_dropout: float | None = None
    """Of the weights of attention, where it is not `dropout`."""
    epsilon: float = 1e-5
    """Of the normalisations."""
    activation: ActivationName = "gelu_tanh"
    init_std: float = 0.02
    """The deviation of weights at the beginning."""

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
        """The model; its parameters are made when first used."""
        return Gpt(self, device)


class GptBlock(CausalBlock):
    """A block with layer normalisation and one hidden layer between attentions: [batch, n, d_model] to the same."""

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
    """A transformer that sees the tokens before, with normalisation first in each block (Radford et al. 2019).

    Weights begin as those of GPT-2: normal with deviation 0.02, those whose result is added to the residual stream
    smaller by sqrt(2 n_layers); biases at zero.
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
