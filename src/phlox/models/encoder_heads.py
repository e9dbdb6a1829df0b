"""Models with an `Encoder` and a head: one that predicts masked tokens, and one that classifies."""

from __future__ import annotations

from typing import Any, ClassVar

from phlox.backend import DeviceLike
from phlox.config import Config
from phlox.models.blocks import norm_of
from phlox.models.encoder import Encoder, EncoderConfig
from phlox.models.parts import Mask, Tokens, check_counts, check_rates, dense
from phlox.models.sentences import PoolingName, pool
from phlox.module import Module, Param
from phlox.nn import Dropout, Zeros
from phlox.nn.activation import ACTIVATIONS, ActivationName
from phlox.tensor import Tensor, functional

__all__ = ["EncoderClassifier", "EncoderClassifierConfig", "EncoderMaskedLm", "EncoderMaskedLmConfig"]


class EncoderHeadConfig(Config):
    """The base of the configs of models with an encoder and a head."""

    encoder: EncoderConfig

    @property
    def family(self) -> str:
        """See `EncoderConfig.family`."""
        return self.encoder.family


class EncoderMaskedLmConfig(EncoderHeadConfig):
    """Hyper-parameters of `EncoderMaskedLm`: the config of its encoder, which needs no pooler.

    >>> import phlox as px
    >>> encoder = EncoderConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2, pooler=False)
    >>> EncoderMaskedLmConfig(encoder).init()(px.tensor([[1, 2, 3]])).shape
    (1, 3, 10)
    """

    activation: ActivationName | None = None
    """The activation of the layer before the logits; by default that of the encoder."""
    hidden_bias: bool = True
    """Whether this layer has a bias."""
    head_bias: bool = True
    """Whether the logits have a bias."""

    @property
    def head_activation(self) -> ActivationName:
        """The activation of the layer before the logits."""
        return self.activation or self.encoder.activation

    def init(self, device: DeviceLike | None = None) -> EncoderMaskedLm:
        """The model; its parameters are created when they are first used."""
        return EncoderMaskedLm(self, device)


class EncoderWithHead(Module):
    """The base: a subclass may hold its encoder under another name."""

    encoder_name: ClassVar[str] = "encoder"

    def __init__(self, config: EncoderHeadConfig, device: DeviceLike | None = None) -> None:
        self.config: Any = config
        setattr(self, self.encoder_name, config.encoder.init(device))

    @property
    def inner(self) -> Encoder:
        """The encoder."""
        return getattr(self, self.encoder_name)


class EncoderMaskedLm(EncoderWithHead):
    """An `Encoder` that predicts masked tokens.

    Its head is one more layer, followed by the transpose of the embedding.
    """

    def __init__(self, config: EncoderMaskedLmConfig, device: DeviceLike | None = None) -> None:
        super().__init__(config, device)
        inner = config.encoder
        width = inner.embedding_width
        self.transform = dense(inner.d_model, width, inner.init_std, bias=config.hidden_bias, device=device)
        self.norm = norm_of(inner, device, width)
        self.bias = Param.deferred((inner.vocabulary,), Zeros(), device=device) if config.head_bias else None
        self.activation: ActivationName = config.head_activation

    def __call__(self, tokens: Tokens, *, mask: Mask | None = None, segments: Tokens | None = None) -> Tensor:
        """Logits of the token at each position, [batch, n, vocabulary]; see `Encoder`."""
        x = self.transform(self.inner(tokens, mask=mask, segments=segments))
        x = self.norm(ACTIVATIONS[self.activation](x))
        return self.inner.tokens.logits(x, None if self.bias is None else self.bias.val())

    def loss(
        self, tokens: Tokens, targets: Tokens, *, mask: Mask | None = None, segments: Tokens | None = None
    ) -> Tensor:
        """The mean negative log-likelihood, in nats, of `targets` [batch, n]; targets of -100 are ignored."""
        return functional.cross_entropy(self(tokens, mask=mask, segments=segments), targets, ignore_index=-100)


class EncoderClassifierConfig(EncoderHeadConfig):
    """Hyper-parameters of `EncoderClassifier`.

    A text is classified by the output of the encoder's pooler, or without one by `pooling` of the tokens' vectors.

    >>> import phlox as px
    >>> encoder = EncoderConfig(vocabulary=10, context=8, n_layers=1, d_model=4, n_heads=2, pooler=False)
    >>> EncoderClassifierConfig(encoder, classes=3).init()(px.tensor([[1, 2, 3]])).shape
    (1, 3)
    """

    classes: int = 2
    by_token: bool = False
    """Whether each token is classified, and not the whole text."""
    dropout: float | None = None
    """The dropout rate before the head; by default the rate of the encoder."""
    pooling: PoolingName = "first"
    """See `phlox.models.pool`."""
    hidden: ActivationName | None = None
    """The activation of a further layer before the head, if there is one."""
    hidden_bias: bool = True
    """Whether this layer has a bias."""
    hidden_norm: bool = False
    """Whether its result is normalized."""

    def validate(self) -> None:
        check_counts(classes=self.classes)
        check_rates(dropout=self.dropout)

    @property
    def rate(self) -> float:
        """The dropout rate before the head."""
        return self.encoder.dropout if self.dropout is None else self.dropout

    def init(self, device: DeviceLike | None = None) -> EncoderClassifier:
        """The model; its parameters are created when they are first used."""
        return EncoderClassifier(self, device)


class EncoderClassifier(EncoderWithHead):
    """An `Encoder` that classifies texts, or each of their tokens."""

    def __init__(self, config: EncoderClassifierConfig, device: DeviceLike | None = None) -> None:
        super().__init__(config, device)
        inner, width = config.encoder, config.encoder.d_model
        self.by_token = config.by_token
        self.pooling: PoolingName = config.pooling
        self.hidden: ActivationName | None = config.hidden
        self.transform = self.norm = None
        if config.hidden is not None:
            self.transform = dense(width, width, inner.init_std, bias=config.hidden_bias, device=device)
            self.norm = norm_of(inner, device) if config.hidden_norm else None
        self.dropout = Dropout(config.rate)
        self.head = dense(width, config.classes, inner.init_std, bias=True, device=device)

    def __call__(self, tokens: Tokens, *, mask: Mask | None = None, segments: Tokens | None = None) -> Tensor:
        """Logits of the classes, [batch, classes], or [batch, n, classes] by token; see `Encoder`."""
        inner = self.inner
        x = inner(tokens, mask=mask, segments=segments)
        if not self.by_token:
            if inner.pooler is not None:
                x = inner.pooled(x)
            else:  # the first token is the special one that stands before the text, even if it is masked
                x = x[:, 0] if self.pooling == "first" else pool(x, mask, self.pooling)
        if self.transform is not None and self.hidden is not None:
            x = ACTIVATIONS[self.hidden](self.transform(x))
            x = x if self.norm is None else self.norm(x)
        return self.head(self.dropout(x))
