"""BERT: a bidirectional transformer, and two models with a head on it."""

from __future__ import annotations

from typing import Any

from phlox.backend import Bool, DeviceLike, Float, Int
from phlox.backend.tracing.symbolic import less
from phlox.config import Config
from phlox.errors import ConfigError, KindError, ShapeError
from phlox.models.causal import Tokens
from phlox.models.parts import ACTIVATIONS, ActivationName, check_counts, check_positive, check_rates, dense
from phlox.module import Module, Param
from phlox.nn import Dropout, Embedding, LayerNorm, MultiHeadAttention, Normal, Zeros
from phlox.tensor import Tensor, functional
from phlox.tensor.functional.operands import check_kind

__all__ = ["Bert", "BertClassifier", "BertClassifierConfig", "BertConfig", "BertMaskedLm", "BertMaskedLmConfig"]

Mask = Tensor[Any, Any, Any]
"""Bool or Int [batch, n]: true, or not zero, for tokens; false, or zero, for padding."""


class BertConfig(Config):
    """Hyper-parameters of `Bert`.

    >>> import phlox as px
    >>> model = BertConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2).init()
    >>> model(px.tensor([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    vocabulary: int = 256
    """The number of different tokens; 256 for bytes."""
    context: int = 128
    """The largest number of tokens in a text."""
    n_layers: int = 4
    d_model: int = 256
    n_heads: int = 4
    d_hidden: int | None = None
    """The width of the hidden layer of the MLP; by default 4 d_model."""
    segments: int = 2
    """The number of segment types (for example question and answer)."""
    dropout: float = 0.1
    """The dropout rate of the embeddings and of the output of each block."""
    attention_dropout: float | None = None
    """The dropout rate of the attention weights; by default `dropout`."""
    padding_index: int | None = 0
    """The token whose embedding starts at zero and is not trained, if there is one."""
    pooler: bool = True
    """Whether there is a layer that computes one vector for a text, see `Bert.pooled`."""
    activation: ActivationName = "gelu"
    epsilon: float = 1e-12
    """The epsilon of the normalizations."""
    init_std: float = 0.02
    """The standard deviation of the initial weights."""

    @property
    def hidden_width(self) -> int:
        """The width of the hidden layer of the MLP."""
        return 4 * self.d_model if self.d_hidden is None else self.d_hidden

    def validate(self) -> None:
        names = ("vocabulary", "context", "n_layers", "d_model", "n_heads", "d_hidden", "segments")
        check_counts(**{name: getattr(self, name) for name in names})
        if self.d_model % self.n_heads:
            raise ValueError(f"d_model={self.d_model} does not divide into n_heads={self.n_heads} heads")
        check_rates(dropout=self.dropout, attention_dropout=self.attention_dropout)
        check_positive(epsilon=self.epsilon, init_std=self.init_std)

    def init(self, device: DeviceLike | None = None) -> Bert:
        """The model; its parameters are created when they are first used."""
        return Bert(self, device)


class BertBlock(Module):
    """y = norm_1(x + attention(x)), then norm_2(y + mlp(y)): [batch, n, d_model] to the same."""

    def __init__(self, config: BertConfig, device: DeviceLike | None = None) -> None:
        d_model, std = config.d_model, config.init_std
        rate = config.dropout if config.attention_dropout is None else config.attention_dropout
        self.attention = MultiHeadAttention(
            d_model, config.n_heads, dropout=rate, initializer=Normal(std=std), device=device
        )
        self.norm_1 = LayerNorm(d_model, epsilon=config.epsilon, device=device)
        self.up = dense(d_model, config.hidden_width, std, bias=True, device=device)
        self.down = dense(config.hidden_width, d_model, std, bias=True, device=device)
        self.norm_2 = LayerNorm(d_model, epsilon=config.epsilon, device=device)
        self.activation: ActivationName = config.activation
        self.dropout = Dropout(config.dropout)

    def __call__(self, x: Tensor, mask: Mask | None = None) -> Tensor:
        x = self.norm_1(x + self.dropout(self.attention(x, mask=mask)))
        return self.norm_2(x + self.dropout(self.down(ACTIVATIONS[self.activation](self.up(x)))))


class Bert(Module):
    """A bidirectional transformer with post-normalization (Devlin et al. 2018).

    Weights start normally distributed with standard deviation 0.02, biases at zero.
    """

    def __init__(self, config: BertConfig, device: DeviceLike | None = None) -> None:
        weights, width = Normal(std=config.init_std), config.d_model
        self.config = config
        self.tokens = Embedding(
            config.vocabulary, width, padding_index=config.padding_index, initializer=weights, device=device
        )
        self.positions = Param.deferred((config.context, width), weights, device=device)
        self.segments = Embedding(config.segments, width, initializer=weights, device=device)
        self.norm = LayerNorm(width, epsilon=config.epsilon, device=device)
        self.dropout = Dropout(config.dropout)
        self.blocks = [BertBlock(config, device) for _ in range(config.n_layers)]
        self.pooler = dense(width, width, config.init_std, bias=True, device=device) if config.pooler else None

    def __call__(self, tokens: Tokens, *, mask: Mask | None = None, segments: Tokens | None = None) -> Tensor:
        """Tokens Int [batch, n] to a vector for each, [batch, n, d_model].

        Args:
            tokens: n is at most the context.
            mask: [batch, n], Bool or Int: true or not zero for tokens; padding is not attended to.
            segments: [batch, n]: the segment of each token; by default the first, 0.

        Raises `ShapeError` or `KindError` for tensors of other shapes or kinds.
        """
        self._check(tokens, mask, segments)
        n, table = tokens.shape[1], self.positions.val()
        x = self.tokens(tokens)
        x = x + (self.segments.weight.val()[0] if segments is None else self.segments(segments))
        x = self.dropout(self.norm(x + (table if n == self.config.context else table[:n])))
        is_token = None
        if mask is not None:
            is_token = (mask if mask.kind is Bool else mask != 0).expand_dims(1).expand_dims(1)
        for block in self.blocks:
            x = block(x, is_token)
        return x

    def pooled(self, hidden: Tensor) -> Tensor:
        """One vector for each text, computed from its first token's vector: [batch, n, d_model] to [batch, d_model].

        Raises `ConfigError` for a model without a pooler.
        """
        if self.pooler is None:
            raise ConfigError("Bert: this model has no pooler; create it with BertConfig(pooler=True)")
        return self.pooler(hidden[:, 0]).tanh()

    def _check(self, tokens: Tokens, mask: Mask | None, segments: Tokens | None) -> None:
        limit = self.config.context
        check_kind("Bert", Int, tokens=tokens, segments=segments)
        if tokens.ndim != 2 or less(limit, tokens.shape[1]):
            raise ShapeError(
                f"Bert: tokens must be [batch, n] with n at most the context of {limit}, got shape {tokens.shape}"
            )
        if mask is not None and (not isinstance(mask, Tensor) or mask.kind is Float):  # pyright: ignore[reportUnnecessaryIsInstance]
            got = "Float" if isinstance(mask, Tensor) else type(mask).__name__  # pyright: ignore[reportUnnecessaryIsInstance]
            raise KindError(f"Bert: mask must be a Bool or Int tensor, not zero where there is a token, got {got}")
        for name, other in (("mask", mask), ("segments", segments)):
            if other is not None and other.shape != tokens.shape:
                raise ShapeError(f"Bert: {name} must have the shape of the tokens, {tokens.shape}, got {other.shape}")


class BertMaskedLmConfig(Config):
    """Hyper-parameters of `BertMaskedLm`: the config of its `Bert`, which needs no pooler.

    >>> import phlox as px
    >>> bert = BertConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2, pooler=False)
    >>> BertMaskedLmConfig(bert).init()(px.tensor([[1, 2, 3]])).shape
    (1, 3, 10)
    """

    bert: BertConfig

    def init(self, device: DeviceLike | None = None) -> BertMaskedLm:
        """The model; its parameters are created when they are first used."""
        return BertMaskedLm(self, device)


class BertMaskedLm(Module):
    """A `Bert` that predicts masked tokens. Its head is one more layer, followed by the transpose of the embedding."""

    def __init__(self, config: BertMaskedLmConfig, device: DeviceLike | None = None) -> None:
        self.config, inner = config, config.bert
        self.bert = Bert(inner, device)
        self.transform = dense(inner.d_model, inner.d_model, inner.init_std, bias=True, device=device)
        self.norm = LayerNorm(inner.d_model, epsilon=inner.epsilon, device=device)
        self.bias = Param.deferred((inner.vocabulary,), Zeros(), device=device)

    def __call__(self, tokens: Tokens, *, mask: Mask | None = None, segments: Tokens | None = None) -> Tensor:
        """Logits of the token at each position, [batch, n, vocabulary]; see `Bert`."""
        x = self.transform(self.bert(tokens, mask=mask, segments=segments))
        x = self.norm(ACTIVATIONS[self.config.bert.activation](x))
        return self.bert.tokens.logits(x, self.bias.val())

    def loss(
        self, tokens: Tokens, targets: Tokens, *, mask: Mask | None = None, segments: Tokens | None = None
    ) -> Tensor:
        """The mean negative log-likelihood, in nats, of `targets` [batch, n]; targets of -100 are ignored."""
        return functional.cross_entropy(self(tokens, mask=mask, segments=segments), targets, ignore_index=-100)


class BertClassifierConfig(Config):
    """Hyper-parameters of `BertClassifier`: the config of its `Bert`, which needs a pooler unless `by_token` is True.

    >>> import phlox as px
    >>> bert = BertConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2)
    >>> BertClassifierConfig(bert, classes=3).init()(px.tensor([[1, 2, 3]])).shape
    (1, 3)
    """

    bert: BertConfig
    classes: int = 2
    by_token: bool = False
    """Whether each token is classified, and not the whole text."""
    dropout: float | None = None
    """The dropout rate before the head; by default the rate of `bert`."""

    def validate(self) -> None:
        check_counts(classes=self.classes)
        check_rates(dropout=self.dropout)
        if not (self.by_token or self.bert.pooler):
            raise ValueError("classifying a text needs the pooler: set pooler=True in bert, or by_token=True")

    def init(self, device: DeviceLike | None = None) -> BertClassifier:
        """The model; its parameters are created when they are first used."""
        return BertClassifier(self, device)


class BertClassifier(Module):
    """A `Bert` that classifies texts, or each of their tokens."""

    def __init__(self, config: BertClassifierConfig, device: DeviceLike | None = None) -> None:
        self.config, inner = config, config.bert
        self.bert = Bert(inner, device)
        self.dropout = Dropout(inner.dropout if config.dropout is None else config.dropout)
        self.head = dense(inner.d_model, config.classes, inner.init_std, bias=True, device=device)

    def __call__(self, tokens: Tokens, *, mask: Mask | None = None, segments: Tokens | None = None) -> Tensor:
        """Logits of the classes, [batch, classes], or [batch, n, classes] by token; see `Bert`."""
        x = self.bert(tokens, mask=mask, segments=segments)
        return self.head(self.dropout(x if self.config.by_token else self.bert.pooled(x)))
